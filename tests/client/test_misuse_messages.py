"""Fifteen common mistakes: each raises at once and names the fault, the value and the remedy."""

import asyncio
import re
import subprocess
import sys
import threading
import time

import pytest

from pylog.client import Admin, Consumer, Producer, aio, errors, scan
from pylog.client.serialization.avro import Avro, avro_column
from pylog.client.serialization.jsonvalues import json_column, json_rows
from tests.client.support import new_name, new_topic

NO_TOPICS = ('the consumer has no topics to poll: call subscribe(["topic"]) or '
             'assign([TopicPartition("topic", 0)]) first')
PATTERN = ("'order*' is not a topic name: allowed are letters, digits, '.', '_' and '-'. To "
           "subscribe to all topics that match, pass a regular expression: "
           "subscribe(pattern='^order.*')")
NOT_INITIALIZED = ("the transactional producer is not initialized: call init_transactions() once, "
                   "then begin_transaction(), or use `with producer.transaction():`")
NOT_STARTED = ("the {0} is not started: use `async with {1}(…) as {2}:`, or `await {2}.start()` "
               "first")
PRODUCER_NOT_STARTED = NOT_STARTED.format("producer", "Producer", "producer")
MISSING_ARROW = ("{} needs {}, which is not installed: run pip install 'pylog-broker[arrow]'")


def message(failure) -> str:
    return str(failure.value)


@pytest.fixture
def consumer(brokerd):
    with Consumer(bootstrap_servers=brokerd.bootstrap, group_id=new_name("g")) as made:
        yield made


# ---- 1: a str where a list is expected. tests/client/test_misuse.py covers every call.


def test_a_str_for_a_list_of_topics_is_rejected(brokerd):
    with Admin(bootstrap_servers=brokerd.bootstrap) as admin:
        with pytest.raises(TypeError) as failure:
            admin.delete_topics("abc")
    assert message(failure) == "names takes a list, not 'abc': pass ['abc']"


# ---- 2: one consumer in two threads


def test_a_consumer_that_two_threads_poll_raises_in_the_second(brokerd, consumer):
    consumer.subscribe([new_topic(brokerd)])
    outcome = []

    def poll() -> None:
        try:
            outcome.append(consumer.poll(60.0))
        except errors.WakeupError as woken:
            outcome.append(woken)

    first = threading.Thread(target=poll)
    first.start()
    while not consumer._core.polling:
        time.sleep(0.01)
    with pytest.raises(errors.ConcurrentUseError) as failure:
        consumer.poll(1.0)
    consumer.wakeup()
    first.join(30.0)
    assert [type(one) for one in outcome] == [errors.WakeupError]
    assert message(failure) == (
        "another thread is using this consumer: use one consumer per thread. Only wakeup() and "
        "close() may be called from other threads")


# ---- 3: a poll without topics, and a pattern given as a name


@pytest.mark.parametrize("poll", [
    Consumer.poll, Consumer.poll_arrow, Consumer.poll_numpy, Consumer.poll_columns,
    lambda consumer: next(iter(consumer))])
def test_a_poll_without_topics_raises(consumer, poll):
    with pytest.raises(errors.IllegalStateError) as failure:
        poll(consumer)
    assert message(failure) == NO_TOPICS


def test_a_poll_after_unsubscribe_raises(brokerd, consumer):
    consumer.subscribe([new_topic(brokerd)])
    consumer.unsubscribe()
    with pytest.raises(errors.IllegalStateError, match="no topics to poll"):
        consumer.poll()
    consumer.assign([])  # An empty assignment is a choice: there is nothing to read for now.
    assert consumer.poll() == []


def test_an_asyncio_poll_without_topics_raises(brokerd):
    async def poll():
        async with aio.Consumer(bootstrap_servers=brokerd.bootstrap) as consumer:
            await consumer.poll()

    with pytest.raises(errors.IllegalStateError) as failure:
        asyncio.run(poll())
    assert message(failure) == NO_TOPICS


@pytest.mark.parametrize("topics", ["order*", ["order*"], ["fine", "order*"]])
def test_a_pattern_given_as_a_topic_name_is_rejected(consumer, topics):
    with pytest.raises(ValueError) as failure:
        consumer.subscribe(topics)
    assert message(failure) == PATTERN
    assert consumer.subscription() == set()


