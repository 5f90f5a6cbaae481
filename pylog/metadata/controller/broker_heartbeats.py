"""What the controller knows of brokers from their heartbeats; gone with its office.

Owns: nothing outside memory; times are passed in, in ns.
Invariants: (1) a broker is known here while it is registered; (2) a session lasts from the last
  heartbeat for the session timeout, and ends with a verdict (`end`); (3) a broker may stop once
  every active one has seen the records that took its leadership away; (4) a heartbeat whose
  connection has ended since is no sign of life: its broker may have gone with it.
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
        self.stop_offset = NEVER         # Of the records that moved its leadership (3).
        self.registered_offset = epoch   # Of the newest record of its registration.
        self.connection = 0              # On which the newest heartbeat came,
        self.ended = 0                   # and the newest one that ended.


class Heartbeats:
    """local_id: a broker in this process, which sends none and is never silent; None without."""

    def __init__(self, session_ns: int):
        self.local_id: int | None = None
        self._session_ns = session_ns
        self._brokers: dict[int, _Broker] = {}

    def begin(self, image: Image, now_ns: int) -> None:
        """A new office: who is not fenced has a session from now on."""
        for broker in image.brokers.values():
            self._brokers[broker.id] = _Broker(
                broker.epoch, NEVER if broker.fenced else now_ns)

    def last_heard(self, broker_id: int, at_ns: int) -> None:
        """Nothing has come from the broker's host since then: its session is no longer than that.
        """
        known = self._brokers.get(broker_id)
        if known is not None and known.contact_ns != NEVER:
            known.contact_ns = min(known.contact_ns, at_ns)

    def follow(self, image: Image) -> None:
        """Keeps (1)."""
        for broker_id in self._brokers.keys() - image.brokers.keys():
            del self._brokers[broker_id]
        for broker in image.brokers.values():
            known = self._brokers.get(broker.id)
            if known is None or known.epoch != broker.epoch:
                # A registration alone is no session: another may replace it.
                self._brokers[broker.id] = _Broker(broker.epoch, NEVER)
            elif broker.fenced:
                known.stop_offset = NEVER

    def registered(self, broker_id: int, offset: int) -> None:
        """The newest record of the broker's registration stands at `offset`."""
        self._brokers[broker_id].registered_offset = offset

    def is_caught_up(self, broker_id: int, metadata_offset: int) -> bool:
        """Whether a broker at that offset has seen the newest record of its registration."""
        known = self._brokers.get(broker_id)
        return known is not None and metadata_offset >= known.registered_offset

    def came(self, broker_id: int, connection: int) -> None:
        """A heartbeat of the broker, which touch() is to follow, came on that connection; 0 is none
        of the network's."""
        known = self._brokers[broker_id]
        if connection != known.ended:
            known.connection = connection

    def is_connected(self, broker_id: int) -> bool:
        """Whether the connection of the broker's newest heartbeat is open."""
        known = self._brokers.get(broker_id)
        return known is not None and known.connection not in (0, known.ended)

    def counts(self, broker_id: int, connection: int) -> bool:
        """Whether a heartbeat that came on that connection says that its broker lives (4)."""
        return connection == 0 or self._brokers[broker_id].ended != connection

    def touch(self, broker_id: int, metadata_offset: int, connection: int, now_ns: int) -> None:
        """A heartbeat of the broker that came on that connection is taken."""
        assert self.counts(broker_id, connection), (broker_id, connection)
        known = self._brokers[broker_id]
        known.contact_ns, known.metadata_offset = now_ns, metadata_offset
        known.connection = connection

    def unfenced(self, broker_id: int, now_ns: int) -> None:
        """A heartbeat has let the broker in: it has a session, whatever becomes of its connection.
        """
        self._brokers[broker_id].contact_ns = now_ns

    def is_alive(self, broker_id: int, now_ns: int) -> bool:
        """Whether the broker has a session (2)."""
        if broker_id == self.local_id:
            return broker_id in self._brokers
        known = self._brokers.get(broker_id)
        return known is not None and known.contact_ns != NEVER and (
            now_ns - known.contact_ns < self._session_ns)

    def silent(self, image: Image, now_ns: int) -> list:
        """The brokers that are not fenced and have no session."""
        return [broker.id for broker in image.brokers.values()
                if not broker.fenced and not self.is_alive(broker.id, now_ns)]

    def next_end_ns(self, image: Image, now_ns: int) -> int:
        """When the first session may end, if nobody is heard again; a session from now at most."""
        ends = [known.contact_ns + self._session_ns for broker_id, known in self._brokers.items()
                if broker_id != self.local_id and broker_id in image.brokers
                and not image.brokers[broker_id].fenced and known.contact_ns != NEVER]
        return min([*ends, now_ns + self._session_ns])

    def end(self, broker_id: int) -> None:
        """The broker is known to be gone, before its silence says so. Keeps (2)."""
        known = self._brokers.get(broker_id)
        if known is not None:
            known.contact_ns = NEVER

    def ended(self, connection: int) -> int | None:
        """A connection is gone. The broker whose newest heartbeat came on it. Keeps (4)."""
        for broker_id, known in self._brokers.items():
            if known.connection == connection:
                known.ended = connection
                return broker_id
        return None

    # ---- controlled shutdown --------------------------------------------------------------------

    def stopping(self, broker_id: int, offset: int) -> None:
        """The broker's leadership ends with the record at `offset`."""
        known = self._brokers[broker_id]
        known.stop_offset = max(known.stop_offset, offset)

    def is_stopping(self, broker_id: int) -> bool:
        """Whether a controlled shutdown of the broker has begun, which nothing but its end ends."""
        known = self._brokers.get(broker_id)
        return known is not None and known.stop_offset != NEVER

    def may_stop(self, image: Image, broker_id: int) -> bool:
        """Keeps (3)."""
        known = self._brokers[broker_id]
        return all(self._brokers[other].metadata_offset >= known.stop_offset
                   for other in image.brokers
                   if other != self.local_id and image.broker_is_active(other))
