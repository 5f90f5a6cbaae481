"""State in memory that survives a killed broker, so that the next one can skip checks in recovery.

Owns: nothing; the LogDir owns its table.
Invariants: only one process at a time records state for a directory; it discards the state before
  another process may use the directory.
Source: csrc/segment/restart_checkpoint.h.
"""

import os

from pylog._native.log cimport csrc
from pylog._native.log.log_dir cimport LogDir


def remember(LogDir directory not None, where) -> None:
    """Start recording; call it before opening any log of the directory. where: a folder of a tmpfs;
    does nothing without one.
    """
    cdef bytes name = os.fsencode(where)
    cdef const char *c_name = name
    with nogil:
        csrc.log_dir_use_restart_checkpoint(directory.dir, c_name)


def forget(LogDir directory not None) -> None:
    """Discard the state on shutdown. Destroying the LogDir does the same."""
    with nogil:
        csrc.log_dir_drop_restart_checkpoint(directory.dir)
