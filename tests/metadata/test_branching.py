"""What a branch has of its source's metadata."""

from types import SimpleNamespace

from pylog.metadata import branching
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode

BRANCH, PLAIN = b"b" * 16, b"p" * 16


def test_only_branches_get_the_leader_epochs_of_their_sources():
    source = SimpleNamespace(partitions=[SimpleNamespace(leader_epoch=7)])
    results = [
        SimpleNamespace(name="plain", topic_id=PLAIN, error=ErrorCode.NONE),
        SimpleNamespace(name="branch", topic_id=BRANCH, error=ErrorCode.NONE),
        SimpleNamespace(name="refused", topic_id=bytes(16), error=ErrorCode.INVALID_CONFIG)]
    records = [messages.PartitionRecord(topic_id=id_, partition_id=0, leader_epoch=0)
               for id_ in (PLAIN, BRANCH)]
    branching.with_epochs(SimpleNamespace(topics={"source": source}), records, results, {
        "branch": ("source", None), "refused": ("source", None)})
    assert [record.leader_epoch for record in records] == [0, 7]
