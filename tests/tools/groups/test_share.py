"""Share groups at the command line: their offsets, and their dead letters."""

import time

import pytest

from pylog.client import Acknowledge, Admin, ConfigResource, NewTopic, ResourceType
from pylog.tools.groups import dead_letters
from tests.client.support import collect, new_topic, put, reader, rows
from tests.fixtures.brokers import Brokerd
from tests.share.test_dead_letters import SETTINGS, WAIT_S, Dead
from tests.tools.support import run

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Brokerd(tmp_path_factory.mktemp("share"), SETTINGS) as started:
        yield started


@pytest.fixture
def dead(broker):
    """A group that has given up two of three records."""
    made = Dead(broker, **{"errors.deadletterqueue.copy.record.enable": "true"})
    made.make()
    put(broker, made.topic, rows(3))
    made.give_up(3)
    made.letters(3)
    return made


def values(broker, topic, count):
    with reader(broker, topic) as consumer:
        return [record.value for record in collect(consumer, count)]


def test_share_group_is_listed_and_described_with_its_offsets(
        broker, dead):
    assert dead.group in [row["group"] for row in
                          run("share", "list", "--json", broker=broker).json]
    end_s = time.monotonic() + WAIT_S
    while True:
        # The last dead letters may be written before their records are archived.
        found, = run("share", "describe", dead.group, "--json", broker=broker).json
        part, = found["partitions"]
        if part["lag"] == 0:
            break
        assert time.monotonic() < end_s, found
        time.sleep(0.1)
    assert (part["topic"], part["partition"]) == (dead.topic, 0)
    assert (found["state"], found["members"], found["dead_letter_topic"]) == (
        "Empty", 0, dead.name)
    assert dead.name in run("share", "describe", dead.group, broker=broker).out


def test_topic_that_rejects_dead_letters_is_reported(broker):
    made = Dead(broker)
    put(broker, made.topic, rows(1))
    made.give_up(1, Acknowledge.ACCEPT)
    look, describe = ("share", "look", made.group), ("share", "describe", made.group)
    assert f"there is no topic {made.name}" in run(*describe, broker=broker).out
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(made.name, 1, 1)])
    for command in (look, describe):
        assert f"{made.name} does not have errors.deadletterqueue.group.enable=true" in run(
            *command, broker=broker).out
    run("configs", "set", "topic", made.name, "errors.deadletterqueue.group.enable=true",
        broker=broker)
    for command in (look, describe):
        assert "written" not in run(*command, broker=broker).out


def test_misspelt_group_name_suggests_the_intended_one(broker, dead):
    assert dead.group in run("share", "describe", dead.group + "x", broker=broker, fails=True).err


def test_letters_are_shown_with_their_record_and_why(broker, dead):
    found = run("share", "look", dead.group, "--json", broker=broker).json
    assert [(row["source"], row["deliveries"], row["why"], row["value"]) for row in found] == [
        (f"{dead.topic}-0@{number}", 1, "Offset rejected by client.", f"value {number}")
        for number in range(3)]
    assert found[1]["headers"] == {"n": "1"}
    one = run("share", "look", dead.group, "-n", "1", broker=broker).out
    assert "value 0" in one and "value 1" not in one


def test_records_go_back_once_and_only_when_that_is_wanted(broker, dead):
    told = run("share", "redrive", dead.group, "--dry-run", "--json", broker=broker).json
    assert [row["outcome"] for row in told["letters"]] == ["would return"] * 3
    assert "--yes" in run("share", "redrive", dead.group, broker=broker, fails=True).err
    for _ in range(2):
        run("share", "redrive", dead.group, "-y", broker=broker)
    put(broker, dead.topic, rows(1, 9))
    found = values(broker, dead.topic, 7)
    assert found[3:6] == found[:3] and found[6] == rows(1, 9)[0][1]
    with reader(broker, dead.topic) as consumer:
        assert list(collect(consumer, 5)[4].headers) == [("n", b"1")]


def test_records_go_back_once_when_two_redrives_run_at_the_same_time(broker, dead, monkeypatch):
    def confirm(question, yes):
        monkeypatch.undo()
        run("share", "redrive", dead.group, "-y", broker=broker)

    monkeypatch.setattr(dead_letters, "confirmed", confirm)
    run("share", "redrive", dead.group, "-y", broker=broker)
    put(broker, dead.topic, rows(1, 9))
    found = values(broker, dead.topic, 7)
    assert found[3:6] == found[:3] and found[6] == rows(1, 9)[0][1]


def test_dead_letter_without_a_copy_is_restored_from_its_record(broker):
    dead = Dead(broker)
    dead.make()
    put(broker, dead.topic, rows(2))
    dead.give_up(2)
    dead.letters(2)
    other = new_topic(broker)
    run("share", "redrive", dead.group, "-y", "--to", other, broker=broker)
    assert values(broker, other, 2) == [row[1] for row in rows(2)]
    run("topics", "delete-records", dead.topic, "--before", "1", "-y", broker=broker)
    ended = run("share", "redrive", dead.group, "-y", "--again", broker=broker, fails=True)
    assert "1 record is in no dead letter" in ended.err
    assert values(broker, dead.topic, 2) == [rows(2)[1][1]] * 2


def test_dead_letters_of_other_groups_are_not_purged(broker, dead):
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        other = Dead(broker)
        admin.incremental_alter_configs({ConfigResource(ResourceType.GROUP, other.group): {
            "errors.deadletterqueue.topic.name": dead.name}})
    put(broker, other.topic, rows(1))
    other.give_up(1, Acknowledge.REJECT)
    dead.letters(4)

    def kept():
        table = run("share", "purge", dead.group, "--dry-run", "--json", broker=broker).json
        return [(row["start_offset"], row["new_start_offset"]) for row in table["partitions"]]

    assert kept() == [(0, 3)]
    run("share", "purge", dead.group, "--redriven", "-y", broker=broker)
    assert kept() == [(0, 3)]
    run("share", "purge", dead.group, "-y", broker=broker)
    assert kept() == [(3, 3)]
    run("share", "purge", dead.group, "-y", "--with-others", broker=broker)
    assert run("share", "look", other.group, "--letters", dead.name, "--json",
               broker=broker).json == []
