"""Child processes that must not outlive brokerd.

Owns: nothing.
Invariants: end_with_parent() is safe between fork and exec: it only makes a system call.
Source: prctl(2), PR_SET_PDEATHSIG.
"""

import ctypes
import signal

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Set the parent-death signal of a child process: pass it as preexec_fn.

    The kernel sends the signal when the forking thread ends, which must be the event loop's.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
