"""Of several directories with a partition's name one is used, and none is deleted."""

import base64
import os
from types import SimpleNamespace

import pytest

from pylog.log import startup_scan
from pylog.log.errors import StartError
from pylog.log.log_directories import Directories

ONE, OTHER = bytes(15) + b"\1", bytes(15) + b"\2"
COPY, NEXT = f"t-0.{'ab' * 16}-future", f"t-0.{'cd' * 16}-future"


class World:
    """Two log directories; `away` is one that the start could not use."""

    def __init__(self, path):
        self.paths = [str(path / name) for name in ("one", "two")]
        for one in self.paths:
            os.mkdir(one)
        self.disks = Directories(self.paths, None, None)
        self.disks.natives = [SimpleNamespace(offline=False, fail=lambda code: False)
                              for _ in self.paths]
        self.disks.listings = [set(), set()]

    def put(self, number, name, topic_id=None, size=None):
        path = os.path.join(self.paths[number], name)
        os.mkdir(path)
        self.disks.listings[number].add(name)
        if topic_id is not None:
            with open(os.path.join(path, "partition.metadata"), "w") as file:
                file.write("version: 0\ntopic_id: "
                           f"{base64.urlsafe_b64encode(topic_id).decode().rstrip('=')}\n")
        if size is not None:
            with open(os.path.join(path, f"{0:020d}.log"), "wb") as file:
                file.write(bytes(size))

    def find(self, clean=frozenset(), **ids):
        found, left = startup_scan.find(self.disks, ids, clean)
        return found, [os.path.relpath(path, os.path.dirname(self.paths[0])) for path in left]

    def names(self, number):
        return sorted(os.listdir(self.paths[number]))


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.mark.parametrize(("name", "found"), [
    ("t-0", True), ("a.b_c-D-12", True), ("x" * 249 + "-0", True), ("x" * 250 + "-0", False),
    ("-0", False), ("t-", False), ("t-0x", False), ("t 1-0", False), ("t-0.x-delete", False),
    ("__cluster_metadata-0", False), ("__cluster_metadata-1", True), ("__consumer_offsets-0", True),
    ("notes", False)])
def test_a_partitions_directory_has_kafkas_name_and_is_not_the_metadatas(name, found):
    assert startup_scan.is_partition(name) == found


def test_scan_finds_partitions_and_ignores_other_names(world):
    world.put(0, "t-0", ONE)
    world.put(1, "t-1", ONE)
    world.put(1, "u-0")
    world.put(0, "notes")
    assert world.find(t=ONE) == ({"t-0": 0, "t-1": 1, "u-0": 1}, [])
    assert (world.names(0), world.names(1)) == (["notes", "t-0"], ["t-1", "u-0"])


@pytest.mark.parametrize("clean", [False, True])
def test_a_directory_of_an_earlier_topic_is_set_aside_unless_names_are_believed(world, clean):
    world.put(1, "t-0", OTHER)
    assert world.find(frozenset({1} if clean else {0}), t=ONE)[0] == ({"t-0": 1} if clean else {})
    name, = world.names(1)
    assert (name == "t-0") == clean and (name.endswith("-stray")) != clean


def test_scan_does_not_set_aside_unknown_directories(world):
    world.put(0, "t-0")
    world.put(0, "u-0", OTHER)
    assert world.find(t=ONE)[0] == {"t-0": 0, "u-0": 0}


@pytest.mark.parametrize("number", [0, 1])
def test_directory_with_the_topics_id_is_chosen(world, number):
    world.put(number, "t-0", ONE)
    world.put(1 - number, "t-0", OTHER)
    every = frozenset({0, 1})
    assert world.find(every, t=ONE)[0] == {"t-0": number}
    assert world.names(number) == ["t-0"]
    assert [name.endswith("-stray") for name in world.names(1 - number)] == [True]


