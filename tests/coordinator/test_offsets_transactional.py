"""Offsets of transactions, as their log has them."""

from pylog.coordinator import offsets, records
from pylog.coordinator.batches import Marker, TransactionalRecords
from pylog.coordinator.group import NO_TIME, Group, Offset
from pylog.coordinator.groups import Groups
from pylog.coordinator.offsets_transactional import replay
from tests.coordinator.world import LIMITS, Clock

PLACE = "t", 0
ENTRY = Offset(5, -1, "", 1, NO_TIME, bytes(16))


def test_what_a_transaction_holds_besides_offsets_is_passed_over():
    groups = Groups(LIMITS, Clock(), lambda: "id")
    key, value = records.offset_key("g", *PLACE), records.offset_value(ENTRY)
    replay(groups, TransactionalRecords(7, 0, [
        (records.group_key("h"), records.group_value(Group("h", 0))),
        (b"\x7f\xff", b"of a later version"), (records.offset_key("h", *PLACE), None),
        (key, value)]))
    assert list(groups.groups) == ["g"]
    replay(groups, Marker(7, 0, -1, True, 0))
    groups.loaded()
    assert offsets.fetch(groups, "g", [("t", [0])], True) == [("t", [(0, ENTRY)])]
