"""Sequences, epochs and producer ids, one test each.

The expected codes are those of Apache Kafka 4.3.
"""

import itertools
import random
import time

import pytest

from tests.fixtures.brokers import Brokerd
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection, batch, record
from tests.wire.talk import create_topic, fetch, produce, unique

OK, LOADING, INVALID_REQUEST, OUT_OF_ORDER = 0, 14, 42, 45
STALE_EPOCH, BAD_TIMEOUT, INVALID = 47, 50, 87
SEQUENCE_MAX = 2**31 - 1
_NEXT_ID = itertools.count(random.randrange(1 << 40, 1 << 41))


def _new_id(connection: Connection) -> dict:
    """Return a new producer id; Kafka returns error 14 while it fetches its next block of ids."""
    for _ in range(200):
        answer = ask(connection, raw.INIT_PRODUCER_ID, 4, transactional_id=None,
                     transaction_timeout=60000, producer_id=-1, producer_epoch=-1)
        if answer["error_code"] != LOADING:
            break
        time.sleep(0.01)
    assert answer["error_code"] == OK, answer
    return answer


class Producer:
    """One producer id, one partition, one connection."""

    def __init__(self, target, topic: str, producer_id: int | None = None):
        self.connection = Connection(target.port)
        self.topic = topic
        if producer_id is None:
            answer = _new_id(self.connection)
            self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        else:
            self.producer_id, self.epoch = producer_id, 0

    def send(self, sequence: int, count: int = 1, epoch: int | None = None,
             value: bytes = b"v") -> tuple[int, int]:
        """Produce one batch and return (error code, base offset)."""
        rows = [record(value=value, offset_delta=number) for number in range(count)]
        row = produce(self.connection, self.topic, batch(
            rows, producer_id=self.producer_id, base_sequence=sequence,
            producer_epoch=self.epoch if epoch is None else epoch))
        return row["error_code"], row["base_offset"]

    def log_end(self) -> int:
        return fetch(self.connection, self.topic)["high_watermark"]


@pytest.fixture
def topic(target) -> str:
    name = unique("sequences")
    create_topic(target.port, name)
    return name


@pytest.fixture
def producer(target, topic):
    producer = Producer(target, topic)
    yield producer
    producer.connection.close()


def test_140_retries_of_the_last_five_batches_get_their_first_offset(producer):
    first = {sequence: producer.send(sequence, 3)[1] for sequence in range(0, 15, 3)}
    assert sorted(first.values()) == [0, 3, 6, 9, 12]
    for sequence, offset in first.items():
        assert producer.send(sequence, 3) == (OK, offset)
    assert producer.log_end() == 15


def test_141_the_same_sequence_with_another_payload_is_a_duplicate_too(producer):
    assert producer.send(0) == (OK, 0)
    assert producer.send(0, value=b"another") == (OK, 0)
    assert producer.log_end() == 1


def test_142_a_duplicate_older_than_five_batches_is_out_of_order(producer):
    for sequence in range(6):
        producer.send(sequence)
    assert producer.send(0)[0] in (OUT_OF_ORDER, 46)
    assert producer.log_end() == 6


@pytest.mark.parametrize("sequence", [2, 5, SEQUENCE_MAX])
def test_143_a_gap_is_out_of_order(producer, sequence):
    assert producer.send(0) == (OK, 0)
    assert producer.send(sequence)[0] == OUT_OF_ORDER
    assert producer.send(1) == (OK, 1)


def test_143_a_new_epoch_must_begin_with_sequence_0(producer):
    assert producer.send(0) == (OK, 0)
    assert producer.send(1, epoch=producer.epoch + 1)[0] == OUT_OF_ORDER
    assert producer.send(0, epoch=producer.epoch + 1) == (OK, 1)


def test_143_part_of_a_known_batch_is_out_of_order(producer):
    assert producer.send(0, 4) == (OK, 0)
    for sequence, count in ((0, 3), (1, 3), (0, 5), (2, 4)):
        assert producer.send(sequence, count)[0] == OUT_OF_ORDER, (sequence, count)
    assert producer.log_end() == 4


def test_144_an_older_epoch_is_fenced(producer):
    assert producer.send(0, epoch=3) == (OK, 0)
    assert producer.send(1, epoch=2)[0] == STALE_EPOCH
    assert producer.send(0, epoch=0)[0] == STALE_EPOCH
    assert producer.send(1, epoch=3) == (OK, 1)


