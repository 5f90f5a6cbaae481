"""The metrics endpoint of a running broker: values, and valid formats."""

import json
import os
import socket
import threading
import time

import pytest

from pylog.monitor import metrics
from pylog.monitor.server import parse_address
from tests.fixtures.brokers import Brokerd, BrokerDied
from tests.monitor import scrape
from tests.wire import raw, talk
from tests.wire.messages import ask
from tests.wire.raw import Connection

OFFSET_COMMIT, FIND_COORDINATOR = 8, 10
JOIN_GROUP, ALTER_CLIENT_QUOTAS = 11, 49
BROKER_SETTINGS = {"metrics.listener": "127.0.0.1:0", "slow.request.threshold.ms": "200",
                   "group.initial.rebalance.delay.ms": "0"}


@pytest.fixture
def address(brokerd):
    return scrape.address_of(brokerd)


def commit(port: int, group: str, topic: str, offset: int, partition: int = 0) -> None:
    with Connection(port) as connection:
        for _ in range(100):
            found = ask(connection, FIND_COORDINATOR, 3, key=group, key_type=0)
            if found["error_code"] == 0:
                answer = ask(
                    connection, OFFSET_COMMIT, 8, group_id=group,
                    generation_id_or_member_epoch=-1, member_id="", topics=[{
                        "name": topic, "partitions": [{
                            "partition_index": partition, "committed_offset": offset,
                            "committed_metadata": ""}]}])
                code = answer["topics"][0]["partitions"][0]["error_code"]
                if code == 0:
                    return
                assert code in (14, 15, 16), answer
            time.sleep(0.05)
    raise AssertionError("no coordinator")


def made(port: int, group: str, count: int, committed: int, now_ms: int) -> str:
    """Create a topic of one batch of records, of which a group has committed some."""
    name = talk.unique("lag")
    talk.create_topic(port, name)
    talk.append(port, name, raw.batch(
        [raw.record(b"k", b"v", offset_delta=index) for index in range(count)],
        base_timestamp=now_ms, max_timestamp=now_ms))
    commit(port, group, name, committed)
    return name


@pytest.mark.parametrize("new", [True, False])
def test_scrape_is_accepted_by_the_librarys_parser(address, new):
    found = scrape.families(address, new)
    for metric in metrics.TABLE.values():
        # The parser of the older format splits the names of counters itself.
        assert metric.name in found, metric.name
        if new:
            assert found[metric.name].type == metric.type
            assert found[metric.name].unit == metric.unit
            for sample in found[metric.name].samples:
                assert sample.labels.keys() - {"le"} == set(metric.labels), sample


def test_family_outside_the_table_is_never_exported(address):
    assert scrape.families(address).keys() == metrics.ALL.keys()


@pytest.mark.parametrize("name, former", metrics.FORMER_NAMES.items())
def test_former_name_of_a_metric_has_the_same_samples(address, name, former):
    found = scrape.families(address)
    assert [(tuple(sample.labels.values()), sample.value) for sample in found[former].samples] \
        == [(tuple(sample.labels.values()), sample.value) for sample in found[name].samples]


def test_produce_and_fetch_move_the_counters_of_their_topic(brokerd, address):
    name = talk.unique("counted")
    talk.create_topic(brokerd.port, name)
    batch = raw.batch([raw.record(b"k", b"v" * 100, offset_delta=index) for index in range(10)])
    for _ in range(3):
        talk.append(brokerd.port, name, batch)
    with Connection(brokerd.port) as connection:
        assert talk.fetch(connection, name)["records"]
        assert talk.produce(connection, name, b"\0" * 70)["error_code"] != 0
    found = scrape.families(address)

    def of(family, **labels):
        return [one.value for one in found[family].samples
                if {"topic": name, **labels}.items() <= one.labels.items()]

    assert of("pylog_topic_in_records") == [30]
    assert of("pylog_topic_in_bytes") == of("pylog_topic_out_bytes") == [3 * len(batch)]
    assert of("pylog_topic_in_batches") == [3]
    assert of("pylog_topic_produce_requests") == [4]
    assert of("pylog_topic_produce_failures") == [1]
    assert of("pylog_topic_fetch_requests") == [1]
    assert of("pylog_partition_end_offset", partition="0") == [30]
    assert of("pylog_partition_high_watermark", partition="0") == [30]
    assert of("pylog_partition_size_bytes", partition="0") == [3 * len(batch)]
    assert of("pylog_partition_segments", partition="0") == [1]


