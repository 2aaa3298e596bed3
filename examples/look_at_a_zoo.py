"""What training does to the excess of mass, and how much networks of a zoo differ in accuracy.

Run it with ``python examples/look_at_a_zoo.py FOLDER``, after ``coset zoo train RECIPE FOLDER``; it
draws ``zoo.svg``.  Without a folder it trains eight tiny networks first.

The *mass* is the squared norm of the weights, its excess by how much it exceeds the least that
rescaling hidden units can reach without a change of the function.
"""

import sys
from collections.abc import Mapping
from tempfile import TemporaryDirectory

from torch import Tensor

from coset.engines import Serial
from coset.zoo import Zoo, excess_of_mass, populate, read_recipe


def look(zoo: Zoo) -> dict[str, tuple[Tensor, list[float]]]:
    """Excess of mass and accuracies, at the beginning, at each snapshot and at the end."""
    kept = sorted({member.step for member in zoo.members if member.step is not None})
    found = {"at the beginning": (excess_of_mass(zoo, step=0), [])}
    for step in (*kept, None):
        when = "at the end" if step is None else f"after epoch {step}"
        accuracies = [m.metrics["accuracy"] for m in zoo.members if m.step == step]
        found[when] = (excess_of_mass(zoo, step=step), accuracies)
    return found


def draw(found: Mapping[str, tuple[Tensor, list[float]]], path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    masses, both = figure.subplots(1, 2)
    colours = ["#718096", "#dd6b20", "#2b6cb0", "#2f855a"]
    high = max(float(excess.quantile(0.995)) for excess, _ in found.values())
    for number, (when, (excess, _)) in enumerate(found.items()):
        colour = colours[number % 4]
        style = {"histtype": "step", "color": colour, "label": when, "linewidth": 1.5}
        masses.hist(excess, bins=50, range=(0, high), density=True, **style)
    excess, reached = found["at the end"]
    both.scatter(excess, reached, s=6, color=colour, alpha=0.5, linewidths=0, rasterized=True)
    masses.set(xlabel="excess of mass, %", ylabel="density", yticks=[], xlim=(0, high))
    both.set(xlabel="excess of mass at the end, %", ylabel="accuracy", xlim=(0, high))
    masses.legend(frameon=False)
    for panel in (masses, both):
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main(folder: str | None = None, *, path: str = "zoo.svg") -> dict:
    with TemporaryDirectory() as scratch:
        if folder is None:
            zoo = populate(read_recipe("tiny"), scratch, 8, engine=Serial())
        else:
            zoo = Zoo.open(folder)
        found = look(zoo)
    print(zoo)
    for when, (excess, accuracies) in found.items():
        low, middle, high = (float(excess.quantile(q)) for q in (0.05, 0.5, 0.95))
        told = f"excess of mass {float(excess.mean()):5.1f} % on average, "
        told += f"{low:.1f} to {high:.1f} for nine in ten, median {middle:.1f}, "
        told += f"least {float(excess.min()):.2f}"
        if accuracies:
            told += f"; accuracy {sum(accuracies) / len(accuracies):.3f} on average, "
            told += f"{min(accuracies):.3f} to {max(accuracies):.3f}"
        print(f"{when:<16}  {told}")
    draw(found, path)
    return found


if __name__ == "__main__":
    main(*sys.argv[1:2])
