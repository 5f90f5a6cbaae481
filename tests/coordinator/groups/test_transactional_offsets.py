"""Transactional offset commits, as their log contains them."""

from pylog.coordinator.groups import offsets
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.state import classic_group, classic_records
from pylog.coordinator.groups.state.classic_group import NO_TIME, Group, Offset
from pylog.coordinator.groups.transactional_offsets import replay
from pylog.coordinator.runtime.transactional_batches import Marker, TransactionalRecords
from tests.coordinator.world import LIMITS, Clock

PLACE = "t", 0
ENTRY = Offset(5, -1, "", 1, NO_TIME, bytes(16))


def test_other_records_in_a_transaction_are_ignored():
    groups = GroupShard(LIMITS, Clock(), lambda: "id")
    key, value = classic_records.offset_key("g", *PLACE), classic_records.offset_value(ENTRY)
    replay(groups, TransactionalRecords(7, 0, [
        (classic_group.group_key("h"), classic_records.group_value(Group("h", 0))),
        (b"\x7f\xff", b"of a later version"), (classic_records.offset_key("h", *PLACE), None),
        (key, value)]))
    assert list(groups.groups) == ["g"]
    replay(groups, Marker(7, 0, -1, True, 0))
    groups.loaded()
    assert offsets.fetch(groups, "g", [("t", [0])], True) == [("t", [(0, ENTRY)])]
