"""Load on exactly-once: the cost of transactions for producers and consumers, and their maximum
rate.

Owns: its producers and consumers (librdkafka's) while a load runs.
Invariants: a record or a commit that fails ends the load; compared variants (with transactions and
  without, aborted records skipped and read) alternate on one broker, and the median counts; broker
  CPU is read around the client's work.
"""

import threading
import time
from collections.abc import Callable
from statistics import median

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from bench.loads import GB, LoadFailed, create_topic

TURNS = 5
PARTITIONS = 6
VALUE = bytes(range(256)) * 4
WRITE_S = 3.0
TRANSACTION_S = 0.1
PRODUCERS, COMMITS_S = 10, 6.0
# A log with one fifth aborted: records per transaction, transactions.
READ_RECORDS, READ_TRANSACTIONS = 1000, 300
ABORTED_EACH = 5
WAIT_S = 60.0
SETTINGS = {"acks": "all", "enable.idempotence": True, "linger.ms": 5, "log_level": 0,
            "queue.buffering.max.messages": 1_000_000, "transaction.timeout.ms": 60_000}


def _producer(broker, transactional_id: str = "", **more) -> Producer:
    own = {"transactional.id": transactional_id} if transactional_id else {}
    made = Producer({"bootstrap.servers": broker.bootstrap, **SETTINGS, **own, **more})
    if transactional_id:
        made.init_transactions(WAIT_S)
    return made


def _refused(error, message) -> None:
    """End the load if a record failed."""
    if error is not None:
        raise LoadFailed(f"a record is refused: {error}")


def _put(producer: Producer, topic: str) -> None:
    while True:
        try:
            producer.produce(topic, VALUE, on_delivery=_refused)
            return
        except BufferError:
            producer.poll(0.01)


def writing(broker) -> dict:
    """Write 1 KiB records in transactions of 100 ms, and without: CPU seconds per GB."""
    create_topic(broker, "written", PARTITIONS, {"retention.bytes": "200000000"})
    plain, inside = _producer(broker), _producer(broker, "writer")
    work: dict[str, Callable[[], int]] = {"idempotent": lambda: _write(plain),
                                          "transactional": lambda: _write_inside(inside)}
    spent: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(TURNS):
        for name in list(work)[::1 if turn % 2 else -1]:  # Alternate the order.
            before = broker.cpu_seconds()
            count = work[name]()
            spent[name].append((broker.cpu_seconds() - before) / (count * len(VALUE) / GB))
    return {f"{name}_cpu_s_per_gb": median(rows) for name, rows in spent.items()}


def _write(producer: Producer) -> int:
    count, end_s = 0, time.monotonic() + WRITE_S
    while time.monotonic() < end_s:
        for _ in range(1000):
            _put(producer, "written")
        count += 1000
        producer.poll(0)
    if producer.flush(WAIT_S):
        raise LoadFailed("records without an answer")
    return count


def _write_inside(producer: Producer) -> int:
    count, end_s = 0, time.monotonic() + WRITE_S
    while (now_s := time.monotonic()) < end_s:
        producer.begin_transaction()
        while time.monotonic() < now_s + TRANSACTION_S:
            for _ in range(100):
                _put(producer, "written")
            count += 100
            producer.poll(0)
        producer.commit_transaction(WAIT_S)
    return count


def committing(broker) -> dict:
    """Commit transactions of one record, by ten producers in parallel."""
    topic = f"single-{time.monotonic_ns()}"   # Kafka gets the load untimed first.
    create_topic(broker, topic, PARTITIONS)
    producers = [_producer(broker, f"single-{number}", **{"linger.ms": 0})
                 for number in range(PRODUCERS)]
    done, failures = [0] * PRODUCERS, []
    start = threading.Barrier(PRODUCERS + 1)

    def work(number: int) -> None:
        producer = producers[number]
        start.wait()
        end_s = time.monotonic() + COMMITS_S
        try:
            while time.monotonic() < end_s:
                producer.begin_transaction()
                producer.produce(topic, b"v", on_delivery=_refused)
                producer.commit_transaction(WAIT_S)
                done[number] += 1
        except (KafkaException, LoadFailed) as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    before, begin_s = broker.cpu_seconds(), time.monotonic()
    start.wait()
    for thread in threads:
        thread.join()
    seconds, used = time.monotonic() - begin_s, broker.cpu_seconds() - before
    if failures:
        raise LoadFailed(f"a transaction failed: {failures[0]}")
    return {"per_s": sum(done) / seconds, "cpu_ms": used / sum(done) * 1000}


def reading(broker) -> dict:
    """Read a log with a fifth of its records aborted, including and skipping them: CPU seconds per
    GB.
    """
    create_topic(broker, "read", 1)
    producer = _producer(broker, "filler")
    for number in range(READ_TRANSACTIONS):
        producer.begin_transaction()
        for _ in range(READ_RECORDS):
            _put(producer, "read")
        if number % ABORTED_EACH:
            producer.commit_transaction(WAIT_S)
        else:
            producer.flush(WAIT_S)  # Otherwise the abort discards them before they are written.
            producer.abort_transaction(WAIT_S)
    whole = READ_TRANSACTIONS * READ_RECORDS
    wanted = {"read_uncommitted": whole, "read_committed": whole - whole // ABORTED_EACH}
    spent: dict[str, list[float]] = {name: [] for name in wanted}
    for turn in range(TURNS):
        for name in list(wanted)[::1 if turn % 2 else -1]:  # Alternate the order.
            before = broker.cpu_seconds()
            _read(broker, name, wanted[name])
            # The broker sends all bytes in both cases: the client skips aborted records.
            spent[name].append((broker.cpu_seconds() - before) / (whole * len(VALUE) / GB))
    return {f"{name}_cpu_s_per_gb": median(rows) for name, rows in spent.items()}


def _read(broker, isolation: str, wanted: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none", "log_level": 0,
                         "isolation.level": isolation, "enable.auto.commit": False})
    consumer.assign([TopicPartition("read", 0, 0)])
    got, end_s = 0, time.monotonic() + WAIT_S
    while got < wanted:
        if time.monotonic() > end_s:
            raise LoadFailed(f"{isolation}: {got} records of {wanted}")
        got += len(consumer.consume(10_000, 0.5))
    consumer.close()
    if got != wanted:
        raise LoadFailed(f"{isolation}: {got} records instead of {wanted}")
