"""Runs brokerd as `python -m pylog ...`, if its script is not installed.

Owns: nothing.
Invariants: it behaves exactly like the installed command.
"""

import sys

from .cli import brokerd

if __name__ == "__main__":
    sys.exit(brokerd())
