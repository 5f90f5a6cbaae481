"""Share groups of one brokerd."""

import pytest

from tests.monitor import scrape
from tests.wire.messages import ask
from tests.wire.sides import Side
from tests.wire.test_differential_share_groups import (
    ACCEPT,
    ALTER_OFFSETS,
    BROKER_SETTINGS as SETTINGS,
    DELETE_OFFSETS,
    DESCRIBE_OFFSETS,
    Member,
    Offsets,
    append_batches,
    group_of,
)

pytestmark = pytest.mark.timeout(120)
BROKER_SETTINGS = {**SETTINGS, "metrics.listener": "127.0.0.1:0"}
QUOTAS = 49


@pytest.fixture
def side(brokerd):
    made = Side(brokerd)
    yield made
    made.close()


def answered(side):
    """Return the stored responses, by label."""
    return dict(side.answers)


def left(member):
    member.acknowledge("the end", epoch=-1)
    member.beat(-1)


def test_deleted_group_starts_again_on_the_same_connection(side):
    topic = side.topic("t")
    append_batches(side, topic, 1, 10)
    name = group_of(side, "g")
    member = Member(side, name, "m", topic)
    member.join(1)
    member.records("first")
    member.acknowledge("all done", (0, 0, 9, [ACCEPT]))
    left(member)
    Offsets(side, name).delete_group("gone")
    again = Member(side, name, "n", topic)
    again.join(1)
    again.records("from the first on")
    (_, _, _, rows, _), = answered(side)["from the first on"]
    assert rows == [(0, 9, 1)]


def test_records_of_a_closed_connection_are_released_before_their_lock_ends(side):
    topic = side.topic("t")
    append_batches(side, topic, 1, 10)
    # The other member waits for less time than the lock duration.
    group = group_of(side, "g", share_record_lock_duration_ms=60_000)
    member, other = Member(side, group, "m", topic), Member(side, group, "n", topic)
    member.join(1)
    other.join(1)
    member.records("acquired")
    member.connection.close()
    other.records("released")
    (_, _, _, rows, _), = answered(side)["released"]
    assert rows == [(0, 9, 2)]


def test_share_group_starts_at_its_altered_offset_after_its_last_member_left(side):
    topic = side.topic("t")
    append_batches(side, topic, 2, 10)
    name = group_of(side, "g")
    member = Member(side, name, "m", topic)
    member.join(1)
    member.records("first")
    member.acknowledge("all done", (0, 0, 19, [ACCEPT]))
    left(member)
    Offsets(side, name).alter("moved", {topic: {0: 13}})
    again = Member(side, name, "n", topic)
    again.join(1)
    again.records("from there on")
    (_, _, _, rows, _), = answered(side)["from there on"]
    assert rows == [(13, 19, 1)]


def test_offsets_of_missing_partitions_are_answered_without_effect(side):
    topic = side.topic("t")
    name = group_of(side, "g")
    offsets = Offsets(side, name)
    offsets.alter("loaded", {topic: {0: 1}})
    offsets.delete_group("gone again")
    odd = [-2**31, -1, 1, 2**31 - 1]
    found = ask(side.connection, DESCRIBE_OFFSETS, 1, groups=[
        {"group_id": group, "topics": [{"topic_name": where, "partitions": odd}
                                       for where in ("", topic, "no such topic")]}
        for group in ("", name, "g" * 30_000)])
    assert {cell["start_offset"] for group in found["groups"] for row in group["topics"]
            for cell in row["partitions"]} == {-1}
    found = ask(side.connection, ALTER_OFFSETS, 0, group_id=name, topics=[
        {"topic_name": where, "partitions": [
            {"partition_index": index, "start_offset": 5} for index in odd]}
        for where in ("", topic, "no such topic")])
    assert {cell["error_code"] for row in found["responses"]
            for cell in row["partitions"]} == {3}
    found = ask(side.connection, DELETE_OFFSETS, 0, group_id=name, topics=[
        {"topic_name": where} for where in ("", topic)])
    assert found["error_code"] == 69, "altering nothing has made a group"


@pytest.mark.parametrize("start", [-2**63, -2, 2**63 - 1])
def test_a_group_may_be_moved_anywhere(side, start):
    """An offset before the log starts at the first record; one after its end waits."""
    topic = side.topic("t")
    append_batches(side, topic, 1, 10)
    name = group_of(side, "g")
    offsets = Offsets(side, name)
    offsets.alter("moved", {topic: {0: start}})
    offsets.describe("described")
    member = Member(side, name, "m", topic)
    member.join(1)
    if start < 0:
        member.records("from the first on")
        (_, _, _, rows, _), = answered(side)["from the first on"]
        assert rows == [(0, 9, 1)]
    else:
        member.fetch("nothing", wait_ms=100)
        assert not any(cell["acquired_records"] for row in answered(side)["nothing"]["responses"]
                       for cell in row["partitions"])
    left(member)


def test_repeated_offset_is_answered_and_the_last_entry_counts(side):
    topic = side.topic("t")
    append_batches(side, topic, 1, 10)
    name = group_of(side, "g")
    offsets = Offsets(side, name)
    offsets.alter("loaded", {topic: {0: 1}})
    found = ask(side.connection, ALTER_OFFSETS, 0, group_id=name, topics=[
        {"topic_name": topic, "partitions": [
            {"partition_index": 0, "start_offset": start} for start in (3, 4)]}] * 2)
    assert {cell["error_code"] for row in found["responses"]
            for cell in row["partitions"]} == {0}
    offsets.describe("described")
    group, = answered(side)["described"]["groups"]
    assert [cell["start_offset"] for cell in group["topics"][0]["partitions"]] == [4]


def test_deliveries_and_acknowledgements_are_counted_by_group(side):
    topic = side.topic("t")
    append_batches(side, topic, 2, 10)
    name = group_of(side, "g")
    member = Member(side, name, "m", topic)
    member.join(1)
    member.records("first")
    member.acknowledge("some", (0, 0, 4, [ACCEPT]), (0, 5, 6, [1, 3]))
    found = scrape.families(scrape.address_of(side.broker))

    def samples(family):
        return {(*sample.labels.values(),): sample.value
                for sample in found[family].samples if sample.labels.get("group") == name}

    assert samples("pylog_share_acquired_records") == {(name,): 20}
    said = {kind: value for (_, kind), value
            in samples("pylog_share_acknowledged_records").items()}
    assert (said["accept"], said["reject"], said["release"]) == (6, 1, 0)
    assert set(samples("pylog_share_in_flight_records").values()) == {13}
    assert found["pylog_share_sessions"].samples[0].value >= 1
    left(member)


def test_member_over_its_byte_rate_is_muted(side):
    topic = side.topic("t")
    append_batches(side, topic, 2, 10)
    name = group_of(side, "g")
    member = Member(side, name, "m", topic)
    member.join(1)

    def limited(value):
        answer = ask(side.connection, QUOTAS, 1, validate_only=False, entries=[{
            "entity": [{"entity_type": "user", "entity_name": None}],
            "ops": [{"key": "consumer_byte_rate", "value": value, "remove": value == 0}]}])
        assert answer["entries"][0]["error_code"] == 0

    limited(20.0)
    answer = member.records("limited")
    limited(0.0)
    assert answer["throttle_time"] > 0
