"""Injected faults, in both kinds of broker: their effect on a client, and their end."""

import threading
import time

import pytest

from pylog.client import Consumer, TopicPartition
from pylog.client.errors import KafkaError
from pylog.testing import BrokerFailed
from tests.fixtures.brokers import answers
from tests.wire import raw, talk
from tests.wire.raw import Closed, Connection

STORAGE_ERROR = 56


@pytest.fixture(params=[False, True], ids=["threads", "process"])
def broker(request, make_broker):
    broker = make_broker(process=request.param)
    broker.create_topic("t")
    return broker


def _append(broker, value: bytes = b"v") -> int:
    """Append over a new connection; return the error code."""
    with Connection(broker.port) as connection:
        return talk.produce(connection, "t", raw.batch([raw.record(None, value)]))["error_code"]


def _seconds(work, *arguments) -> float:
    began_s = time.monotonic()
    work(*arguments)
    return time.monotonic() - began_s


def test_a_lost_answer_is_of_a_request_that_was_served(broker):
    fault = broker.faults.lose_answers("Produce")
    with pytest.raises(Closed):
        _append(broker, b"lost")
    assert fault.hits == 1
    assert _append(broker, b"told") == 0
    broker.topic("t").assert_records(["lost", "told"])


def test_a_lost_request_is_not_served(broker):
    broker.faults.lose_requests("Produce", count=2)
    for _ in range(2):
        with pytest.raises(Closed):
            _append(broker, b"lost")
    assert _append(broker, b"served") == 0
    broker.topic("t").assert_records(["served"])


def test_produce_with_an_injected_error_is_not_stored(broker):
    fault = broker.faults.answer_error("NOT_LEADER_OR_FOLLOWER", "Produce")
    assert _append(broker, b"refused") == 6
    assert fault.hits == 1
    assert _append(broker, b"served") == 0
    broker.topic("t").assert_records(["served"])


def test_injected_error_keeps_the_response_order(broker):
    body = raw.produce_body(8, "t", [(0, raw.batch())])
    with broker.faults.delay(300, "Produce", count=1), Connection(broker.port) as connection:
        connection.send(raw.frame(raw.header(raw.PRODUCE, 8, 1) + body))
        broker.faults.answer_error(19, "Produce")
        connection.send(raw.frame(raw.header(raw.PRODUCE, 8, 2) + body))
        for number in (1, 2):
            connection.answer(raw.PRODUCE, 8, number)


def test_fetch_with_an_injected_error_has_no_records(broker):
    assert _append(broker) == 0
    broker.faults.answer_error("OFFSET_OUT_OF_RANGE", "Fetch")
    with Connection(broker.port) as connection:
        refused = talk.fetch(connection, "t")
        assert (refused["error_code"], refused["records"]) == (1, None)
        served = talk.fetch(connection, "t")
        assert served["error_code"] == 0 and served["records"]


def test_commit_with_an_injected_error_is_not_stored(broker):
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    place = TopicPartition("t", 0)
    try:
        broker.faults.answer_error("GROUP_AUTHORIZATION_FAILED", "OffsetCommit")
        with pytest.raises(KafkaError) as refused:
            consumer.commit({place: 5}, timeout=30)
        assert refused.value.code == 30
        assert broker.group("g").offsets() == {}
        consumer.commit({place: 5}, timeout=30)
        assert broker.group("g").offsets() == {("t", 0): 5}
    finally:
        consumer.close()


def test_error_for_an_unsupported_request_is_rejected(broker):
    with pytest.raises(BrokerFailed, match="only Produce, Fetch and OffsetCommit"):
        broker.faults.answer_error(1, "Metadata")
    with pytest.raises(BrokerFailed, match="'TOO_LATE' is not a Kafka error"):
        broker.faults.answer_error("TOO_LATE", "Produce")


def test_delay_applies_to_the_named_requests(broker):
    with broker.faults.delay(300, "Produce"):
        assert _seconds(_append, broker) >= 0.3
        assert answers(broker.port, 0.29)
    assert broker.topic("t").values() == [b"v"]


