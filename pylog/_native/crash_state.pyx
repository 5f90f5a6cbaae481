"""What a killed broker's successor need not check again, kept in memory that outlives a process.

Owns: nothing; the LogDir owns its table.
Invariants: (1) one process at a time remembers for a directory; (2) it forgets before another may
  have the directory.
Source: csrc/log/crash_state.h.
"""

import os

from pylog._native cimport csrc
from pylog._native.log_dir cimport LogDir


def remember(LogDir directory not None, where) -> None:
    """Before any log of it is opened. where: a folder of a tmpfs; without one nothing happens."""
    cdef bytes name = os.fsencode(where)
    cdef const char *c_name = name
    with nogil:
        csrc.log_dir_remember(directory.dir, c_name)


def forget(LogDir directory not None) -> None:
    """At a stop (2). The object's end does it too."""
    with nogil:
        csrc.log_dir_forget(directory.dir)