@pytest.mark.parametrize("ids", [(ONE, ONE), (None, ONE), (None, None)])
def test_duplicate_partition_directories_stop_the_start(world, ids):
    for number, topic_id in enumerate(ids):
        world.put(number, "t-0", topic_id)
    with pytest.raises(StartError, match="t-0 is in both .*one and .*two"):
        world.find(frozenset({0, 1}), t=ONE)
    assert world.names(0) == world.names(1) == ["t-0"]


@pytest.mark.parametrize(("topic_id", "aside"), [(OTHER, True), (ONE, False), (None, False)])
def test_directory_of_an_earlier_topic_is_set_aside_for_a_new_one(world, topic_id, aside):
    world.put(1, "t-0", topic_id)
    startup_scan.make_way(world.disks, 1, "t-0", ONE)
    assert (world.names(1) != ["t-0"]) == aside and len(world.names(1)) == 1


# Interrupted moves.

def test_the_only_copy_becomes_the_partition(world):
    world.put(1, COPY, ONE)
    assert world.find(t=ONE) == ({"t-0": 1}, []) and world.names(1) == ["t-0"]


def test_a_copy_beside_its_partition_is_marked_for_removal(world):
    world.put(0, "t-0", ONE)
    world.put(1, COPY, ONE)
    gone = COPY.replace("future", "delete")
    assert world.find(t=ONE) == ({"t-0": 0}, [os.path.join("two", gone)])
    assert world.names(1) == [gone]


def test_a_copy_of_an_earlier_topic_is_marked_for_removal(world):
    world.put(1, COPY, OTHER)
    assert world.find(t=ONE) == ({}, [os.path.join("two", COPY.replace("future", "delete"))])


def test_a_copy_of_no_partitions_name_is_marked_for_removal(world):
    name = COPY.replace("t-0", "__cluster_metadata-0")
    world.put(0, name)
    assert world.find() == ({}, [os.path.join("one", name.replace("future", "delete"))])


def test_longest_of_several_copies_becomes_the_partition(world):
    world.put(0, COPY, ONE, size=5)
    world.put(1, NEXT, ONE, size=6)
    gone = COPY.replace("future", "delete")
    assert world.find(t=ONE) == ({"t-0": 1}, [os.path.join("one", gone)])
    assert (world.names(0), world.names(1)) == ([gone], ["t-0"])


def test_copy_is_kept_while_another_directory_is_offline(world):
    world.put(0, COPY, ONE)
    world.disks.natives[1].offline = True
    assert world.find(t=ONE) == ({}, []) and world.names(0) == [COPY]


def test_copy_that_cannot_be_renamed_is_removed_in_place(world, monkeypatch):
    world.put(0, "t-0", ONE)
    world.put(1, COPY, ONE)
    monkeypatch.setattr(world.disks, "rename", lambda *_: False)
    assert world.find(t=ONE)[1] == [os.path.join("two", COPY)]


def test_copy_without_space_for_its_name_stops_the_start(world, monkeypatch):
    world.put(1, COPY, ONE)

    def refuse(name, goal):
        raise OSError(28, "planted")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(StartError, match="planted"):
        world.find(t=ONE)
    assert world.names(1) == [COPY]


def test_a_copy_that_cannot_be_renamed_at_the_start_does_not_cost_the_other_copies(
        world, monkeypatch, caplog):
    world.put(0, COPY, ONE, 100)
    world.put(1, NEXT, ONE, 50)
    failing = world.disks.natives[0]

    def fail(code):
        failing.offline = True
        return True

    failing.fail = fail
    rename = os.rename

    def refuse(path, goal):
        if path.endswith(COPY):
            raise OSError(5, "planted")
        rename(path, goal)

    monkeypatch.setattr(os, "rename", refuse)
    assert world.find(t=ONE) == ({"t-0": 0}, [])
    assert (world.names(0), world.names(1)) == ([COPY], [NEXT])
    assert "all copies of it are kept" in caplog.text
