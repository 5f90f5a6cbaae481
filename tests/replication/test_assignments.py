"""Reports of log directories to the controller."""

import asyncio

from pylog.metadata.image.image import LOST, Partition, Topic
from pylog.peer.errors import PeerError
from pylog.protocol import messages
from pylog.replication import assignments
from pylog.replication.assignments import Assignments

ID, ONE, TWO = (bytes(15) + bytes([number]) for number in (7, 11, 12))


class Logs:
    """Partitions 0, 2, 4 ... are in the first directory, the others in the second."""

    paths = ["/one", "/two"]
    without_files: tuple = ()

    def lacks_files(self, name, index):
        return index in self.without_files

    def get(self, name, index):
        return index < 8 or None

    def dir_index(self, name, index):
        return index % 2


class Channel:
    broker_epoch = 5

    def __init__(self, *failures):
        self.failures = list(failures)
        self.asked: list = []

    async def call(self, request):
        self.asked.append(request)
        if self.failures:
            raise self.failures.pop()
        return messages.AssignReplicasToDirsResponse()

    def send_heartbeats(self):
        raise AssertionError


def topic(*directories, replicas=(9, 1)) -> Topic:
    return Topic("t", ID, tuple(
        Partition(replicas, replicas, 1, 0, 0, 0, (), (), (), (), (ONE, directory))
        for directory in directories))


def told(channel, *topics) -> list:
    """Return [{directory: partitions}] of each request."""
    async def go():
        made = Assignments(1, channel, Logs(), {"/one": ONE, "/two": TWO})
        for each in topics:
            made.check(each)
        for _ in range(40):
            await asyncio.sleep(0.005)
        await made.close()

    asyncio.run(go())
    return [{bytes(directory.id): [row.partition_index for row in directory.topics[0].partitions]
             for directory in request.directories} for request in channel.asked]


def test_replicas_in_other_directories_than_the_image_are_reported_in_one_request():
    assert told(Channel(), topic(ONE, TWO, bytes(16), ONE)) == [{ONE: [2], TWO: [3]}]


def test_a_replica_without_files_is_reported_as_lost(monkeypatch):
    monkeypatch.setattr(Logs, "without_files", (1, 9))
    assert told(Channel(), topic(ONE, TWO, ONE, TWO, *[ONE, TWO] * 3)) == [{LOST: [1, 9]}]
    assert told(Channel(), topic(ONE, LOST)) == []


def test_directories_matching_the_image_are_not_reported():
    assert told(Channel(), topic(ONE, TWO)) == []


def test_directories_that_match_a_newer_image_are_not_reported():
    assert told(Channel(), topic(TWO), topic(ONE)) == []


def test_foreign_replicas_and_those_without_a_log_are_not_reported():
    assert told(Channel(), topic(TWO, replicas=(9, 3))) == []
    assert told(Channel(), topic(*[ONE, TWO] * 4, TWO)) == []


def test_failed_report_is_repeated_after_a_pause(monkeypatch):
    monkeypatch.setattr(assignments, "AGAIN_S", 0.05)
    channel = Channel(PeerError("gone"), ValueError("planted"))
    assert told(channel, topic(TWO)) == [{ONE: [0]}] * 3
