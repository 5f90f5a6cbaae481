"""Excludes the memory of this process from core dumps, because it contains keys and passwords.

Owns: nothing.
Invariants: other processes of the same user cannot read this process's memory either.
Source: prctl(2), PR_SET_DUMPABLE.
"""

import ctypes
import logging
import os

PR_SET_DUMPABLE = 4

log = logging.getLogger("pylog.security")


def keep_out() -> None:
    """Disable core dumps for the rest of the process. Logs a warning if the system refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        log.warning("core dumps cannot be disabled; one would contain keys and passwords",
                    extra={"reason": os.strerror(ctypes.get_errno())})
