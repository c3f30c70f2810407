"""`python -m defserve` is the command `defserve`."""

from __future__ import annotations

import sys

from defserve.cli import main

if __name__ == "__main__":
    sys.exit(main())
