"""Two networks that were trained apart, before and after alignment.

Run it with ``python examples/align_two_networks.py``.
"""

import torch

from coset import (
    DeepEnsemble,
    MaximumAPosteriori,
    average,
    barrier,
    data,
    discover,
    fit,
    match,
    models,
    unstack,
)


def main(*, width: int = 256, epochs: int = 40) -> dict[str, float]:
    digits = data.digits()
    module = models.mlp(64, (width, width), 10)
    method = DeepEnsemble(members=2, base=MaximumAPosteriori(epochs=epochs))
    one, other = unstack(fit(module, digits.train, method=method).posterior.members)

    group = discover(module, digits.train_inputs[:1])
    result = match(group, other, to=one)

    heights = {}
    for name, weights in {"as trained": other, "aligned": result.weights}.items():
        path = barrier(module, one, weights, digits.test)
        heights[name] = path.height
        print(f"{name:12s} barrier of the loss {path.height:.3f}, of the error ", end="")
        print(f"{path.error_height:.3f}")
    print(f"{result.transpositions} transpositions, squared distance {result.squared_distance:.1f}")

    middle = average([one, result.weights])
    norm = float(torch.stack([w.square().sum() for w in middle.values()]).sum())
    print(f"squared norm of the mean network {norm:.1f}")
    return heights


if __name__ == "__main__":
    main()
