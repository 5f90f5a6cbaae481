"""Apache Kafka's own tools as members and as administrators of share groups."""

import re

import pytest

from tests.clients.test_java_tools import PERF, _tool
from tests.wire.sides import Side
from tests.wire.talk import create_topic, unique
from tests.wire.test_differential_share_groups import BROKER_SETTINGS, group_of

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
__all__ = ["BROKER_SETTINGS"]  # For the fixture, which reads it here.
SHARE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
VERIFIABLE = "org.apache.kafka.tools.VerifiableShareConsumer"
RECORDS = 500


@pytest.fixture
def side(target):
    made = Side(target)
    yield made
    made.close()


@pytest.fixture
def topic(target) -> str:
    name = unique("java-share")
    create_topic(target.port, name, 2)
    _tool(PERF, "--topic", name, "--num-records", RECORDS, "--record-size", 100,
          "--throughput", -1, "--producer-props", f"bootstrap.servers={target.bootstrap}")
    return name


def _groups(target, *arguments) -> str:
    return _tool(SHARE_GROUPS, "--bootstrap-server", target.bootstrap, *arguments)


def _read(target, topic: str, group: str, *arguments) -> list[str]:
    told = _tool(SHARE_CONSUMER, "--bootstrap-server", target.bootstrap, "--topic", topic,
                 "--group", group, "--timeout-ms", 15000, *arguments)
    return re.findall(r"^[A-Z]{100}$", told, re.MULTILINE)


def _rows(told: str, topic: str) -> dict:
    """Parse a description into partition -> (start offset, lag)."""
    return {int(row[0]): (row[1], row[2]) for row in re.findall(
        rf"^\S+\s+{topic}\s+(\d+)\s+(\d+|-)\s+(\d+|-)", told, re.MULTILINE)}


def test_share_group_is_listed_described_reset_and_deleted(target, side, topic):
    group = group_of(side, "java-share-group")
    assert len(_read(target, topic, group, "--max-messages", RECORDS)) == RECORDS
    assert group in _groups(target, "--list").splitlines()
    assert re.search(rf"{group}\s.*Empty", _groups(target, "--describe", "--group", group,
                                                   "--state"))
    rows = _rows(_groups(target, "--describe", "--group", group, "--offsets"), topic)
    assert sorted(rows) == [0, 1]
    assert all(lag == "0" for _, lag in rows.values()), rows
    _groups(target, "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest",
            "--execute")
    rows = _rows(_groups(target, "--describe", "--group", group, "--offsets"), topic)
    assert all(start == "0" for start, _ in rows.values()), rows
    assert sum(int(lag) for _, lag in rows.values()) == RECORDS
    assert len(_read(target, topic, group, "--max-messages", RECORDS)) == RECORDS
    _groups(target, "--delete-offsets", "--group", group, "--topic", topic)
    assert _rows(_groups(target, "--describe", "--group", group, "--offsets"), topic) == {}
    _groups(target, "--delete", "--group", group)
    assert group not in _groups(target, "--list").splitlines()


def test_records_rejected_by_a_console_consumer_are_not_redelivered(target, side, topic):
    group = group_of(side, "java-share-reject")
    assert len(_read(target, topic, group, "--reject", "--max-messages", RECORDS)) == RECORDS
    rows = _rows(_groups(target, "--describe", "--group", group, "--offsets"), topic)
    assert all(lag == "0" for _, lag in rows.values()), rows


def test_verifiable_share_consumer_gets_every_record_once(target, side, topic):
    group = group_of(side, "java-share-verified")
    told = _tool(VERIFIABLE, "--bootstrap-server", target.bootstrap, "--topic", topic,
                 "--group-id", group, "--max-messages", RECORDS)
    counts = [int(count) for count in re.findall(
        r'"name":"offsets_acknowledged"[^\n]*?"count":(\d+)', told)]
    assert '"name":"shutdown_complete"' in told
    assert not counts or sum(counts) >= RECORDS, told[-2000:]
