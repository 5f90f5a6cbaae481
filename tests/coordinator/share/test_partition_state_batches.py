"""The states of a share partition's offsets, compared with a list that has one entry per offset."""

import pytest

from pylog.coordinator.share import partition_state
from pylog.coordinator.share.partition_state import Batch, ShareKey, ShareState, combined, is_key

KEY = ShareKey("g", bytes(range(16)), 3)


def by_offset(batches, start):
    """offset -> (deliveries, state): the oracle of combined()."""
    found = {}
    for row in batches:
        for offset in range(max(row.first, start), row.last + 1):
            found[offset] = max(found.get(offset, (-1, -1)), (row.deliveries, row.state))
    return found


def drawn(random_source, count):
    rows = []
    for _ in range(count):
        first = random_source.randrange(12)
        rows.append(Batch(first, first + random_source.randrange(4), random_source.randrange(3),
                          random_source.randrange(1, 4)))
    return rows


def test_each_offset_has_its_latest_state_and_batches_are_as_few_as_can_be(random_source):
    for _ in range(2000):
        rows, start = drawn(random_source, random_source.randrange(7)), random_source.randrange(9)
        found = combined(rows, start)
        assert by_offset(found, -1) == by_offset(rows, start), (rows, start)
        for one, after in zip(found, found[1:]):
            assert one.last < after.first, (rows, found)
            assert one.last + 1 < after.first or (one.state, one.deliveries) != (
                after.state, after.deliveries), (rows, found)
        assert all(one.first <= one.last for one in found)


def test_incremental_updates_produce_the_same_state(
        random_source, monkeypatch):
    monkeypatch.setattr(partition_state, "PENDING_MIN", 5)
    for _ in range(300):
        state, every, start = ShareState(), [], 0
        for _ in range(random_source.randrange(1, 13)):
            rows = drawn(random_source, random_source.randrange(4))
            every += rows
            state.add(rows)
            assert len(state._pending) <= 2 * 15  # Limited by the number of offsets.
            if random_source.random() < 0.4:
                start = state.start_offset = max(start, random_source.randrange(9))
            if random_source.random() < 0.4:
                assert by_offset(state.batches, -1) == by_offset(every, start)
        state.start_offset = start
        assert state.batches == combined(every, start)


def cells(*batches):
    new = partition_state.messages.ShareUpdateValue.StateBatch
    return [new(first_offset=row.first, last_offset=row.last, delivery_state=row.state,
                delivery_count=row.deliveries) for row in batches]


def fields(state):
    return {name: getattr(state, name) for name in (
        "snapshot_epoch", "state_epoch", "leader_epoch", "start_offset", "complete_count",
        "create_ms", "write_ms", "updates", "batches")}


def test_update_changes_only_its_fields():
    state = ShareState(4, 5)
    assert fields(state) == {
        "snapshot_epoch": 4, "state_epoch": 5, "leader_epoch": 0, "start_offset": -1,
        "complete_count": -1, "create_ms": 0, "write_ms": 0, "updates": 0, "batches": []}
    new = partition_state.messages.ShareUpdateValue
    state.update(new(start_offset=10, leader_epoch=2, delivery_complete_count=6,
                     state_batches=cells(Batch(8, 11, 0, 1))))
    assert (state.start_offset, state.leader_epoch, state.complete_count, state.updates) == (
        10, 2, 6, 1)
    assert state.batches == [Batch(10, 11, 0, 1)]
    state.update(new(start_offset=-1, leader_epoch=1, delivery_complete_count=7,
                     state_batches=cells(Batch(12, 12, 0, 1))))
    assert (state.start_offset, state.leader_epoch, state.complete_count, state.updates) == (
        10, 2, 7, 2)
    assert state.batches == [Batch(10, 12, 0, 1)]
    state.update(new(start_offset=0, leader_epoch=2, delivery_complete_count=0))
    assert (state.start_offset, state.leader_epoch) == (0, 2)


def test_snapshot_contains_everything_except_the_update_count():
    state = ShareState(4, 5)
    state.leader_epoch, state.start_offset, state.complete_count = 6, 7, 8
    state.create_ms, state.write_ms, state.updates = 9, 10, 11
    state.add([Batch(12, 13, 2, 1), Batch(14, 15, 0, 2)])
    key, is_snapshot, row = partition_state.decode(
        partition_state.snapshot_key(KEY), partition_state.snapshot_value(state))
    assert (key, is_snapshot) == (KEY, True)
    assert fields(partition_state.state_from(row)) == {**fields(state), "updates": 0}
    assert partition_state.decode(partition_state.update_key(KEY), None) == (KEY, False, None)
    assert partition_state.decode(partition_state.snapshot_key(KEY), None) == (KEY, True, None)
    assert partition_state.decode(b"\0\x7f", None) is None


@pytest.mark.parametrize("text, expected", [
    (KEY.text, True), ("g:AAECAwQFBgcICQoLDA0ODw:3", True), ("g:AAECAwQFBgcICQoLDA0ODw:-1", False),
    ("g:AAECAwQFBgcICQoLDA0ODw:", False), (":AAECAwQFBgcICQoLDA0ODw:3", False), ("g", False),
    ("g:AAECAwQFBgcICQoLDA0O:3", False), ("g:AAECAwQFBgcICQoLDA0ODxA:3", False), ("g:A:3", False)])
def test_a_key_names_a_group_a_topic_id_and_a_partition(text, expected):
    assert is_key(text) is expected
    assert KEY.text == "g:AAECAwQFBgcICQoLDA0ODw:3"
