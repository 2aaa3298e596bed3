"""Publish runs of scale small: records, figures, verdicts, what came out, and the table of papers.

python docs/results/publish.py [RUN...]    without a run: figures and tables anew, as after an edit
"""

import sys
from pathlib import Path

from coset.files import write_text
from coset.studies import publishing
from coset.studies.runs import Run

ROOT = Path(__file__).parents[2]


RESULTS = ROOT / "docs" / "results"


def main(*folders: str) -> None:
    verdicts = ROOT / "src" / "coset" / "studies" / "verdicts.json"
    for folder in folders or (RESULTS,):
        publishing.publish(Run.open(folder), RESULTS, verdicts)
    write_text(ROOT / "docs" / "papers.md", publishing.papers())
    write_text(ROOT / "docs" / "results.md", publishing.results())


if __name__ == "__main__":
    main(*sys.argv[1:])
