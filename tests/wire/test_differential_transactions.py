"""Random walks over transactions: the same valid and invalid calls to Apache Kafka and to brokerd,
every response compared.

They follow --seed; --seed random explores further. Producer ids and epochs are sometimes wrong,
versions old and new. Each call waits until the previous end of a transaction is complete.
"""

import random
import time

import pytest

from pylog.protocol import codec, messages
from tests.wire import raw
from tests.wire.messages import ask, decode
from tests.wire.raw import Connection
from tests.wire.talk import create_topic, unique

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
INIT, ADD, ADD_OFFSETS, END, COMMIT, DESCRIBE, LIST = 22, 24, 25, 26, 28, 65, 66
OFFSET_FETCH, FIND = 9, 10
STEPS = 60
BUSY, LOADING, NOT_COORDINATOR, NOT_AVAILABLE = 51, 14, 16, 15
TIMEOUT_MS = 60_000


class Walk:
    """One side: a topic, transactional ids, and the state of their producers."""

    def __init__(self, port: int, picks: random.Random):
        self.port = port
        self.picks = picks
        self.topic, self.group = unique("txn"), unique("group")
        create_topic(port, self.topic, 2)
        self.ids = [unique("id") for _ in range(2)]
        self.producers: dict[str, list[int]] = {}      # id -> [producer id, epoch]
        self.sequences: dict[tuple, int] = {}
        self.known: list[int] = []  # producer ids in the order of their assignment
        self.connection = Connection(port, wait_s=20)
        self.answers: list[tuple] = []
        for key, kind in [(id_, 1) for id_ in self.ids] + [(self.group, 0)]:
            self._until(FIND, 4, lambda answer: answer["coordinators"][0]["error_code"],
                        coordinator_keys=[key], key_type=kind)

    def _until(self, key, version, error_of, **fields):
        """Retry while the coordinator is not ready."""
        end_s = time.monotonic() + 20
        while True:
            answer = ask(self.connection, key, version, **fields)
            if error_of(answer) not in (BUSY, LOADING, NOT_COORDINATOR, NOT_AVAILABLE):
                return answer
            assert time.monotonic() < end_s, answer
            time.sleep(0.02)

    def name_of(self, producer_id: int) -> int:
        if producer_id < 0:
            return producer_id
        if producer_id not in self.known:
            self.known.append(producer_id)
        return self.known.index(producer_id)

    def note(self, *row) -> None:
        self.answers.append(row)

    def step(self) -> None:
        picks = self.picks
        id_ = picks.choice(self.ids)
        producer_id, epoch = self.producers.get(id_, (10**6, 0))
        wrong = picks.random()
        if wrong < 0.06:
            epoch = max(0, epoch + picks.choice((-1, 1)))
        elif wrong < 0.1:
            producer_id += 10**7
        call = picks.choices(
            (self.init, self.add, self.produce, self.end, self.offsets, self.describe),
            (2, 4, 6, 5, 3, 1))[0]
        call(id_, producer_id, epoch)

    def init(self, id_, producer_id, epoch) -> None:
        goes_on = self.picks.random() < 0.4
        version = self.picks.randrange(3 if goes_on else 0, 6)
        answer = self._until(
            INIT, version, lambda answer: answer["error_code"], transactional_id=id_,
            transaction_timeout=TIMEOUT_MS,
            producer_id=producer_id if goes_on else -1, producer_epoch=epoch if goes_on else -1)
        if answer["error_code"] == 0:
            self.producers[id_] = [answer["producer_id"], answer["producer_epoch"]]
        self.note("init", version, answer["error_code"], self.name_of(answer["producer_id"]),
                  answer["producer_epoch"])

    def add(self, id_, producer_id, epoch) -> None:
        version = self.picks.randrange(4)
        partitions = self.picks.choice(([0], [1], [0, 1], [0, 7]))
        answer = ask(self.connection, ADD, version, v3_and_below_transactional_id=id_,
                     v3_and_below_producer_id=producer_id, v3_and_below_producer_epoch=epoch,
                     v3_and_below_topics=[{"name": self.topic, "partitions": partitions}])
        rows = answer["results_by_topic_v3_and_below"]
        self.note("add", version, sorted(
            (cell["partition_index"], cell["partition_error_code"])
            for row in rows for cell in row["results_by_partition"]))

    def produce(self, id_, producer_id, epoch) -> None:
        version, partition = self.picks.choice((8, 11, 12)), self.picks.randrange(2)
        at = producer_id, epoch, partition
        sequence = self.sequences.get(at, 0)
        if self.picks.random() < 0.05:
            sequence += 1
        batch = raw.batch(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
                          attributes=raw.TRANSACTIONAL)
        body = raw.produce_body(version, self.topic, [(partition, batch)], transactional_id=id_)
        answer = decode(raw.PRODUCE, version, self.connection.call(raw.PRODUCE, version, body))
        row = answer["responses"][0]["partition_responses"][0]
        if row["error_code"] == 0:
            self.sequences[at] = sequence + 1
        self.note("produce", version, row["error_code"], row["base_offset"])

    def end(self, id_, producer_id, epoch) -> None:
        version, committed = self.picks.randrange(6), self.picks.random() < 0.6
        answer = ask(self.connection, END, version, transactional_id=id_, producer_id=producer_id,
                     producer_epoch=epoch, committed=committed)
        if answer["error_code"] == 0 and version >= 5:
            self.producers[id_] = [answer["producer_id"], answer["producer_epoch"]]
        self.note("end", version, committed, answer["error_code"],
                  self.name_of(answer.get("producer_id", -1)), answer.get("producer_epoch"))
        self._settle(id_)

    def _settle(self, id_) -> None:
        """Wait for the markers."""
        end_s = time.monotonic() + 20
        while True:
            row = self.described(id_)
            if not row.transaction_state.startswith("Prepare"):
                return
            assert time.monotonic() < end_s, row
            time.sleep(0.01)

    def described(self, id_):
        """Use our own codec: kio accepts no times before 1970, such as -1."""
        body = codec.encode_request(DESCRIBE, 0, messages.DescribeTransactionsRequest(
            transactional_ids=[id_]))
        answer = self.connection.call(DESCRIBE, 0, body)
        return codec.decode_response(DESCRIBE, 0, answer).transaction_states[0]

    def offsets(self, id_, producer_id, epoch) -> None:
        if self.picks.random() < 0.6:
            version = self.picks.randrange(5)
            answer = self._until(
                ADD_OFFSETS, version, lambda answer: answer["error_code"], transactional_id=id_,
                producer_id=producer_id, producer_epoch=epoch, group_id=self.group)
            self.note("add offsets", version, answer["error_code"])
        version, offset = self.picks.randrange(6), self.picks.randrange(100)
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        answer = self._until(
            COMMIT, version, lambda answer: answer["topics"][0]["partitions"][0]["error_code"],
            transactional_id=id_, group_id=self.group, producer_id=producer_id,
            producer_epoch=epoch, **(member if version >= 3 else {}),
            topics=[{"name": self.topic, "partitions": [
                {"partition_index": self.picks.randrange(3), "committed_offset": offset,
                 "committed_metadata": ""}]}])
        self.note("offsets", version, answer["topics"][0]["partitions"][0]["error_code"])

    def describe(self, id_, *_) -> None:
        row = self.described(id_)
        self.note("describe", row.error_code, row.transaction_state,
                  self.name_of(row.producer_id), row.producer_epoch,
                  [(topic.topic[:3], sorted(topic.partitions))
                   for topic in row.topics if not topic.topic.startswith("__")])
        rows = ask(self.connection, LIST, 1, state_filters=[], producer_id_filters=[],
                   duration_filter=-1)["transaction_states"]
        self.note("list", [(self.ids.index(row["transactional_id"]), row["transaction_state"])
                           for row in sorted(rows, key=lambda row: row["transactional_id"])
                           if row["transactional_id"] in self.ids])

    def look(self) -> None:
        """Store a consumer's results."""
        for stable in (False, True):
            answer = self._until(
                OFFSET_FETCH, 7, lambda answer: answer["error_code"], group_id=self.group,
                topics=[{"name": self.topic, "partition_indexes": [0, 1]}], require_stable=stable)
            self.note("fetched", stable, sorted(
                (cell["partition_index"], cell["committed_offset"], cell["error_code"])
                for cell in answer["topics"][0]["partitions"]))
        for isolation in (0, 1):
            answer = ask(self.connection, raw.LIST_OFFSETS, 5, replica_id=-1,
                         isolation_level=isolation, topics=[{"name": self.topic, "partitions": [
                             {"partition_index": index, "current_leader_epoch": -1,
                              "timestamp": -1} for index in range(2)]}])
            self.note("ends", isolation, sorted(
                (cell["partition_index"], cell["offset"])
                for cell in answer["topics"][0]["partitions"]))


def walked(port: int, seed: int) -> list[tuple]:
    walk = Walk(port, random.Random(seed))
    with walk.connection:
        for number in range(STEPS):
            walk.step()
            if number % 10 == 9:
                walk.look()
    return walk.answers


# Slow because of Kafka: on a busy machine it sometimes responds that it is not ready after it has
# changed its state, and the walks diverge.
@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_random_transaction_requests_match_kafka(kafka, brokerd, random_source, number):
    seed = random_source.randrange(1 << 30)
    ours, theirs = walked(brokerd.port, seed), walked(kafka.port, seed)
    for step, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        assert our == their, (step, ours[max(0, step - 12):step])
