"""One partition of a coordinator's topic at work: loaded, served, and loaded again when its memory
is ahead of its log.

Owns: the state machine, and how long a reload waits.
Called by: coordinator.service, on the event loop.
Invariants: (1) what is served is what the log holds, and what waits for the next append; (2) a
  machine whose records could not be appended answers nothing more, it is thrown away; (3) nobody
  sees a machine that is being loaded; (4) while writes fail, reloads are RELOAD_SECONDS_MAX apart
  at last.
Source: Kafka's coordinator runtime, which takes a failed write back; here the log tells what was
  written.
"""

import asyncio

from pylog.protocol.errors import ErrorCode

RELOAD_SECONDS_MIN = 0.1
RELOAD_SECONDS_MAX = 5.0


class Shard:
    """make: a function, gives an empty machine. `groups` is the machine, `ready` once it is
    loaded. keeping: held while what changed goes to state.lmdb.
    """

    def __init__(self, index: int, make, journal, kept):
        self.index = index
        self.groups = make()
        self.journal = journal
        self.kept = kept
        self.ready = False
        self.closed = False
        self.keeping = asyncio.Lock()
        self._make = make
        self._is_readable = True
        self._pause_s = 0.0

    @property
    def error(self) -> int:
        """What answers a request that the shard cannot take now; NONE: it can."""
        if self.closed or self.journal.log.failed or not self._is_readable:
            return ErrorCode.NOT_COORDINATOR
        if not self.ready or self.journal.failed:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NONE

    def empty_machine(self):
        """For a load. What was counted so far goes on."""
        machine = self._make()
        machine.events = self.groups.events
        return machine

    def loaded(self, machine) -> None:
        """The log is read: `machine` serves from now on."""
        self.groups = machine
        self.journal.reopen()
        self.ready = self._is_readable = True

    def unreadable(self) -> None:
        """The log could not be read; it is tried again."""
        self._is_readable = False

    def unload(self) -> None:
        """Answers who waits for others, and forgets what the log does not hold. Keeps (2)."""
        self.ready = False
        # A step that failed leaves answers that nobody sends.
        for token in [*self.groups.open_tokens(), *(token for token, _ in self.groups.replies)]:
            token.refuse(ErrorCode.NOT_COORDINATOR)
        self.groups = self.empty_machine()

    def close(self) -> None:
        """The partition is no more: nothing is answered from it again."""
        self.closed = True
        self.journal.close()
        self.unload()

    def next_pause_s(self) -> float:
        """How long to wait before the next load. Keeps (4)."""
        if self.journal.appended:
            self.journal.appended = False
            self._pause_s = 0.0
        self._pause_s = min(max(RELOAD_SECONDS_MIN, 2 * self._pause_s), RELOAD_SECONDS_MAX)
        return self._pause_s
