"""``python -m coset``: the same as the ``coset`` command."""

import sys

from coset.cli import main

if __name__ == "__main__":
    sys.exit(main())
