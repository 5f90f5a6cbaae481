"""Apache Kafka's own tools as members and as administrators of groups."""

import re

import pytest

from tests.clients.test_java_tools import CONSUMER, OFFSETS, PERF, _tool
from tests.fixtures.brokers import Brokerd
from tests.wire.talk import create_topic, unique

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": 0}
CONSUMER_PERF = "org.apache.kafka.tools.ConsumerPerformance"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
RECORDS = 3000


@pytest.fixture(scope="module")
def topic(target) -> str:
    name = unique("java-groups")
    create_topic(target.port, name, 3)
    _tool(PERF, "--topic", name, "--num-records", RECORDS, "--record-size", 100,
          "--throughput", -1, "--producer-props", f"bootstrap.servers={target.bootstrap}")
    return name


def _read(target, topic: str, group: str, count: int = RECORDS) -> str:
    return _tool(CONSUMER, "--bootstrap-server", target.bootstrap, "--topic", topic, "--group",
                 group, "--from-beginning", "--max-messages", count, "--timeout-ms", 30000)


def _groups(target, *arguments) -> str:
    return _tool(GROUPS, "--bootstrap-server", target.bootstrap, *arguments)


def _rows(told: str, topic: str) -> dict:
    """Parse a description into partition -> (committed offset, end offset)."""
    return {int(row[1]): (row[2], int(row[3])) for row in re.findall(
        rf"^\S+\s+({topic})\s+(\d+)\s+(\d+|-)\s+(\d+)\s", told, re.MULTILINE)}


def test_consumer_performance_reads_in_a_group(target, topic):
    told = _tool(CONSUMER_PERF, "--bootstrap-server", target.bootstrap, "--topic", topic,
                 "--messages", RECORDS, "--group", unique("perf"))
    assert re.search(rf", {RECORDS}, ", told), told


def test_a_group_of_the_console_consumer_is_listed_described_reset_and_deleted(target, topic):
    group = unique("java-group")
    assert len(_read(target, topic, group).splitlines()) >= RECORDS
    assert group in _groups(target, "--list").splitlines()
    assert re.search(rf"{group}\s+Classic\s+Empty", _groups(target, "--list", "--state", "--type"))
    rows = _rows(_groups(target, "--describe", "--group", group), topic)
    assert sorted(rows) == [0, 1, 2]
    assert all(int(committed) == end for committed, end in rows.values())
    _groups(target, "--reset-offsets", "--group", group, "--topic", f"{topic}:1",
            "--to-offset", 5, "--execute")
    rows = _rows(_groups(target, "--describe", "--group", group), topic)
    assert rows[1][0] == "5" and int(rows[0][0]) == rows[0][1]
    _groups(target, "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest",
            "--execute")
    assert len(_read(target, topic, group).splitlines()) >= RECORDS
    _groups(target, "--delete-offsets", "--group", group, "--topic", topic)
    assert _rows(_groups(target, "--describe", "--group", group), topic) == {}
    _groups(target, "--delete", "--group", group)
    assert group not in _groups(target, "--list").splitlines()


def test_members_and_state_of_a_group_are_described(target, topic):
    from bench.kafka import start_tool

    group = unique("java-members")
    member = start_tool(CONSUMER, "--bootstrap-server", target.bootstrap, "--topic", topic,
                        "--group", group, "--from-beginning", heap="256m", stdout=-3)
    try:
        for _ in range(10):
            told = _groups(target, "--describe", "--group", group, "--state")
            if re.search(rf"{group}\s.*range\s+Stable\s+1", told):
                break
        else:
            pytest.fail(told)
        told = _groups(target, "--describe", "--group", group, "--members", "--verbose")
        assert re.search(rf"{group}\s+console-consumer-\S+\s.*{topic}:0,1,2", told), told
    finally:
        member.kill()
        member.wait()


def test_members_of_the_new_protocol_read_and_are_described(target, topic):
    from bench.kafka import start_tool

    group = unique("java-consumers")
    member = start_tool(CONSUMER, "--bootstrap-server", target.bootstrap, "--include",
                        topic[:-1] + ".", "--group", group, "--from-beginning",
                        "--command-property", "group.protocol=consumer", heap="256m", stdout=-3)
    try:
        for _ in range(10):
            told = _groups(target, "--describe", "--group", group, "--members", "--verbose")
            if re.search(rf"{group}\s.*{topic}:0,1,2", told):
                break
        else:
            pytest.fail(told)
        told = _groups(target, "--describe", "--group", group, "--state")
        assert re.search(rf"{group}\s.*uniform\s+Stable\s+1", told), told
        assert re.search(rf"{group}\s+Consumer\s+Stable",
                         _groups(target, "--list", "--state", "--type"))
    finally:
        member.kill()
        member.wait()


def test_offsets_set_by_the_tool_survive_kill_9(tmp_path):
    with Brokerd(tmp_path, BROKER_SETTINGS) as broker:
        topic, group = unique("java-killed"), unique("java-killed-group")
        create_topic(broker.port, topic)
        _tool(PERF, "--topic", topic, "--num-records", 100, "--record-size", 10,
              "--throughput", -1, "--producer-props", f"bootstrap.servers={broker.bootstrap}")
        _read(broker, topic, group, 40)
        before = _rows(_groups(broker, "--describe", "--group", group), topic)
        broker.kill()
        broker.start()
        assert _rows(_groups(broker, "--describe", "--group", group), topic) == before
        ends = _tool(OFFSETS, "--bootstrap-server", broker.bootstrap, "--topic", topic)
        assert f"{topic}:0:100" in ends
