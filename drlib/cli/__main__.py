"""`python -m drlib.cli`: the `drlib` command without its console script."""

import sys

from drlib.cli import main

if __name__ == "__main__":
    sys.exit(main())
