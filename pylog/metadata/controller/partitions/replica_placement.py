"""Places the replicas of new partitions: striped over racks, and over the brokers of each rack.

Owns: nothing.
Invariants: a partition's replicas are on different brokers, and on as many racks as possible;
  fenced brokers come last in their rack, and never first in a partition; a broker that is stopping,
  or whose log directories are all cordoned, gets no replicas.
Source: Kafka's StripedReplicaPlacer; KIP-36 (racks), KIP-1066 (cordoned directories).
"""

from pylog.metadata.image.image import Image
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode


def place(image: Image, count: int, factor: int, random) -> list:
    """Return replica lists for `count` partitions with `factor` replicas. random: a random.Random.

    Raises Refusal if there are too few brokers.
    """
    racks = _Racks(image, random)
    _check(racks, factor)
    return [racks.place(factor) for _ in range(count)]


def _check(racks, factor: int) -> None:
    if factor > racks.size:
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR,
                      f"Unable to replicate the partition {factor} time(s): The target "
                      f"replication factor of {factor} cannot be reached because only "
                      f"{racks.size} broker(s) are registered or some brokers have all their "
                      "log directories cordoned.")
    if not racks.active:
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR,
                      f"Unable to replicate the partition {factor} time(s): All brokers are "
                      "currently fenced, or have all their log directories cordoned.")


class _Stripe:
    """Brokers of one rack; each partition takes them in order, from the next start position."""

    def __init__(self, ids, random):
        self.ids = list(ids)
        self.start = 0
        self.shuffle(random)

    def shuffle(self, random) -> None:
        random.shuffle(self.ids)
        self.used_count, self.turn = 0, -1

    def next(self, turn: int):
        """Return the next broker of this turn, None after the last."""
        if self.turn != turn:
            self.turn, self.used_count = turn, 0
            self.start = (self.start + 1) % max(len(self.ids), 1)
        if self.used_count >= len(self.ids):
            return None
        found = self.ids[(self.used_count + self.start) % len(self.ids)]
        self.used_count += 1
        return found


class _Racks:
    def __init__(self, image: Image, random):
        racks: dict = {}
        for broker in image.brokers.values():
            # Stopping and cordoned brokers get no new replicas.
            if not broker.in_controlled_shutdown and image.takes_replicas(broker.id):
                racks.setdefault(broker.rack or "", ([], []))[broker.fenced].append(broker.id)
        self._random = random
        self._racks = [tuple(_Stripe(sorted(ids), random) for ids in racks[name])
                       for name in sorted(racks)]
        self.size = sum(len(stripe.ids) for rack in self._racks for stripe in rack)
        self.active = sum(len(active.ids) for active, _ in self._racks)
        self._turn = 0
        self._first = random.randrange(max(len(self._racks), 1))

    def place(self, factor: int) -> tuple:
        """Return one partition's replicas."""
        if self._turn == self.active and self.active > 1:
            # All start positions were used. Shuffle, so that the same brokers do not always follow
            # each other.
            self._random.shuffle(self._racks)
            for rack in self._racks:
                for stripe in rack:
                    stripe.shuffle(self._random)
            self._turn = 0
        count, turn = len(self._racks), self._turn
        self._first %= count
        at, leader = self._first, None
        while leader is None:  # Fenced brokers never come first.
            leader = self._racks[at][0].next(turn)
            at += 1
            if at == count:
                at = 0
        led = (at - 1) % count
        replicas, rack = [leader], self._first
        while len(replicas) < factor:
            found = None
            if rack == led:
                led = -1  # This rack has already placed its first replica.
            else:
                found = _next(self._racks[rack], turn)
            rack = (rack + 1) % count
            if found is not None:
                replicas.append(found)
        self._turn += 1
        self._first += 1
        return tuple(replicas)


def _next(rack, turn: int):
    """Return the next active broker of a rack, then the next fenced one."""
    found = rack[0].next(turn)
    return rack[1].next(turn) if found is None else found
