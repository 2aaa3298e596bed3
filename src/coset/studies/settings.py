"""What several studies share: the papers, and the small real problems they are run on."""

from typing import Any

LAURENT = "Laurent, Aldea, Franchi 2024"
XIAO = "Xiao, Liu, Bamler 2023"
ANTORAN = "Antorán et al. 2022"
TOMOGRAPHY = "Antorán et al. 2022, tomography"
OVADIA = "Ovadia et al. 2019"

DIGITS: dict[str, Any] = {
    "data": "digits",
    "network": "mlp",
    "hidden": [16],
    "optimiser": "adam",
    "rate": 0.01,
    "batch": 32,
    "decay": 1e-4,
}
"""Small perceptrons on the digits that come with scikit-learn."""

DESCENT: dict[str, Any] = DIGITS | {"optimiser": "sgd", "rate": 0.1}
"""The same by plain gradient descent, whose only state is the weights."""

PERCEPTRONS: dict[str, Any] = {
    "data": "mnist",
    "train": 1000,
    "test": 1000,
    "side": 14,
    "network": "mlp",
    "hidden": [16],
    "optimiser": "adam",
    "rate": 0.01,
    "batch": 64,
    "decay": 2e-4,
    "epochs": 15,
}
"""Small perceptrons on MNIST, trained to the end."""

OPTUNETS: dict[str, Any] = {
    "data": "mnist",
    "train": 64,
    "standardise": True,
    "network": "optunet",
    "zoo": "optunet-mnist-small",
    "zoo_steps": 1500,
    "zoo_pictures": 12_000,
}
"""The paper's own networks of 355 weights, from a zoo with a shorter training than theirs.

Steps and pictures are those of the zoo's recipe: records tell by them how networks were trained.
"""
