"""Train with Lightning, then let coset say how sure the network is.

    pip install lightning
    python examples/train_with_lightning.py

Nothing of the training is coset's: it reads the trained module and the same loaders.
"""

import lightning
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from coset import Categorical, PointMass, Predictor, data, evaluate, fit, functionalise, weights_of


class Classifier(lightning.LightningModule):
    """A network and how Lightning trains it."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        return self.network(images)

    def training_step(self, batch, _):
        images, labels = batch
        return functional.cross_entropy(self(images), labels)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main(epochs=60, rows=300):
    lightning.seed_everything(0, verbose=False)
    digits = data.digits()
    images, labels = digits.train_inputs[:rows], digits.train_targets[:rows]
    train = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
    validation = DataLoader(TensorDataset(digits.test_inputs, digits.test_targets), batch_size=128)

    layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    classifier = Classifier(layers)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", **quiet)
    trainer.fit(classifier, train)

    predictor = fit(classifier, train)  # error bars; the module is read and not changed
    plain = Predictor(functionalise(classifier), PointMass(weights_of(classifier)), Categorical())
    metrics = ["accuracy", "negative_log_likelihood", "expected_calibration_error"]
    for name, found in (("Lightning alone", plain), ("with coset.fit", predictor)):
        scores = evaluate(found, validation, metrics=metrics)
        print(f"{name:16}", ", ".join(f"{key} {value:.3f}" for key, value in scores.items()))
    return predictor


if __name__ == "__main__":
    main()
