"""Streams groups at the command line: their topology, assigned tasks, and lag."""

import pytest

from tests.client.support import put, rows
from tests.fixtures.brokers import Brokerd
from tests.tools.support import run, topic_of
from tests.wire.sides import Side
from tests.wire.test_differential_streams_groups import COMMIT, Talk, ask, subtopology

pytestmark = pytest.mark.timeout(180)
# Members here send only one heartbeat.
LONG_MS = 3_600_000
SETTINGS = {"group.streams.session.timeout.ms": LONG_MS,
            "group.streams.max.session.timeout.ms": LONG_MS}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Brokerd(tmp_path_factory.mktemp("streams"), SETTINGS) as started:
        yield started


@pytest.fixture
def talk(broker):
    made = Talk(Side(broker))
    made.rebalance_ms = LONG_MS
    return made


@pytest.fixture
def application(broker, talk):
    """A group of one member that counts the records of a topic with three partitions; it has
    committed the second of two records of the first partition. Returns the topic's name.
    """
    topic = topic_of(broker, 3)
    put(broker, topic, rows(2))
    joined = talk.joined("counter", subtopology("0", [topic]))
    answer = ask(talk.side.connection, COMMIT, 9, group_id=talk.group, member_id="counter",
                 generation_id_or_member_epoch=joined["member_epoch"], topics=[{
                     "name": topic, "partitions": [{
                         "partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]}])
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0, answer
    return topic


def described(broker, talk) -> dict:
    found, = run("streams", "describe", talk.group, "--json", broker=broker).json
    return found


def test_only_streams_groups_are_listed(broker, talk, application):
    run("groups", "reset-offsets", "plain", "--topic", application, "--to-earliest", "--execute",
        broker=broker)
    found = run("streams", "list", "--json", broker=broker).json
    assert {row["group"] for row in found} >= {talk.group}
    assert "plain" not in {row["group"] for row in found}
    fitting = run("streams", "list", talk.group[:-1] + "?", "--json", broker=broker).json
    # Groups of other tests may have similar names.
    states = {row["group"]: row["state"] for row in fitting}
    assert states[talk.group] == "Stable"
    assert {len(name) for name in states} == {len(talk.group)}


def test_a_group_is_described_with_its_epochs_topology_and_lag(broker, talk, application):
    found = described(broker, talk)
    assert (found["state"], found["topology_epoch"], found["lag_records"]) == ("Stable", 0, 1)
    assert found["group_epoch"] == found["assignment_epoch"] >= 1
    part, = found["subtopologies"]
    assert (part["subtopology"], part["sources"], part["changelogs"]) == ("0", [application], [])
    shown = run("streams", "describe", talk.group, broker=broker).out
    assert "topology 0" in shown
    assert application in shown


def test_each_partition_is_shown_with_its_task_and_member(broker, talk, application):
    found = described(broker, talk)["partitions"]
    assert [(row["topic"], row["partition"], row["task"], row["committed_offset"],
             row["end_offset"]) for row in found] == [
                 (application, 0, "0_0", 1, 2), (application, 1, "0_1", None, 0),
                 (application, 2, "0_2", None, 0)]
    assert len({row["client_id"] for row in found}) == 1
    assert found[0]["client_id"]


def test_members_are_shown_with_their_tasks_of_each_kind(broker, talk, application):
    member, = run("streams", "members", talk.group, "--json", broker=broker).json
    assert member["member_id"] == "counter"
    assert member["process_id"] == "of counter"
    assert member["active"] == ["0_0", "0_1", "0_2"]
    assert (member["standby"], member["warmup"], member["is_at_target"]) == ([], [], True)
    assert "0_0,0_1,0_2" in run("streams", "members", talk.group, broker=broker).out


def test_tasks_still_to_be_moved_are_distinguished_from_moved_ones(broker, talk, application):
    talk.joined("second", subtopology("0", [application]))
    found = {row["member_id"]: row for row in run("streams", "members", talk.group, "--json",
                                                  broker=broker).json}
    targets = [task for row in found.values() for task in row["target"]["active"]]
    assert sorted(targets) == ["0_0", "0_1", "0_2"]
    assert found["counter"]["active"] == ["0_0", "0_1", "0_2"]
    assert not found["counter"]["is_at_target"]


def test_misspelt_group_name_suggests_the_intended_one(broker, talk, application):
    told = run("streams", "describe", talk.group + "x", broker=broker, fails=True).err
    assert talk.group in told


def test_consumer_group_command_refers_streams_groups_to_their_command(broker, talk, application):
    told = run("groups", "describe", talk.group, broker=broker, fails=True).err
    assert "pylog streams describe" in told
