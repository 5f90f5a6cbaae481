"""Keeps the memory of this process, which holds keys and passwords, out of core dumps.

Owns: nothing.
Invariants: (1) other processes of the same user do not read this one's memory either.
Source: prctl(2), PR_SET_DUMPABLE.
"""

import ctypes
import logging
import os

PR_SET_DUMPABLE = 4

log = logging.getLogger("pylog.security")


def keep_out() -> None:
    """From now on. A system that refuses is logged."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        log.warning("a core dump would hold keys and passwords",
                    extra={"reason": os.strerror(ctypes.get_errno())})