@pytest.mark.parametrize("given, suggested", [
    ("*", "^.*"), ("order.*", "^order.*"), ("a|b", "^a|b"), ("*-[0-9]*", "^.*-[0-9]*")])
def test_the_suggested_pattern_is_a_regular_expression(consumer, given, suggested):
    with pytest.raises(ValueError, match=re.escape(f"subscribe(pattern={suggested!r})")):
        consumer.subscribe([given])
    re.compile(suggested)


# ---- 4: an asyncio client that was not started


@pytest.mark.parametrize("call", [
    lambda producer: producer.send("orders", b"v"), lambda producer: producer.flush(),
    lambda producer: producer.send_and_wait("orders", b"v"),
    lambda producer: producer.send_arrow([], "orders"),
    lambda producer: producer.partitions_for("orders"),
    lambda producer: producer.init_transactions(), lambda producer: producer.transaction(),
    lambda producer: producer.begin_transaction(), lambda producer: producer.metrics()])
def test_a_producer_that_was_not_started_raises(call):
    async def work():
        await call(aio.Producer(bootstrap_servers="localhost:1", transactional_id="t"))

    with pytest.raises(errors.IllegalStateError) as failure:
        asyncio.run(work())
    assert message(failure) == PRODUCER_NOT_STARTED


def test_a_producer_that_was_not_started_can_be_closed():
    asyncio.run(aio.Producer(bootstrap_servers="localhost:1").close())


@pytest.mark.parametrize("kind, name", [(aio.Consumer, "consumer"),
                                        (aio.ShareConsumer, "share consumer")])
def test_a_consumer_that_was_not_started_raises(kind, name):
    with pytest.raises(errors.IllegalStateError) as failure:
        asyncio.run(kind(bootstrap_servers="localhost:1", group_id="g").poll())
    assert message(failure) == NOT_STARTED.format(name, kind.__name__, "consumer")


# ---- 5: a library that is not installed


@pytest.mark.parametrize("library, caller, call", [
    ("pyarrow", "poll_arrow", lambda bootstrap: asyncio.run(
        aio.Consumer(bootstrap_servers=bootstrap).poll_arrow())),
    ("pyarrow", "poll_arrow", lambda bootstrap: asyncio.run(
        aio.ShareConsumer(bootstrap_servers=bootstrap, group_id="g").poll_arrow())),
    ("numpy", "poll_numpy", lambda bootstrap: asyncio.run(
        aio.Consumer(bootstrap_servers=bootstrap).poll_numpy())),
    ("pyarrow", "scan", lambda bootstrap: scan("orders", bootstrap_servers=bootstrap)),
    ("pyarrow", "send_arrow", lambda bootstrap: asyncio.run(
        aio.Producer(bootstrap_servers=bootstrap).send_arrow([], "orders"))),
    ("pyarrow", "json_column", lambda _: json_column([])),
    ("pyarrow", "json_rows", lambda _: json_rows([])),
    ("pyarrow", "avro_column", lambda _: avro_column([], None)),
])
def test_a_missing_library_names_its_extra(monkeypatch, library, caller, call):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(errors.MissingExtraError) as failure:
        call("localhost:1")
    assert message(failure) == MISSING_ARROW.format(caller, library)
    assert failure.value.extra == "arrow" and isinstance(failure.value, ImportError)


def test_blocking_clients_name_the_missing_extra(brokerd, monkeypatch, consumer):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "numpy", None)
    consumer.subscribe([new_topic(brokerd)])
    with Producer(bootstrap_servers=brokerd.bootstrap) as producer:
        for caller, library, call in (("poll_arrow", "pyarrow", consumer.poll_arrow),
                                      ("poll_numpy", "numpy", consumer.poll_numpy),
                                      ("send_arrow", "numpy",
                                       lambda: producer.send_arrow([], "t"))):
            with pytest.raises(errors.MissingExtraError) as failure:
                call()
            assert message(failure) == MISSING_ARROW.format(caller, library)