def test_delayed_responses_of_one_connection_overlap(broker):
    body = raw.produce_body(8, "t", [(0, raw.batch())])
    with broker.faults.delay(1000, "Produce"), Connection(broker.port) as connection:
        began_s = time.monotonic()
        for number in range(5):
            connection.send(raw.frame(raw.header(raw.PRODUCE, 8, number) + body))
        for number in range(5):
            connection.answer(raw.PRODUCE, 8, number)
        assert 1 <= time.monotonic() - began_s < 4.5


def test_connections_are_accepted_again_after_the_fault(broker):
    with broker.faults.refuse_connections() as fault:
        assert not answers(broker.port)
        assert fault.hits >= 1
    assert answers(broker.port)


def test_dropped_connections_end_while_they_wait(broker):
    with Connection(broker.port) as connection:
        timer = threading.Timer(0.2, broker.faults.drop_connections)
        timer.start()
        with pytest.raises(Closed):
            talk.fetch(connection, "t", wait_ms_max=30_000, bytes_min=1)
        timer.join()
    assert _append(broker) == 0


def test_drop_connections_returns_their_number(broker):
    with Connection(broker.port) as first, Connection(broker.port) as second:
        for connection in (first, second):
            talk.fetch(connection, "t")
        assert broker.faults.drop_connections() == 2
    assert broker.faults.drop_connections() == 0


def test_clear_ends_every_fault(broker):
    broker.faults.delay(10_000)
    broker.faults.lose_requests(count=None)
    broker.faults.disk_full()
    broker.faults.clear()
    assert _seconds(_append, broker) < 5
    assert _append(broker) == 0


def test_advertised_address_stays_the_same_under_network_faults(broker):
    from tests.wire.messages import ask

    def told():
        with Connection(broker.port) as connection:
            answer = ask(connection, raw.METADATA, 12, topics=[], allow_auto_topic_creation=False)
            return [(row["host"], row["port"]) for row in answer["brokers"]]

    before = told()
    broker.faults.delay(1)
    assert told() == before == [("127.0.0.1", broker.port)]


def test_a_full_disk_refuses_records_and_serves_those_that_it_has(broker):
    assert _append(broker, b"before") == 0
    with broker.faults.disk_full():
        assert _append(broker, b"refused") == STORAGE_ERROR
        with Connection(broker.port) as connection:
            assert talk.fetch(connection, "t")["high_watermark"] == 1
    assert _append(broker, b"after") == 0
    broker.topic("t").assert_records(["before", "after"])


def test_failed_fsync_is_not_acknowledged_until_a_restart(broker):
    fault = broker.faults.refuse_fsync()
    assert _append(broker, b"refused") == STORAGE_ERROR
    fault.end()
    assert _append(broker, b"refused too") == STORAGE_ERROR
    broker.restart()
    assert _append(broker, b"taken") == 0
    assert broker.topic("t").values()[-1] == b"taken"


def test_a_fault_of_an_unknown_api_is_rejected(broker):
    with pytest.raises(BrokerFailed, match="'Teleport' is not an API"):
        broker.faults.delay(1, "Teleport")


def test_broker_with_custom_listeners_has_no_network_faults(make_broker):
    broker = make_broker(settings={"listeners": "PLAINTEXT://127.0.0.1:0"})
    with pytest.raises(BrokerFailed, match="leave the setting"):
        broker.faults.delay(1)
    assert broker.faults.drop_connections() == 0


def test_a_broker_killed_during_a_network_fault_restarts_on_its_port(make_broker):
    broker = make_broker(process=True)
    broker.create_topic("t")
    port = broker.port
    broker.faults.delay(1)
    assert _append(broker, b"before") == 0
    broker.kill()
    broker.start()
    assert broker.port == port
    assert _append(broker, b"after") == 0
    broker.faults.lose_requests("Produce")
    with pytest.raises(Closed):
        _append(broker, b"lost")
    broker.faults.clear()
    assert _append(broker, b"last") == 0
    broker.restart()
    assert broker.port == port
    broker.topic("t").assert_records(["before", "after", "last"])
