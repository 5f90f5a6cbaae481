"""Share groups and Streams groups: their lag explained, and their offsets changed."""

import asyncio
import html
import re
import time
import uuid

import pytest

from pylog.client import Admin, NewTopic, ShareConsumer, TopicPartition
from pylog.client.aio import Admin as AsyncAdmin
from pylog.client.consumer.offset_requests import ask_coordinator
from pylog.client.errors import GroupIdNotFoundError
from pylog.console.groups import share_reasons
from pylog.console.groups.lag import Group, Member
from pylog.protocol import messages
from tests.console.views.test_group_changes import previewed

TOPIC = "shared"


@pytest.fixture(scope="module")
def shared(broker):
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, 1)])
        broker.topic(TOPIC).append(*[b"%d" % number for number in range(50)])
        with ShareConsumer(bootstrap_servers=broker.bootstrap, group_id="sharing") as consumer:
            consumer.subscribe([TOPIC])
            end_s = time.monotonic() + 60
            while not _has_member(admin):
                assert time.monotonic() < end_s
                consumer.poll(0.2)
    return "sharing"


@pytest.fixture
def group(broker, shared):
    """Return a share group that has processed nothing of its topic."""
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.alter_share_group_offsets(shared, {TopicPartition(TOPIC, 0): 0})
    return shared


def _has_member(admin):
    try:
        return any(one.assignment for one in admin.describe_share_groups(["sharing"])[
            "sharing"].members)
    except GroupIdNotFoundError:
        return False


def row(partition=0, offset=5, lag=10, end=15, member="m"):
    return {"topic": "t", "partition": partition, "committed_offset": offset, "lag_records": lag,
            "end_offset": end, "member_id": member}


ONE = [Member("m", None, "c", "h", "", ())]


@pytest.mark.parametrize(("members", "before", "now", "text"), [
    ([], [row()], [row()], "no members (Empty), and 10 records are not processed"),
    (ONE, [], [], "no partitions"), (ONE, [row(lag=0)], [row(lag=0)], "does not lag"),
    (ONE, [row()], [row()], "the record at offset 5 is not processed"),
    (ONE, [row(member=None)], [row(member=None)], "1 lagging partition has no member"),
    (ONE, [row(lag=30)], [row(offset=25, lag=10)], "10 a second are processed: it catches up"),
    (ONE, [row(end=15)], [row(offset=6, lag=29, end=35)], "it does not catch up"),
    (ONE, [row(offset=None, lag=None)], [row(offset=None, lag=None)], "has not started"),
    (ONE, [row(lag=None)], [row(lag=None)], "unknown, such as t-0")])
def test_the_lag_of_a_share_group_has_a_reason(members, before, now, text):
    found = share_reasons.reasons(Group("g", "share", "Empty", "", 0, members), before, now, 2.0)
    assert any(text in one for one in found), found


def test_the_page_explains_a_share_group(client, group):
    page = client.get(f"/groups/{group}/explain")
    assert page.status == 200
    assert "The group has no members (Empty), and 50 records are not processed." in page.text
    assert f"/groups/{group}/offsets" in client.get(f"/groups/{group}").text


def test_offsets_of_a_share_group_change_after_a_preview(broker, client, group):
    text, apply = previewed(client, group, way="offset", value="20")
    assert "Commit 1 offsets" in text
    assert client.post(f"/groups/{group}/offsets", apply).status == 303
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        assert [one.start_offset for one in admin.list_share_group_offsets(group).values()] == [20]
        _, apply = previewed(client, group, way="delete")
        assert client.post(f"/groups/{group}/offsets", apply).status == 303
        assert not any(one.start_offset >= 0
                       for one in admin.list_share_group_offsets(group).values())


def test_a_streams_group_has_its_pages(broker, client):
    """The member sends what Kafka Streams sends: one subtopology that reads one topic."""
    broker.create_topic("words", partitions=1).append(b"a", b"b", b"c")
    new = messages.StreamsGroupHeartbeatRequest
    member = str(uuid.uuid4())

    async def beat(epoch):
        request = new(
            group_id="counting", member_id=member, member_epoch=epoch,
            endpoint_information_epoch=0, rebalance_timeout_ms=60_000, process_id="p-1",
            active_tasks=[], standby_tasks=[], warmup_tasks=[], topology=None if epoch else
            new.Topology(epoch=0, subtopologies=[new.Subtopology(
                subtopology_id="0", source_topics=["words"])]))
        async with AsyncAdmin(bootstrap_servers=broker.bootstrap) as admin:
            return await ask_coordinator(admin.cluster, "counting", lambda _: (request, None))

    answer, end_s = asyncio.run(beat(0)), time.monotonic() + 60
    while not answer.active_tasks:
        assert answer.error_code == 0 and time.monotonic() < end_s, answer
        time.sleep(0.2)
        answer = asyncio.run(beat(answer.member_epoch))
    page = html.unescape(client.get("/groups/counting").text)
    assert "0_0" in page and "streams" in page
    assert client.get("/groups/counting/explain").status == 200
    assert client.get("/groups/counting/offsets").status == 200
    assert re.search(r"counting.*streams", client.get("/groups?type=streams").text, re.DOTALL)
