"""Publish a run of scale small: records, figures, verdicts and the table of papers.

python docs/results/publish.py RUN
"""

import sys
from pathlib import Path

from coset.files import write_text
from coset.studies import publishing
from coset.studies.runs import Run

ROOT = Path(__file__).parents[2]


def main(folder: str) -> None:
    verdicts = ROOT / "src" / "coset" / "studies" / "verdicts.json"
    publishing.publish(Run.open(folder), ROOT / "docs" / "results", verdicts)
    write_text(ROOT / "docs" / "papers.md", publishing.papers())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/results/publish.py RUN")
    main(sys.argv[1])
