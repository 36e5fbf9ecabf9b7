"""`python -m labkit`."""

import sys

from labkit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
