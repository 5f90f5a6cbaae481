"""Random valid requests, the same sequence to Apache Kafka and to brokerd, every response compared.

They follow --seed; --seed random explores further. Producers repeat, skip, reorder and bump epochs;
fetches use sessions, limits and every version; ListOffsets requests use any timestamp.
"""

import random

import pytest

from tests.wire import raw
from tests.wire.mixed import BASE_MS
from tests.wire.raw import batch, record
from tests.wire.sides import Side, compare, fetch, produce

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(200)]
PARTITIONS = 3
STEPS = 400


class _Producers:
    """Idempotent producers of one topic: the next sequence on each partition."""

    def __init__(self, generator: random.Random, base: int):
        self.random = generator
        self.next = {(base + number, partition): 0 for number in range(3)
                     for partition in range(PARTITIONS)}
        self.epochs = {base + number: 0 for number in range(3)}
        self.sent: list[tuple[int, bytes]] = []

    def batch(self, partition: int) -> bytes:
        """Return mostly the next batch; sometimes a repetition, a gap, an older or a newer epoch.
        """
        draw = self.random.random()
        if draw < 0.15 and self.sent:
            return self.random.choice(self.sent[-12:])[1]
        identity = self.random.choice(list(self.epochs))
        epoch = self.epochs[identity]
        sequence = self.next[identity, partition]
        count = self.random.randint(1, 6)
        if draw < 0.22:
            sequence += self.random.choice([-3, -1, 1, 5])
        elif draw < 0.26:
            epoch -= 1
        elif draw < 0.30:
            self.epochs[identity] = epoch = epoch + self.random.choice([1, 2])
            for key in self.next:
                if key[0] == identity:
                    self.next[key] = 0
            sequence = self.random.choice([0, 0, 0, 4])
        else:
            self.next[identity, partition] = sequence + count
        rows = [record(b"k%d" % number, self.random.randbytes(self.random.randrange(300)),
                       offset_delta=number, timestamp_delta=number) for number in range(count)]
        base_ms = BASE_MS + self.random.randrange(-50, 50) * 1000
        data = batch(rows, codec=self.random.randrange(5), base_timestamp=base_ms,
                     max_timestamp=base_ms + count - 1, producer_id=identity,
                     producer_epoch=max(-1, epoch), base_sequence=max(-1, sequence))
        self.sent.append((partition, data))
        return data


def _plain_batch(generator: random.Random) -> bytes:
    count = generator.randint(1, 20)
    base_ms = BASE_MS + generator.randrange(-50, 50) * 1000
    rows = [record(None, generator.randbytes(generator.randrange(200)), offset_delta=number,
                   timestamp_delta=generator.randrange(5000)) for number in range(count)]
    return batch(rows, codec=generator.randrange(5), base_timestamp=base_ms,
                 max_timestamp=base_ms + 5000)


def _cells(generator: random.Random) -> list[dict]:
    chosen = generator.sample(range(PARTITIONS), generator.randint(1, PARTITIONS))
    return [{"partition": partition,
             "fetch_offset": generator.choice([0, 0, generator.randrange(200), -1, 10**6]),
             "partition_max_bytes": 1 << 20,
             "current_leader_epoch": generator.choice([-1, -1, -1, 0, 0, 5])}
            for partition in chosen]


def _walk(side: Side, seed: int, base: int) -> None:
    generator = random.Random(seed)
    topic = side.topic("walked", PARTITIONS, retention_ms=-1, segment_bytes=1 << 20,
                       index_interval_bytes=700)
    producers = _Producers(generator, base)
    sessions: dict[int, list] = {}
    for step in range(STEPS):
        draw = generator.random()
        if draw < 0.45:
            partition = generator.randrange(PARTITIONS)
            data = producers.batch(partition) if generator.random() < 0.6 \
                else _plain_batch(generator)
            version = generator.randrange(7, 14)  # zstd starts with 7
            where = side.id_of(topic) if version >= 13 else topic
            produce(side, f"{step} produce", version, [(where, [(partition, data)])],
                    acks=generator.choice([-1, 1]))
        elif draw < 0.65:
            version = generator.randrange(4, 19)
            fetch(side, f"{step} fetch v{version}", version, [(topic, _cells(generator))],
                  isolation=generator.randrange(2))
        elif draw < 0.85:
            _session_step(side, generator, f"{step} session", topic, sessions)
        else:
            version = generator.randrange(1, 12)
            timestamp = generator.choice([-1, -2, -3, BASE_MS + generator.randrange(-60000, 60000)])
            side.ask(f"{step} offsets v{version} {timestamp - BASE_MS}", raw.LIST_OFFSETS, version,
                     replica_id=-1, timeout=1000, isolation_level=0, topics=[{
                         "name": topic, "partitions": [
                             {"partition_index": generator.randrange(PARTITIONS),
                              "timestamp": timestamp}]}])
    fetch(side, "all", 12, [(topic, [{"partition": partition, "partition_max_bytes": 1 << 26}
                                     for partition in range(PARTITIONS)])])


def _session_step(side: Side, generator: random.Random, label: str, topic: str,
                  sessions: dict) -> None:
    """One step of one of three sessions: [session id, next epoch] by version."""
    version = generator.choice([7, 12, 16])
    rows = [(topic, _cells(generator))] if generator.random() < 0.6 else []
    known = sessions.get(version)
    if known is None or generator.random() < 0.05:
        answer = fetch(side, f"{label} new v{version}", version, rows, session_epoch=0)
        sessions[version] = [answer["session_id"], 1] if answer["session_id"] else None
        return
    forgotten = []
    if generator.random() < 0.15:
        forgotten = [(topic, [generator.randrange(PARTITIONS)])]
    epoch = known[1] + (7 if generator.random() < 0.05 else 0)
    answer = fetch(side, f"{label} v{version}", version, rows, session_id=known[0],
                   session_epoch=epoch, forgotten=forgotten)
    if answer["error_code"] == 0:
        known[1] += 1
    else:
        sessions[version] = None


@pytest.mark.parametrize("turn", [0, 1, 2, pytest.param(30, marks=pytest.mark.slow)])
def test_random_requests_match_kafka(kafka, target, random_source, turn):
    for _ in range(max(1, turn)):
        seed = random_source.randrange(1 << 31)
        base = random_source.randrange(1 << 40, 1 << 50)
        try:
            compare(kafka, target, _walk, seed, base)
        except AssertionError as difference:
            raise AssertionError(f"seed {seed}: {difference}") from None