def test_cluster_page_is_available_as_json_and_html(brokerd, address):
    status, headers, body = scrape.get(address, "/cluster", Accept="application/json")
    found = json.loads(body)
    assert status == 200 and headers["Content-Type"] == "application/json"
    assert found["controller"] == found["told_by"] == found["brokers"][0]["broker"] == 1
    assert found["troubles"] == [] and found["quorum"] is None
    status, headers, body = scrape.get(address, "/cluster", Accept="text/html")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    assert f"PLAINTEXT://127.0.0.1:{brokerd.port}" in body.decode()


def test_a_deleted_topic_leaves_the_page(brokerd, address):
    name = talk.unique("gone")
    talk.create_topic(brokerd.port, name)
    assert f'topic="{name}"' in scrape.text(address)
    with Connection(brokerd.port) as connection:
        ask(connection, raw.DELETE_TOPICS, 5, topic_names=[name], timeout=5000)
    assert f'topic="{name}"' not in scrape.text(address)


def test_requests_are_counted_by_api_with_sizes_times_and_errors(brokerd, address):
    labels = {"api": "ListOffsets"}
    before = scrape.value(address, "pylog_request_seconds_count", **labels)
    errors = scrape.value(address, "pylog_request_errors_total", api="Fetch",
                          error="UNKNOWN_TOPIC_OR_PARTITION")
    with Connection(brokerd.port) as connection:
        ask(connection, raw.LIST_OFFSETS, 6, replica_id=-1, topics=[])
        talk.fetch(connection, "nobody-has-this-topic")
    found = {(one.name, one.labels.get("api")): one.value
             for family in scrape.families(address).values() for one in family.samples
             if "le" not in one.labels}
    for family in ("pylog_request_seconds", "pylog_request_queue_seconds",
                   "pylog_request_local_seconds", "pylog_request_send_seconds",
                   "pylog_request_size_bytes", "pylog_response_size_bytes"):
        assert found[f"{family}_count", "ListOffsets"] == before + 1, family
        assert found[f"{family}_sum", "ListOffsets"] > 0, family
    assert scrape.value(address, "pylog_request_errors_total", api="Fetch",
                        error="UNKNOWN_TOPIC_OR_PARTITION") == errors + 1


def test_long_poll_time_counts_as_parked_not_as_slow(brokerd, address):
    name = talk.unique("parked")
    talk.create_topic(brokerd.port, name)
    before = scrape.value(address, "pylog_request_remote_seconds_sum", api="Fetch")
    slow = scrape.value(address, "pylog_requests_slow_total")
    with Connection(brokerd.port) as connection:
        talk.fetch(connection, name, wait_ms_max=400, bytes_min=1)
    after = scrape.value(address, "pylog_request_remote_seconds_sum", api="Fetch")
    assert 0.35 < after - before < 5
    assert scrape.value(address, "pylog_requests_slow_total") == slow


