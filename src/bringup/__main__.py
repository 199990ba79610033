"""`python -m bringup` is the command `bringup`."""

from __future__ import annotations

import sys

from bringup.cli import main

if __name__ == "__main__":
    sys.exit(main())
