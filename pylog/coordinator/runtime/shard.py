"""One partition of a coordinator's topic: loaded when this broker becomes its leader and when its
memory is ahead of its log, unloaded when leadership moves away.

Owns: the state machine, the term in which it is served, and how long a reload waits.
Invariants: (1) what is served is what the log holds, and what waits for the next append; (2) a
  machine whose records could not be appended answers nothing more, it is thrown away; (3) nobody
  sees a machine that is being loaded; (4) while writes fail, reloads are RELOAD_SECONDS_MAX apart
  at last; (5) leader epochs rise from term to term, and a machine serves in the term that it was
  loaded for only.
Source: Kafka's CoordinatorRuntime, which takes a failed write back; here the log says what was
  written.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from pylog.coordinator.runtime.journal import Journal, Reply, Token, Written, refuse
from pylog.coordinator.runtime.timers import Timers
from pylog.protocol.errors import Error, ErrorCode

RELOAD_SECONDS_MIN = 0.1
RELOAD_SECONDS_MAX = 5.0
NO_EPOCH = -1


class Machine(Protocol):
    """The state of one partition: requests and a clock in, records and replies out, no I/O.

    records, replies: what the steps since the last write left; the runtime empties them. cleanups:
    how many of the records only remove what means nothing any more, so that no answer depends on
    them. timers: when tick() is to be called. changed: what a snapshot does not have yet.
    """

    records: list[Written]
    replies: list[Reply]
    cleanups: int
    timers: Timers
    changed: set[Any]

    def replay(self, key: bytes, value: bytes | None) -> None:
        """One record of the log, in order, before loaded(). Raises ProtocolError."""

    def loaded(self) -> None:
        """After the last record; it serves from now on."""

    def tick(self) -> None:
        """Does what is due. Called at timers.next_ms(), or later."""

    def open_tokens(self) -> Iterable[Token]:
        """The requests that the machine has yet to answer."""

    def saved(self, changed: set[Any]) -> None:
        """What was in `changed` is in the snapshot."""


M = TypeVar("M", bound=Machine)
M_contra = TypeVar("M_contra", bound=Machine, contravariant=True)


class Snapshot(Protocol[M_contra]):
    """A machine's state beside the log, with the offset that it reflects."""

    def applied(self) -> tuple[int, int]:
        """(offset, epoch) of the last record that it holds; (-1, -1) for none."""

    def clear(self) -> None:
        """Forgets everything: it is of another log."""

    def restore(self, machine: M_contra) -> None:
        """Gives an empty machine what it must have in memory."""

    def rows(self, machine: M_contra, changed: set[Any]) -> Iterable[list[Any]]:
        """What write() needs for `changed`, a few rows at a time, as they are when taken."""

    def write(self, rows: list[Any], applied: tuple[int, int] | None) -> None:
        """Writes rows, and the applied offset when these were the last ones. On any thread."""


class Shard(Generic[M]):
    """make: a function, gives an empty machine. `machine` serves once it is `ready`. saving: held
    while what changed goes to the snapshot, and while that is read. halfway: how many steps in
    pieces the machine is amid: the log has a part of their records, so it is not to be saved.
    ended: takes a machine that serves no more.
    """

    def __init__(self, index: int, make: Callable[[], M], journal: Journal,
                 snapshot: Snapshot[M] | None,
                 ended: Callable[[M], object] = lambda machine: None):
        self.index = index
        self.machine = make()
        self.journal = journal
        self.snapshot = snapshot
        self.epoch = NO_EPOCH        # Of the newest term.
        self.leads = False           # Whether it is a term of ours.
        self.ready = False
        self.halfway = 0
        self.saving = asyncio.Lock()
        self._make = make
        self._ended = ended
        self._is_readable = True
        self._pause_s = 0.0

    @property
    def error(self) -> Error:
        """What answers a request that the shard cannot take now; NONE: it can."""
        if not self.leads or self.journal.log.failed or not self._is_readable:
            return ErrorCode.NOT_COORDINATOR
        if not self.runs or self.journal.is_settling:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NONE

    @property
    def runs(self) -> bool:
        """Whether the machine does what no request asks for: also while its log settles, for what
        follows is in the log behind it."""
        return self.leads and self._is_readable and self.ready and not (
            self.journal.failed or self.journal.log.failed)

    def serves(self, epoch: int) -> bool:
        """Whether the term of that leader epoch goes on."""
        return self.leads and self.epoch == epoch

    def lead(self, epoch: int) -> None:
        """A term begins: nothing is served before loaded()."""
        assert epoch > self.epoch, (epoch, self.epoch)
        if self.leads:
            self.resign(self.epoch)
        assert not self.ready, self.index
        self.epoch = epoch
        self.leads = self._is_readable = True
        self._pause_s = 0.0

    def resign(self, epoch: int) -> None:
        """The term is over, `epoch` is another broker's: whoever waits asks that one."""
        assert epoch >= self.epoch, (epoch, self.epoch)
        self.epoch = epoch
        self.leads = False
        self.journal.close()
        self.unload()

    def empty_machine(self) -> M:
        """For a load."""
        return self._make()

    def loaded(self, machine: M, epoch: int) -> None:
        """The log is read: `machine` serves in the term from now on. Keeps (5)."""
        assert self.serves(epoch) and not self.ready, (epoch, self.epoch, self.leads)
        self.machine = machine
        self.journal.reopen(epoch)
        self.ready = self._is_readable = True

    def unreadable(self) -> None:
        """The log could not be read; it is tried again."""
        self._is_readable = False

    def unload(self) -> None:
        """Answers who waits for others, and forgets what the log does not hold. Keeps (2)."""
        self.ready = False
        self.refuse_open()
        self.machine = self._make()
        self.halfway = 0

    def refuse_open(self) -> None:
        """Answers who waits for others: the machine serves no more."""
        self._ended(self.machine)
        # A step that failed leaves answers that nobody sends.
        refuse([*self.machine.open_tokens(), *(token for token, _ in self.machine.replies)],
               ErrorCode.NOT_COORDINATOR)

    def next_pause_s(self) -> float:
        """How long to wait before the next load. Keeps (4)."""
        if self.journal.appended:
            self.journal.appended = False
            self._pause_s = 0.0
        self._pause_s = min(max(RELOAD_SECONDS_MIN, 2 * self._pause_s), RELOAD_SECONDS_MAX)
        return self._pause_s
