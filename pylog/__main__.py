"""`python -m pylog ...` is brokerd, for where its script is not installed.

Owns: nothing.
Invariants: (1) it adds nothing to what the installed command does.
"""

import sys

from .cli import brokerd

if __name__ == "__main__":
    sys.exit(brokerd())