def test_lag_is_exported_in_records_and_seconds_since_the_first_uncommitted_record(
        brokerd, address):
    age_ms = 90_000
    group = talk.unique("behind")
    name = made(brokerd.port, group, 10, 4, int(time.time() * 1000) - age_ms)
    labels = {"group": group, "topic": name, "partition": "0"}
    assert scrape.value(address, "pylog_group_lag_records", **labels) == 6
    assert scrape.value(address, "pylog_group_committed_offset", **labels) == 4
    assert 90 <= scrape.value(address, "pylog_group_lag_seconds", **labels) < 120
    commit(brokerd.port, group, name, 10)
    assert scrape.value(address, "pylog_group_lag_records", **labels) == 0
    assert scrape.value(address, "pylog_group_lag_seconds", **labels) == 0
    assert scrape.value(address, "pylog_group_state", group=group, state="Empty") == 1


def test_group_name_is_escaped_correctly(brokerd, address):
    group = 'a "quoted" \\ group\nof two lines'
    name = made(brokerd.port, group, 3, 1, int(time.time() * 1000))
    assert scrape.value(address, "pylog_group_lag_records", group=group, topic=name) == 2
    assert scrape.explain(address, group)["lag_records"] == 2


def test_explain_gives_the_reason_for_group_lag(brokerd, address):
    group = talk.unique("why")
    name = made(brokerd.port, group, 8, 3, int(time.time() * 1000) - 5000)
    view = scrape.explain(address, group)
    assert (view["status"], view["group"], view["lag_records"]) == (200, group, 5)
    [part] = view["partitions"]
    assert (part["topic"], part["lag_records"], part["high_watermark"]) == (name, 5, 8)
    assert view["reasons"][0]["reason"] == "no_members"
    assert scrape.explain(address, "nobody")["status"] == 404


def test_groups_are_listed_with_their_lag(brokerd, address):
    group = talk.unique("listed")
    made(brokerd.port, group, 8, 3, int(time.time() * 1000))
    status, _, body = scrape.get(address, "/explain/groups")
    found = json.loads(body)
    assert status == 200 and (found["left_out"], found["truncated"]) == (0, False)
    assert [row["lag_records"] for row in found["groups"] if row["group"] == group] == [5]


def limit(port: int, rate: float | None) -> None:
    """Limit clients with the id `raw`; None: remove the limit."""
    with Connection(port) as connection:
        answer = ask(connection, ALTER_CLIENT_QUOTAS, 1, validate_only=False, entries=[{
            "entity": [{"entity_type": "client-id", "entity_name": "raw"}],
            "ops": [{"key": "producer_byte_rate", "value": rate or 0.0, "remove": rate is None}]}])
        assert answer["entries"][0]["error_code"] == 0, answer


def test_throttled_members_are_reported(brokerd, address):
    group = talk.unique("held")
    name = made(brokerd.port, group, 8, 3, int(time.time() * 1000))
    before = scrape.value(address, "pylog_requests_throttled_total")
    limit(brokerd.port, 20_000.0)
    try:
        talk.append(brokerd.port, name, raw.batch([raw.record(b"k", bytes(300_000))]))
        with Connection(brokerd.port) as connection:
            ask(connection, JOIN_GROUP, 3, group_id=group, session_timeout=30_000,
                rebalance_timeout=30_000, member_id="", protocol_type="consumer",
                protocols=[{"name": "range", "metadata": b"\0\1\0\0\0\0\xff\xff\xff\xff"}])
            view = scrape.explain(address, group)
    finally:
        limit(brokerd.port, None)
    assert scrape.value(address, "pylog_requests_throttled_total") > before
    [member] = view["members"]
    assert member["client_id"] == "raw" and member["throttled_ms"] > 0, view
    assert "throttled" in [one["reason"] for one in view["reasons"]]


def test_groups_only_on_disk_are_exported_after_a_restart(tmp_path):
    broker = Brokerd(tmp_path, BROKER_SETTINGS).start()
    try:
        name = made(broker.port, "kept", 9, 2, int(time.time() * 1000))
        assert broker.stop() == 0
        broker.log.write_text("")
        broker.start()
        address = scrape.address_of(broker)
        end_s = time.monotonic() + 40
        while scrape.value(address, "pylog_group_lag_records", group="kept", topic=name) != 7:
            assert time.monotonic() < end_s, scrape.text(address)
            time.sleep(0.2)
        assert broker.alarms() == []
    finally:
        broker.kill()


