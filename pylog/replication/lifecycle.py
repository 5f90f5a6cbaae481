"""This broker's state towards the active controller: the next request, and effects of responses.

Owns: nothing outside memory; no clock, no connection.
Invariants: each registration has its own incarnation id, because a controller ties state to an old
  one (a broker that shut down never joins an ISR again with the same incarnation id); the broker
  requests fencing until its newest registration is in force here and its logs are open; if the
  controller does not accept its epoch any more, the broker registers again; after stop(), it never
  registers again.
Source: KIP-631 (registration, heartbeats, controlled shutdown), KIP-966 (previous_broker_epoch),
  Kafka's BrokerLifecycleManager.
"""

from __future__ import annotations

from collections import namedtuple
from enum import Enum

from pylog.protocol.errors import ErrorCode

NO_EPOCH = -1


class Stage(Enum):
    """REGISTER: not registered. CATCH_UP: fenced. RUNNING: leads and follows. STOPPING: shutdown
    requested. STOPPED: shutdown permitted.
    """

    REGISTER = 0
    CATCH_UP = 1
    RUNNING = 2
    STOPPING = 3
    STOPPED = 4


Register = namedtuple("Register", ("incarnation_id", "previous_broker_epoch"))
Heartbeat = namedtuple("Heartbeat", (
    "broker_epoch", "current_metadata_offset", "want_fence", "want_shut_down"))

# Registration errors for which a retry may succeed without intervention.
TRANSIENT = frozenset((ErrorCode.DUPLICATE_BROKER_REGISTRATION, ErrorCode.NOT_CONTROLLER,
                       ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT))


class Lifecycle:
    """random_id: function that returns 16 bytes. previous_epoch: the broker epoch of the previous
    run if that stopped cleanly, else -1. `refusal`: error code of the last registration, None
    without an error.
    """

    def __init__(self, random_id, previous_epoch: int = NO_EPOCH):
        self.stage = Stage.REGISTER
        self.broker_epoch = NO_EPOCH
        self.refusal: int | None = None
        self._random_id = random_id
        self._previous_epoch = previous_epoch
        self._incarnation_id: bytes = random_id()
        self._must_amend = False
        self._changes = self._sent_changes = 0  # changes of the registered data: all, and sent

    @property
    def is_registered(self) -> bool:
        return self.broker_epoch != NO_EPOCH

    @property
    def is_stopping(self) -> bool:
        return self.stage in (Stage.STOPPING, Stage.STOPPED)

    def next(self, image_offset: int, ready: bool):
        """Return the next message: a Register, a Heartbeat, or None after the shutdown.

        image_offset: of the last record in force here. ready: True if the logs are open.
        """
        if self.stage is Stage.STOPPED:
            return None
        if self.stage is Stage.REGISTER or self._must_amend:
            self._sent_changes = self._changes
            return Register(self._incarnation_id, self._previous_epoch)
        # Request fencing until the broker is ready.
        behind = image_offset < self.broker_epoch or not ready
        return Heartbeat(self.broker_epoch, image_offset,
                         self.stage is Stage.CATCH_UP and behind, self.stage is Stage.STOPPING)

    def registered(self, error: int, broker_epoch: int) -> None:
        """Process the response to a registration."""
        if self.stage is not Stage.REGISTER and not self._must_amend:
            # It was sent before the broker began to stop.
            return
        self.refusal = error or None
        if not error:
            assert broker_epoch >= 0, broker_epoch
            if broker_epoch != self.broker_epoch:
                self.broker_epoch, self.stage = broker_epoch, Stage.CATCH_UP
            # Later changes were not in the request.
            self._must_amend = self._changes > self._sent_changes

    def amend(self) -> None:
        """Note a change of the registered data. It is registered again with the same incarnation
        id, and the broker keeps its state.
        """
        self._changes += 1
        self._must_amend = self.is_registered and not self.is_stopping

    def on_heartbeat_response(self, sent: Heartbeat, error: int, is_fenced: bool,
                              should_shut_down: bool) -> None:
        """Process the response to a heartbeat."""
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
        """Discard a rejected epoch and register again, unless the broker is stopping."""
        self._must_amend = False
        self._previous_epoch, self.broker_epoch = NO_EPOCH, NO_EPOCH
        if self.is_stopping:
            # A stopping broker never registers again: no client waits for its partitions.
            self.stage = Stage.STOPPED
            return
        # A new registration needs a new incarnation id.
        self._incarnation_id = self._random_id()
        self.stage = Stage.REGISTER

    def stop(self) -> None:
        """Start the controlled shutdown; next() returns None once it is permitted."""
        self._must_amend = False  # never registers again
        if not self.is_stopping:
            self.stage = Stage.STOPPING if self.is_registered else Stage.STOPPED
