"""Where a broker stands with the active controller: what to ask next, and what an answer means.

Owns: nothing outside memory; no clock, no connection.
Invariants: (1) a registration has an incarnation of its own: a controller keeps what an older one
  was in (a broker that left is never in an ISR again under the same incarnation); (2) the broker
  asks to be fenced until its own newest registration is in force here and its logs are open; (3) an
  epoch that the controller no longer knows is given up, and the broker registers anew; (4) once it
  wants to stop it never registers again.
Source: KIP-631 (registration, heartbeats, controlled shutdown), KIP-966 (previous_broker_epoch),
  Kafka's BrokerLifecycleManager.
"""

from __future__ import annotations

from collections import namedtuple
from enum import Enum

from pylog.protocol.errors import ErrorCode

NO_EPOCH = -1


class Stage(Enum):
    """REGISTER: not known to the controller. CATCH_UP: fenced. RUNNING: leads and follows.
    STOPPING: wants to. STOPPED: may."""

    REGISTER = 0
    CATCH_UP = 1
    RUNNING = 2
    STOPPING = 3
    STOPPED = 4


Register = namedtuple("Register", ("incarnation_id", "previous_broker_epoch"))
Heartbeat = namedtuple("Heartbeat", (
    "broker_epoch", "current_metadata_offset", "want_fence", "want_shut_down"))

# Of a registration: another try may succeed without anybody doing anything.
TRANSIENT = frozenset((ErrorCode.DUPLICATE_BROKER_REGISTRATION, ErrorCode.NOT_CONTROLLER,
                       ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT))


class Lifecycle:
    """random_id: () -> 16 bytes. previous_epoch: the broker epoch of the last run, when that ended
    cleanly, else -1. `refusal`: why the last registration was refused, None otherwise."""

    def __init__(self, random_id, previous_epoch: int = NO_EPOCH):
        self.stage = Stage.REGISTER
        self.broker_epoch = NO_EPOCH
        self.refusal: int | None = None
        self._random_id = random_id
        self._previous_epoch = previous_epoch
        self._incarnation_id: bytes = random_id()
        self._must_amend = False
        self._changes = self._sent_changes = 0   # Of what is registered: all, and those sent.

    @property
    def is_registered(self) -> bool:
        return self.broker_epoch != NO_EPOCH

    @property
    def is_stopping(self) -> bool:
        return self.stage in (Stage.STOPPING, Stage.STOPPED)

    def next(self, image_offset: int, ready: bool):
        """What to send now: a Register, a Heartbeat, or None when there is nothing left to say.

        image_offset: of the last record that is in force here. ready: whether the logs are open.
        """
        if self.stage is Stage.STOPPED:
            return None
        if self.stage is Stage.REGISTER or self._must_amend:
            self._sent_changes = self._changes
            return Register(self._incarnation_id, self._previous_epoch)
        # Keeps (2).
        behind = image_offset < self.broker_epoch or not ready
        return Heartbeat(self.broker_epoch, image_offset,
                         self.stage is Stage.CATCH_UP and behind, self.stage is Stage.STOPPING)

    def registered(self, error: int, broker_epoch: int) -> None:
        """A registration was answered."""
        if self.stage is not Stage.REGISTER and not self._must_amend:
            # It was sent before the broker began to stop.
            return
        self.refusal = error or None
        if not error:
            assert broker_epoch >= 0, broker_epoch
            if broker_epoch != self.broker_epoch:
                self.broker_epoch, self.stage = broker_epoch, Stage.CATCH_UP
            # What changed meanwhile was not in it.
            self._must_amend = self._changes > self._sent_changes

    def amend(self) -> None:
        """What is registered of this broker has changed: it is said again, under the same
        incarnation, and the broker stays what it is."""
        self._changes += 1
        self._must_amend = self.is_registered and not self.is_stopping

    def beaten(self, sent: Heartbeat, error: int, is_fenced: bool, should_shut_down: bool) -> None:
        """A heartbeat was answered."""
        if sent.broker_epoch != self.broker_epoch:
            return
        if error in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            self._lose_epoch()
        elif not error and self.stage is Stage.STOPPING:
            if should_shut_down:
                self.stage = Stage.STOPPED
        elif not error and self.stage in (Stage.CATCH_UP, Stage.RUNNING):
            self.stage = Stage.CATCH_UP if is_fenced else Stage.RUNNING

    def _lose_epoch(self) -> None:
        """Keeps (3)."""
        self._must_amend = False
        self._previous_epoch, self.broker_epoch = NO_EPOCH, NO_EPOCH
        if self.is_stopping:
            # Keeps (4): nobody waits for what it leads.
            self.stage = Stage.STOPPED
            return
        # Keeps (1).
        self._incarnation_id = self._random_id()
        self.stage = Stage.REGISTER

    def stop(self) -> None:
        """The broker wants to leave; next() is None once it may."""
        self._must_amend = False         # Keeps (4).
        if not self.is_stopping:
            self.stage = Stage.STOPPING if self.is_registered else Stage.STOPPED
