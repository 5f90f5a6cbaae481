"""A broker inside the test's process: started, stopped, started again."""

import gc
import os
import socket
import time

import pytest

from pylog.testing import Broker, BrokerFailed, ports
from tests.fixtures.brokers import answers
from tests.wire import raw, talk
from tests.wire.raw import Connection


def test_broker_responds_only_while_started(tmp_path):
    with Broker(tmp_path) as broker:
        assert broker.bootstrap == f"127.0.0.1:{broker.port}"
        assert answers(broker.port)
    assert not answers(broker.port)


def test_two_brokers_of_one_process_share_nothing(make_broker):
    first, second = make_broker(), make_broker()
    first.create_topic("t").append("one")
    assert first.port != second.port and second.topics() == []
    second.create_topic("t")
    assert second.topic("t").records() == [] and len(first.topic("t").records()) == 1


def test_client_records_can_be_read_without_a_client(broker):
    topic = broker.create_topic("t", partitions=2)
    talk.append(broker.port, "t", raw.batch([raw.record(b"k", b"v")], codec=raw.LZ4), partition=1)
    row, = topic.records()
    assert (row.partition, row.offset, row.key, row.value) == (1, 0, b"k", b"v")


def test_appended_records_reach_a_client(broker):
    broker.create_topic("t").append("one", ("key", "two"))
    with Connection(broker.port) as connection:
        assert talk.fetch(connection, "t")["high_watermark"] == 2


def test_a_restart_keeps_records_port_and_date(broker):
    broker.create_topic("t").append("one")
    broker.clock.advance(days=1)
    port, now_ms = broker.port, broker.clock.now_ms()
    broker.restart()
    assert broker.port == port and broker.clock.now_ms() >= now_ms
    broker.topic("t").assert_records(["one"])


def test_temporary_directory_is_removed_with_its_broker():
    broker = Broker().start()
    directory = broker.directory
    assert os.path.isdir(directory)
    broker.close()
    assert not os.path.exists(directory)


def test_settings_are_the_brokers_by_kafkas_names(make_broker):
    broker = make_broker(settings={"auto_create_topics_enable": False, "num.partitions": 3})
    from tests.wire.messages import ask

    with Connection(broker.port) as connection:
        answer = ask(connection, raw.METADATA, 12, topics=[{"name": "x", "topic_id": None}],
                     allow_auto_topic_creation=True)
    assert answer["topics"][0]["error_code"] == 3


def test_failed_start_reports_the_reason_and_leaves_nothing_behind(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = Broker(tmp_path, settings={"listeners": f"PLAINTEXT://127.0.0.1:{port}"})
        with pytest.raises(BrokerFailed, match="cannot listen"):
            broker.start()
    with broker:
        assert broker.port == port


def test_stopped_broker_rejects_every_call(broker):
    broker.stop()
    with pytest.raises(BrokerFailed, match="not running"):
        broker.topics()


def test_stopped_broker_leaves_no_threads_or_descriptors(tmp_path):
    def held():
        # Reserved ports belong to the process.
        return len(os.listdir("/proc/self/task")), (
            len(os.listdir("/proc/self/fd")) - len(ports._claims))

    with Broker(tmp_path / "first"):
        pass
    gc.collect()
    before = held()
    for number in range(3):
        with Broker(tmp_path / str(number)) as broker:
            broker.create_topic("t", flush_ms=1000).append("x")
    # A joined Python thread may need a moment to disappear from the kernel's list.
    end_s = time.monotonic() + 5
    while held()[0] > before[0] and time.monotonic() < end_s:
        time.sleep(0.01)
    threads, descriptors = held()
    assert threads <= before[0] and descriptors <= before[1]
