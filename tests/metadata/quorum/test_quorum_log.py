import time

import pytest

from pylog._native.log.log import LogDir, Shortage
from pylog.metadata.quorum.quorum_log import QuorumLog
from pylog.metadata.quorum.quorum_state import Quorum
from pylog.protocol import messages
from tests.metadata.memory_keys import MemoryKeys, memory_store

NOW_MS = 1_700_000_000_000


@pytest.fixture
def logs(tmp_path):
    """Create logs of an active controller, and of one on standby."""
    quorum = Quorum(MemoryKeys(memory_store()), "/q/", 1.0, time.monotonic)
    made = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        made.append(QuorumLog(LogDir(str(tmp_path / name)), None, lambda: NOW_MS, quorum))
    made[0].begin_term(quorum.campaign(1, "h1", 9093, 3600, quorum.read_view()))
    return made


def append(log, *names):
    for name in names:
        log.append([messages.TopicRecord(name=name, topic_id=bytes(16))], 1, log.end_offset)


def names_of(batches):
    return [record.name for batch in batches for record in batch.records]


def test_records_copied_before_the_disk_was_full_are_returned(logs, monkeypatch):
    first, second = logs
    append(first, "a", "b", "c", "d")
    copied, failures = second._copy, [None, None, Shortage(0, 56, "no room"), None, None]

    def copy(base, data):
        failure = failures.pop(0)
        if failure is not None:
            raise failure
        return copied(base, data)
    monkeypatch.setattr(second, "_copy", copy)
    assert names_of(second.catch_up()) == ["a", "b"]
    assert names_of(second.catch_up()) == ["c", "d"]
    assert second.catch_up() == [] and second.end_offset == first.end_offset


def test_full_disk_is_reported_if_nothing_was_copied(logs, monkeypatch):
    first, second = logs
    append(first, "a")

    def refused(base, data):
        raise Shortage(0, 56, "no room")
    with monkeypatch.context() as full:
        full.setattr(second, "_copy", refused)
        with pytest.raises(Shortage):
            second.catch_up()
    assert names_of(second.catch_up()) == ["a"]