@pytest.mark.parametrize("module, library, words", [
    ("pylog.client.telemetry", "opentelemetry",
     "pylog.client.telemetry needs opentelemetry, which is not installed: run pip install "
     "'pylog-broker[otel]'"),
    ("pylog.testing.certificates", "cryptography",
     "TLS in pylog.testing needs cryptography, which is not installed: run pip install "
     "'pylog-broker[test]'")])
def test_a_module_whose_library_is_missing_names_its_extra(monkeypatch, module, library, words):
    import importlib

    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(errors.MissingExtraError) as failure:
        importlib.import_module(module)
    assert message(failure) == words


def test_avro_without_its_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(errors.MissingExtraError) as failure:
        Avro(None)
    assert message(failure) == ("Avro needs fastavro, which is not installed: run pip install "
                                "'pylog-broker[avro]'")


# ---- 6: a transactional producer that was not initialized


@pytest.mark.parametrize("call", [
    lambda producer: producer.send("orders", b"v"), lambda producer: producer.begin_transaction(),
    lambda producer: producer.commit_transaction(), lambda producer: producer.abort_transaction()])
def test_a_transactional_producer_that_was_not_initialized_raises(brokerd, call):
    with Producer(bootstrap_servers=brokerd.bootstrap, transactional_id="t") as producer:
        with pytest.raises(errors.IllegalStateError) as failure:
            call(producer)
    assert message(failure) == NOT_INITIALIZED


def test_a_record_outside_a_transaction_is_rejected(brokerd):
    with Producer(bootstrap_servers=brokerd.bootstrap, transactional_id=new_name("t")) as producer:
        producer.init_transactions()
        with pytest.raises(errors.IllegalStateError) as failure:
            producer.send("orders", b"v")
    assert message(failure) == ("the producer is without a transaction: call begin_transaction() "
                                "first")


def test_a_transaction_of_a_producer_without_an_id_is_rejected(brokerd):
    with Producer(bootstrap_servers=brokerd.bootstrap) as producer:
        with pytest.raises(errors.IllegalStateError) as failure:
            producer.begin_transaction()
    assert message(failure) == (
        "this producer sends no transactions: set transactional.id when you create it")


# ---- 7 to 9: brokerd


def brokerd_output(tmp_path, *settings) -> str:
    command = [sys.executable, "-m", "pylog", "--override", f"log.dirs={tmp_path}"]
    for setting in settings:
        command += ["--override", setting]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode
    return ended.stdout + ended.stderr


def test_a_port_in_use_names_its_process_and_a_free_port(tmp_path, brokerd):
    pid, port = brokerd.process.pid, brokerd.port
    words = brokerd_output(tmp_path, f"listeners=PLAINTEXT://127.0.0.1:{port}")
    assert re.fullmatch(
        rf"brokerd: cannot listen on PLAINTEXT://127\.0\.0\.1:{port}: Address already in use\. "
        rf"Stop the process \S+ \(pid {pid}\), or choose another port with --override "
        r"listeners=PLAINTEXT://127\.0\.0\.1:\d+\n", words)


def test_a_misspelt_broker_setting_names_the_valid_one(tmp_path):
    assert brokerd_output(tmp_path, "listener=PLAINTEXT://127.0.0.1:0") == (
        "brokerd: unknown setting listener; nearest valid name: listeners (--override)\n")


def test_a_tls_listener_without_a_certificate_names_the_setting(tmp_path):
    assert brokerd_output(tmp_path, "listeners=SSL://127.0.0.1:0") == (
        "brokerd: SSL://127.0.0.1:0 speaks TLS and has no certificate: set "
        "listener.name.ssl.ssl.keystore.location, or ssl.keystore.location for all\n")


# ---- 10: no broker at the address


def test_an_address_without_a_broker_is_named():
    with Admin(bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=1500) as admin:
        with pytest.raises(errors.KafkaTimeoutError) as failure:
            admin.list_topics()
    assert message(failure) == ("not done within 1.5 s: no bootstrap server could be reached: "
                                "127.0.0.1:1: Connection refused")


# ---- 11: a misspelt topic in the command line


