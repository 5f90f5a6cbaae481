"""The controller's view of brokers, from their heartbeats; discarded when it resigns.

Owns: nothing outside memory; times are passed in, in ns.
Invariants: a broker has an entry while it is registered; a session lasts from the last heartbeat
  for the session timeout, or until end(); a broker may stop once every active broker has seen the
  records that moved its leadership; a heartbeat whose connection has closed since is not a sign of
  life, because its broker may have ended with it.
Source: Kafka's BrokerHeartbeatManager; KIP-631.
"""

from pylog.metadata.image.image import Image

NEVER = -1


class _Broker:
    __slots__ = ("epoch", "contact_ns", "metadata_offset", "stop_offset", "registered_offset",
                 "connection", "ended")

    def __init__(self, epoch: int, contact_ns: int):
        self.epoch = epoch
        self.contact_ns = contact_ns
        self.metadata_offset = NEVER
        self.stop_offset = NEVER  # of the records that moved its leadership
        self.registered_offset = epoch  # of the newest record of its registration
        self.connection = 0  # that received the newest heartbeat
        self.ended = 0  # the newest connection that closed


class Heartbeats:
    """local_id: the broker in this process, which sends no heartbeats and never times out; None
    without one.
    """

    def __init__(self, session_ns: int):
        self.local_id: int | None = None
        self._session_ns = session_ns
        self._brokers: dict[int, _Broker] = {}

    def begin(self, image: Image, now_ns: int) -> None:
        """Start as a new controller: every unfenced broker gets a session from now on."""
        for broker in image.brokers.values():
            self._brokers[broker.id] = _Broker(
                broker.epoch, NEVER if broker.fenced else now_ns)

    def record_response(self, broker_id: int, at_ns: int) -> None:
        """Limit the broker's session: its host has sent nothing since `at_ns`."""
        known = self._brokers.get(broker_id)
        if known is not None and known.contact_ns != NEVER:
            known.contact_ns = min(known.contact_ns, at_ns)

    def follow(self, image: Image) -> None:
        """Add and remove entries, so that each registered broker has one."""
        for broker_id in self._brokers.keys() - image.brokers.keys():
            del self._brokers[broker_id]
        for broker in image.brokers.values():
            known = self._brokers.get(broker.id)
            if known is None or known.epoch != broker.epoch:
                # A registration does not start a session: another registration may replace it.
                self._brokers[broker.id] = _Broker(broker.epoch, NEVER)
            elif broker.fenced:
                known.stop_offset = NEVER

    def registered(self, broker_id: int, offset: int) -> None:
        """Note the offset of the newest record of the broker's registration."""
        self._brokers[broker_id].registered_offset = offset

    def is_caught_up(self, broker_id: int, metadata_offset: int) -> bool:
        """Return True if a broker at that offset has read the newest record of its registration."""
        known = self._brokers.get(broker_id)
        return known is not None and metadata_offset >= known.registered_offset

    def came(self, broker_id: int, connection: int) -> None:
        """Note the connection that received a heartbeat; call before touch(). 0: not from the
        network.
        """
        known = self._brokers[broker_id]
        if connection != known.ended:
            known.connection = connection

    def is_connected(self, broker_id: int) -> bool:
        """Return True if the connection of the broker's newest heartbeat is open."""
        known = self._brokers.get(broker_id)
        return known is not None and known.connection not in (0, known.ended)

    def counts(self, broker_id: int, connection: int) -> bool:
        """Return True if a heartbeat on that connection is a sign of life: it has not closed since.
        """
        return connection == 0 or self._brokers[broker_id].ended != connection

    def touch(self, broker_id: int, metadata_offset: int, connection: int, now_ns: int) -> None:
        """Record an accepted heartbeat of the broker on that connection."""
        assert self.counts(broker_id, connection), (broker_id, connection)
        known = self._brokers[broker_id]
        known.contact_ns, known.metadata_offset = now_ns, metadata_offset
        known.connection = connection

    def unfenced(self, broker_id: int, now_ns: int) -> None:
        """Start a session for a broker that a heartbeat unfenced, even if its connection closes."""
        self._brokers[broker_id].contact_ns = now_ns

    def is_alive(self, broker_id: int, now_ns: int) -> bool:
        """Return True if the broker has a session."""
        if broker_id == self.local_id:
            return broker_id in self._brokers
        known = self._brokers.get(broker_id)
        return known is not None and known.contact_ns != NEVER and (
            now_ns - known.contact_ns < self._session_ns)

    def silent(self, image: Image, now_ns: int) -> list:
        """Return the ids of unfenced brokers whose session ended."""
        return [broker.id for broker in image.brokers.values()
                if not broker.fenced and not self.is_alive(broker.id, now_ns)]

    def next_end_ns(self, image: Image, now_ns: int) -> int:
        """Return the time at which the next session may end, at most one session timeout from now.
        """
        deadlines = [
            known.contact_ns + self._session_ns for broker_id, known in self._brokers.items()
            if broker_id != self.local_id and broker_id in image.brokers
            and not image.brokers[broker_id].fenced and known.contact_ns != NEVER]
        return min([*deadlines, now_ns + self._session_ns])

    def end(self, broker_id: int) -> None:
        """End the session of a broker that is proven to have stopped, before the timeout."""
        known = self._brokers.get(broker_id)
        if known is not None:
            known.contact_ns = NEVER

    def ended(self, connection: int) -> int | None:
        """Note a closed connection; return the broker whose newest heartbeat it carried, or None.
        Heartbeats of that connection no longer count.
        """
        for broker_id, known in self._brokers.items():
            if known.connection == connection:
                known.ended = connection
                return broker_id
        return None

    # ---- controlled shutdown --------------------------------------------------------------------

    def stopping(self, broker_id: int, offset: int) -> None:
        """Note the offset of a record that ends the broker's leadership."""
        known = self._brokers[broker_id]
        known.stop_offset = max(known.stop_offset, offset)

    def is_stopping(self, broker_id: int) -> bool:
        """Return True if the broker's controlled shutdown has begun. It cannot be cancelled."""
        known = self._brokers.get(broker_id)
        return known is not None and known.stop_offset != NEVER

    def may_stop(self, image: Image, broker_id: int) -> bool:
        """Return True if every other active broker has read the records that moved the leadership.
        """
        known = self._brokers[broker_id]
        return all(self._brokers[other].metadata_offset >= known.stop_offset
                   for other in image.brokers
                   if other != self.local_id and image.broker_is_active(other))
