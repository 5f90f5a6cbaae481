"""One partition of a coordinator's topic: loaded when this broker becomes its leader, reloaded when
its memory is ahead of its log, unloaded when leadership moves away.

Owns: the state machine, its leader term, and the backoff between reloads.
Invariants: the served state is the log's contents plus the records of the next append; a state
  machine whose records could not be appended is dropped and serves no more requests; a state
  machine is not visible while it loads; while writes fail, reloads back off to RELOAD_SECONDS_MAX;
  leader epochs only increase, and a state machine serves only in the term that it was loaded for.
Source: Kafka's CoordinatorRuntime, which reverts a failed write; here the state is reloaded from
  the log.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from pylog.coordinator.runtime.journal import Journal, Response, Token, Written, refuse
from pylog.coordinator.runtime.timers import Timers
from pylog.protocol.errors import Error, ErrorCode

RELOAD_SECONDS_MIN = 0.1
RELOAD_SECONDS_MAX = 5.0
NO_EPOCH = -1


class StateMachine(Protocol):
    """The state of one partition: takes requests and a clock, produces records and responses, no
    I/O.

    records, responses: output of the steps since the last write; the runtime clears them. cleanups:
    how many of the records only remove obsolete state, so that no response depends on them. timers:
    when to call tick(). changed: keys that the snapshot does not have yet.
    """

    records: list[Written]
    responses: list[Response]
    cleanups: int
    timers: Timers
    changed: set[Any]

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log, in order, before loaded(). Raises ProtocolError."""

    def loaded(self) -> None:
        """Start serving: the last record was replayed."""

    def tick(self) -> None:
        """Run all due timers. Called at timers.next_ms() or later."""

    def open_tokens(self) -> Iterable[Token]:
        """Return the requests that the state machine has not replied to."""

    def saved(self, changed: set[Any]) -> None:
        """Note that the keys in `changed` are in the snapshot."""


M = TypeVar("M", bound=StateMachine)
M_contra = TypeVar("M_contra", bound=StateMachine, contravariant=True)


class Snapshot(Protocol[M_contra]):
    """A state machine outside the log, with the offset that it reflects."""

    def applied(self) -> tuple[int, int]:
        """Return (offset, epoch) of the last record that the snapshot holds; (-1, -1) for none."""

    def clear(self) -> None:
        """Delete everything: the snapshot belongs to another log."""

    def restore(self, state_machine: M_contra) -> None:
        """Fill an empty state machine from the snapshot."""

    def rows(self, state_machine: M_contra, changed: set[Any]) -> Iterable[list[Any]]:
        """Yield the rows that write() needs for `changed`, a few at a time, with current values."""

    def write(self, rows: list[Any], applied: tuple[int, int] | None) -> None:
        """Write rows, and the applied offset if these are the last ones. Callable on any thread."""


class Shard(Generic[M]):
    """A state machine with its journal, snapshot and leader term.

    make: creates an empty state machine. `state_machine` serves while `ready`. saving: held while
    the snapshot is written or read. halfway: number of unfinished steps of run_in_slices(); the log
    holds only a part of their records, so no snapshot is taken. ended: called with a state machine
    that is being unloaded.
    """

    def __init__(self, index: int, make: Callable[[], M], journal: Journal,
                 snapshot: Snapshot[M] | None,
                 ended: Callable[[M], object] = lambda state_machine: None):
        self.index = index
        self.state_machine = make()
        self.journal = journal
        self.snapshot = snapshot
        self.epoch = NO_EPOCH  # Leader epoch of the newest term.
        self.leads = False  # True if this broker leads that term.
        self.ready = False
        self.halfway = 0
        self.saving = asyncio.Lock()
        self._make = make
        self._ended = ended
        self._is_readable = True
        self._pause_s = 0.0

    @property
    def error(self) -> Error:
        """Return the error for requests that the shard cannot serve now, or NONE."""
        if not self.leads or self.journal.log.failed or not self._is_readable:
            return ErrorCode.NOT_COORDINATOR
        if not self.runs or self.journal.is_settling:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NONE

    @property
    def runs(self) -> bool:
        """Return True if internal steps (timers, expiry) may run.

        They also run before the log is durable, because their records follow it in the same log.
        """
        return self.leads and self._is_readable and self.ready and not (
            self.journal.failed or self.journal.log.failed)

    def serves(self, epoch: int) -> bool:
        """Return True if the term with leader epoch `epoch` is still current."""
        return self.leads and self.epoch == epoch

    def lead(self, epoch: int) -> None:
        """Start a term. Requests are served after loaded()."""
        assert epoch > self.epoch, (epoch, self.epoch)
        if self.leads:
            self.resign(self.epoch)
        assert not self.ready, self.index
        self.epoch = epoch
        self.leads = self._is_readable = True
        self._pause_s = 0.0

    def resign(self, epoch: int) -> None:
        """End the term, because `epoch` belongs to another broker. Waiting clients retry there."""
        assert epoch >= self.epoch, (epoch, self.epoch)
        self.epoch = epoch
        self.leads = False
        self.journal.close()
        self.unload()

    def empty_state_machine(self) -> M:
        """Return an empty state machine for a load."""
        return self._make()

    def loaded(self, state_machine: M, epoch: int) -> None:
        """Serve `state_machine` in the term that it was loaded for."""
        assert self.serves(epoch) and not self.ready, (epoch, self.epoch, self.leads)
        self.state_machine = state_machine
        self.journal.reopen(epoch)
        self.ready = self._is_readable = True

    def unreadable(self) -> None:
        """Note that reading the log failed; the load is retried."""
        self._is_readable = False

    def unload(self) -> None:
        """Reject waiting requests and drop state that the log does not hold."""
        self.ready = False
        self.refuse_open()
        self.state_machine = self._make()
        self.halfway = 0

    def refuse_open(self) -> None:
        """Reject waiting requests before the state machine is dropped."""
        self._ended(self.state_machine)
        # A failed step leaves responses that were never queued.
        refuse([*self.state_machine.open_tokens(),
                *(token for token, _ in self.state_machine.responses)],
               ErrorCode.NOT_COORDINATOR)

    def next_pause_s(self) -> float:
        """Return the backoff before the next load, at most RELOAD_SECONDS_MAX."""
        if self.journal.appended:
            self.journal.appended = False
            self._pause_s = 0.0
        self._pause_s = min(max(RELOAD_SECONDS_MIN, 2 * self._pause_s), RELOAD_SECONDS_MAX)
        return self._pause_s