def test_a_misspelt_topic_names_the_nearest_one(brokerd):
    topic = new_topic(brokerd, stem="parcels")
    ended = subprocess.run(
        [sys.executable, "-c", "from pylog.cli import pylog; pylog()", "--bootstrap-server",
         brokerd.bootstrap, "topics", "describe", topic.replace("parcels", "parcls")],
        capture_output=True, text=True, timeout=60)
    assert ended.stderr == (f"pylog: there is no topic {topic.replace('parcels', 'parcls')!r}; "
                            f"nearest valid name: {topic}\n")


# ---- 12: a misspelt client setting or value


@pytest.mark.parametrize("settings, words", [
    ({"bootstrap_server": "localhost:9092"},
     "'bootstrap.server' is not a setting of the consumer: did you mean 'bootstrap.servers'?"),
    ({"bootstrap_servers": "localhost:9092", "auto_offset_reset": "earlist"},
     "auto.offset.reset='earlist': allowed are earliest, latest, none, by_duration:<duration>")])
def test_a_misspelt_client_setting_names_the_valid_one(settings, words):
    with pytest.raises(errors.ConfigError) as failure:
        Consumer(**settings)
    assert message(failure) == words


# ---- 13: a value that cannot be sent


def test_a_dict_without_a_serializer_is_rejected(brokerd):
    with Producer(bootstrap_servers=brokerd.bootstrap) as producer:
        with pytest.raises(errors.SerializationError) as failure:
            producer.send("orders", {"id": 1})
    assert message(failure) == (
        "orders: the value is of type dict: send bytes, str or a buffer, or give the producer a "
        "value.serializer")


# ---- 14: a subscription without a group


def test_subscribe_without_a_group_names_the_setting_and_the_alternative(brokerd):
    with Consumer(bootstrap_servers=brokerd.bootstrap) as consumer:
        with pytest.raises(errors.IllegalStateError) as failure:
            consumer.subscribe(["orders"])
    assert message(failure) == ("subscribe needs the setting group.id: set it, or read without a "
                                'group by assign([TopicPartition("topic", 0)])')


# ---- 15: TLS to a plain port


def test_tls_to_a_plain_port_is_named(brokerd):
    with Admin(bootstrap_servers=brokerd.bootstrap, security_protocol="SSL",
               default_api_timeout_ms=1500) as admin:
        with pytest.raises(errors.KafkaTimeoutError) as failure:
            admin.list_topics()
    assert message(failure) == (
        f"not done within 1.5 s: no bootstrap server could be reached: {brokerd.bootstrap}: the "
        "peer closed the connection during the TLS handshake; check that this port speaks TLS")


# ---- Waiting for a delivery on the event loop that delivers it


BLOCKS = ("result() would block the event loop that delivers the record: write `metadata = await "
          "delivery`, or pass on_delivery to send()")


def test_result_on_the_event_loop_raises_and_names_await(brokerd):
    async def send(topic: str):
        async with aio.Producer(bootstrap_servers=brokerd.bootstrap, linger_ms=60_000,
                                delivery_timeout_ms=120_000) as producer:
            delivery = await producer.send(topic, b"v")
            for wait in (delivery.result, delivery.exception):
                with pytest.raises(errors.IllegalStateError) as failure:
                    wait()
                assert message(failure) == BLOCKS
            await producer.flush()
            # A delivery that has its outcome returns it at once, as a Future does.
            return delivery.result(), await delivery

    found, awaited = asyncio.run(send(new_topic(brokerd)))
    assert found == awaited and found.offset == 0


def test_result_in_a_callback_of_a_blocking_producer_raises(brokerd):
    topic, failures = new_topic(brokerd), []

    with Producer(bootstrap_servers=brokerd.bootstrap) as producer:
        def wait_for_another(metadata, failure):
            try:
                producer.send(topic, b"second").result(30)
            except errors.IllegalStateError as refused:
                failures.append(str(refused))

        producer.send(topic, b"first", on_delivery=wait_for_another).result(30)
        producer.flush(30)
    assert failures == [BLOCKS]


def test_result_of_a_blocking_producer_works_inside_another_event_loop(brokerd):
    async def send(topic: str):  # As in a notebook, whose cells run on an event loop.
        with Producer(bootstrap_servers=brokerd.bootstrap) as producer:
            return producer.send(topic, b"v").result(30)

    assert asyncio.run(send(new_topic(brokerd))).offset == 0
