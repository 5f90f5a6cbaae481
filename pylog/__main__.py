"""`python -m pylog brokerd ...` is brokerd, `python -m pylog ...` is the pylog tool.

Owns: nothing.
Called by: the interpreter; tests start brokers with it, installed scripts or not.
Invariants: (1) it adds nothing to what the installed commands do.
"""

import sys

from .cli import brokerd, pylog

if __name__ == "__main__":
    if sys.argv[1:2] == ["brokerd"]:
        sys.exit(brokerd(sys.argv[2:]))
    sys.exit(pylog(sys.argv[1:]))
