"""What becomes of producers at a fork and at the end of the program.

Owns: weak references to the producers of this process.
Invariants: (1) in a forked child every call of a producer raises, and none waits; (2) a program
  that ends with records that were never acknowledged says so.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref

from pylog.protocol.counts import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pylog.client.producing import Producing

_watched: weakref.WeakSet[Producing] = weakref.WeakSet()
log = logging.getLogger("pylog.client")


def watch(producing: Producing) -> None:
    """From now on this producer is looked at when the process forks or ends."""
    _watched.add(producing)


def _forked() -> None:
    for producing in _watched:
        producing.disown()       # Keeps (1).
    _watched.clear()


def _ended() -> None:
    for producing in _watched:
        left = {(pending.topic, pending.partition) for pending in producing.accumulator.pendings()}
        if left and not producing.closed:
            # Keeps (2).
            log.warning("records to %s were not delivered: call flush() or close() "
                        "before the program ends", counted(len(left), "partition"))


os.register_at_fork(after_in_child=_forked)
atexit.register(_ended)