def test_145_epoch_three_ahead_is_accepted(producer):
    assert producer.send(0) == (OK, 0)
    assert producer.send(0, epoch=producer.epoch + 3) == (OK, 1)


@pytest.mark.parametrize("sequence", [0, 1, 77, SEQUENCE_MAX])
def test_146_an_unknown_producer_may_begin_anywhere(target, topic, sequence):
    stranger = Producer(target, topic, next(_NEXT_ID))
    assert stranger.send(sequence) == (OK, 0)
    following = 0 if sequence == SEQUENCE_MAX else sequence + 1
    assert stranger.send(following) == (OK, 1)
    assert stranger.send(sequence) == (OK, 0)


def test_146_a_batch_may_wrap_the_sequence(target, topic):
    stranger = Producer(target, topic, next(_NEXT_ID))
    assert stranger.send(SEQUENCE_MAX - 1, 4) == (OK, 0)
    assert stranger.send(SEQUENCE_MAX - 1, 4) == (OK, 0)
    assert stranger.send(2) == (OK, 4)


def test_147_a_producer_id_without_a_sequence_is_invalid(producer):
    assert producer.send(-1)[0] == INVALID
    assert producer.log_end() == 0


@pytest.mark.parametrize("timeout_ms", [0, -1, 900001, 2**31 - 1])
def test_149_a_transaction_timeout_out_of_range_is_error_50(target, timeout_ms):
    with Connection(target.port) as connection:
        answer = _init(connection, unique("txn"), timeout_ms)
    assert answer["error_code"] == BAD_TIMEOUT


def test_151_an_empty_transactional_id_is_error_42(target):
    with Connection(target.port) as connection:
        assert _init(connection, "", 60000)["error_code"] == INVALID_REQUEST


def _init(connection: Connection, transactional_id: str, timeout_ms: int) -> dict:
    return ask(connection, raw.INIT_PRODUCER_ID, 4, transactional_id=transactional_id,
               transaction_timeout=timeout_ms, producer_id=-1, producer_epoch=-1)


def test_161_two_thousand_producer_ids_on_one_connection_are_unique(target):
    with Connection(target.port) as connection:
        ids = [_new_id(connection)["producer_id"] for _ in range(2000)]
    assert len(set(ids)) == 2000


def test_producers_of_one_partition_have_separate_sequences(target, topic):
    left, right = Producer(target, topic), Producer(target, topic)
    assert left.producer_id != right.producer_id
    for sequence in range(3):
        assert left.send(sequence) == (OK, 2 * sequence)
        assert right.send(sequence) == (OK, 2 * sequence + 1)
    assert left.send(2) == (OK, 4) and right.send(2) == (OK, 5)


def test_duplicates_pipelined_on_one_connection_are_stored_once(target, topic):
    producer = Producer(target, topic)
    requests = []
    for number, sequence in enumerate([0, 0, 1, 1, 2, 0, 1, 2]):
        payload = batch(producer_id=producer.producer_id, producer_epoch=producer.epoch,
                        base_sequence=sequence)
        body = raw.produce_body(8, topic, [(0, payload)])
        requests.append(raw.frame(raw.header(raw.PRODUCE, 8, number) + body))
    producer.connection.send(b"".join(requests))
    for number in range(len(requests)):
        producer.connection.answer(raw.PRODUCE, 8, number)
    assert producer.log_end() == 3


@pytest.mark.parametrize("end", [Brokerd.stop, Brokerd.kill])
def test_batches_in_flight_during_a_restart_get_their_offsets(tmp_path, end):
    counts = range(1, 6)
    with Brokerd(tmp_path) as broker:
        with Connection(broker.port) as connection:
            producer_id = _new_id(connection)["producer_id"]
        names = {count: unique(f"in-flight-{count}") for count in counts}
        for count, name in names.items():
            create_topic(broker.port, name)
            others = Producer(broker, name, producer_id=producer_id + 1)
            for sequence in range(10):
                assert others.send(sequence) == (OK, sequence)
            mine = Producer(broker, name, producer_id=producer_id)
            for sequence in range(count):
                assert mine.send(sequence) == (OK, 10 + sequence)
            others.connection.close()
            mine.connection.close()
        end(broker)
        broker.start()
        for count, name in names.items():
            again = Producer(broker, name, producer_id=producer_id)
            answered = [again.send(sequence) for sequence in range(count)]
            assert answered == [(OK, 10 + sequence) for sequence in range(count)]
            assert again.send(count) == (OK, 10 + count)
            again.connection.close()