def test_slow_request_is_logged_in_one_line(brokerd, address):
    """A frame of 8 MB whose response the client reads slowly does not count as slow, a waiting one
    does: the response to a large Fetch that is not read for a while.
    """
    name = talk.unique("slow")
    talk.create_topic(brokerd.port, name, max_message_bytes=9_000_000)
    talk.append(brokerd.port, name, raw.batch([raw.record(b"k", bytes(8_000_000))]))
    with Connection(brokerd.port) as connection:
        body = raw.fetch_body(11, [(name, [(0, 0, 1 << 26, -1)])])
        connection.send(raw.frame(raw.header(raw.FETCH, 11, 5, client_id=b"lazy one") + body))
        time.sleep(0.5)
        connection.receive()
    end_s = time.monotonic() + 30
    while 'client="lazy one"' not in brokerd.log.read_text():
        assert time.monotonic() < end_s, brokerd.tail()
        time.sleep(0.05)
    [line] = [line for line in brokerd.log.read_text().splitlines() if "lazy one" in line]
    assert "level=warning logger=pylog.request" in line and "api=Fetch" in line
    assert "left_out=0" in line and "response_bytes=80" in line


def test_invalid_http_requests_and_methods_are_rejected(brokerd, address):
    host, _, port = address.rpartition(":")
    for sent, wanted in ((b"POST /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 405"),
                         (b"GET /nothing HTTP/1.1\r\n\r\n", b"HTTP/1.1 404"),
                         (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 200"),
                         (b"\r\n\r\n", b""), (b"x" * 40_000, b"")):
        with socket.create_connection((host, int(port)), timeout=15) as stream:
            try:
                stream.sendall(sent)
                received = stream.recv(100)
            except ConnectionError:
                received = b""
        assert received.startswith(wanted) and (wanted or not received), sent[:20]


def test_silent_clients_do_not_block_scrapes(brokerd, address):
    host, _, port = address.rpartition(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(5)]
    try:
        assert scrape.value(address, "pylog_partitions") >= 0
    finally:
        for stream in idle:
            stream.close()


def test_scrapes_beside_topics_that_come_and_go_are_always_whole(brokerd, address):
    stop, failed = threading.Event(), []

    def churn():
        while not stop.is_set():
            try:
                name = talk.unique("churn")
                talk.create_topic(brokerd.port, name, 5)
                talk.append(brokerd.port, name, raw.batch(), 3)
                with Connection(brokerd.port) as connection:
                    ask(connection, raw.DELETE_TOPICS, 5, topic_names=[name], timeout=5000)
            except Exception as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            scrape.families(address)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failed == []


def test_port_in_use_names_its_process_and_the_setting_to_change(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = Brokerd(tmp_path, {"metrics.listener": f"127.0.0.1:{port}"})
        with pytest.raises(BrokerDied, match=(
                rf"cannot listen on metrics.listener 127.0.0.1:{port}: Address already in use. "
                rf"Stop the process \S+ \(pid {os.getpid()}\), or choose another port with "
                rf"--override metrics.listener=127.0.0.1:{port + 1}")):
            broker.start()


def test_malformed_metrics_listener_stops_the_start(tmp_path):
    with pytest.raises(BrokerDied, match="metrics.listener"):
        Brokerd(tmp_path, {"metrics.listener": "nonsense"}).start()


def test_addresses_are_read_as_host_and_port():
    assert parse_address("127.0.0.1:9644") == ("127.0.0.1", 9644)
    assert parse_address("[::1]:1") == ("::1", 1)
    assert parse_address(":0") == ("", 0)
    for text in ("9644", "host:", "host:x", "host:70000", ""):
        with pytest.raises(ValueError):
            parse_address(text)
