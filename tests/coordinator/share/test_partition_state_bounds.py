"""The state of a share partition at its boundaries: fencing, records, and age."""

import pytest

from pylog.coordinator.share import partition_state
from pylog.coordinator.share.partition_state import (
    NO_OFFSET,
    NOT_COUNTED,
    Batch,
    ShareState,
    combined,
    decode,
)
from pylog.protocol.errors import ErrorCode
from tests.coordinator.share.test_shard import KEY, state_machine, reloaded, started, write
from tests.coordinator.world import Clock

COLD_MS = 1000
LEADER, EPOCH = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH


def rows_of(made) -> list[tuple]:
    """Return (share partition's index, True for a snapshot, the value) of each new record, and
    remove the records.
    """
    found = [decode(*record) for record in made.records]
    made.records = []
    return [(whose.partition, is_snapshot, row) for whose, is_snapshot, row in found]


# ---- initial state ------------------------------------------------------------------------------

@pytest.mark.parametrize("start, counted", [(NO_OFFSET, NOT_COUNTED), (0, 0), (10, 0)])
def test_delivery_complete_count_requires_a_start_offset(start, counted):
    made = state_machine()
    made.initialize(KEY, 1, start)
    (_, is_snapshot, row), = rows_of(made)
    assert is_snapshot and row.delivery_complete_count == counted and row.start_offset == start
    assert (row.snapshot_epoch, row.state_epoch) == (0, 1)


def test_reset_state_gets_the_next_snapshot_without_old_content():
    made = started()
    write(made, (10, 19, 2, 1))
    rows_of(made)
    assert made.initialize(KEY, 2, 50)[0] == ErrorCode.NONE
    (_, is_snapshot, row), = rows_of(made)
    assert is_snapshot and (row.snapshot_epoch, row.state_epoch) == (1, 2)
    assert row.state_batches == [] and row.start_offset == 50
    made.initialize(KEY, 3, 60)
    assert made.states[KEY].snapshot_epoch == 2


@pytest.mark.parametrize("epoch, error", [(-1, 0), (3, EPOCH), (4, 0), (5, 0)])
def test_only_a_state_epoch_that_is_older_is_fenced(epoch, error):
    made = state_machine()
    made.initialize(KEY, 4, 0)
    assert write(made, state=epoch) == error
    assert made.initialize(KEY, epoch, 0)[0] == error


@pytest.mark.parametrize("epoch, error", [(-1, 0), (3, LEADER), (4, 0), (5, 0)])
def test_only_a_leader_epoch_that_is_older_is_fenced(epoch, error):
    made = started()
    made.read(KEY, 4)
    assert write(made, leader=epoch) == error
    (found, _), state = made.read(KEY, epoch)
    assert found == error and (state is None) == (error != 0)


def test_partition_zero_is_valid_but_negative_ones_are_not():
    made = state_machine()
    zero, below = KEY._replace(partition=0), KEY._replace(partition=-1)
    assert made.initialize(zero, 1, 0) == (ErrorCode.NONE, None)
    assert write(made, (0, 0, 2, 1), key=zero) == ErrorCode.NONE
    assert made.summary(zero)[1] is made.states[zero]
    for fault in (made.initialize(below, 1, 0), made.summary(below)[0], made.delete(below),
                  made.read(below, 1)[0], made.write(below, 1, 1, 0, 0, [])):
        assert fault[0] == ErrorCode.INVALID_REQUEST and fault[1]


def test_deleted_topic_is_neither_read_nor_written():
    made = started()
    made._leader_epoch_of = lambda topic, index: None
    rows_of(made)
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert write(made, (10, 10, 2, 1)) == gone and made.read(KEY, 9)[0][0] == gone
    assert made.summary(KEY) == ((gone, None), None) and made.delete(KEY)[0] == gone
    assert rows_of(made) == [] and KEY in made.states


# ---- reads and writes ---------------------------------------------------------------------------

def test_only_a_newer_leader_that_reads_is_written():
    made = started()
    rows_of(made)
    for leader, count in ((-1, 0), (0, 0), (3, 1), (3, 0), (4, 1)):
        made.read(KEY, leader)
        rows = rows_of(made)
        assert len(rows) == count, leader
        assert all(not is_snapshot and row.leader_epoch == leader and row.state_batches == []
                   and row.start_offset == NO_OFFSET for _, is_snapshot, row in rows)
    assert made.states[KEY].leader_epoch == 4 and made.states[KEY].start_offset == 10


def test_write_without_a_start_offset_keeps_the_previous_one():
    made = started()
    rows_of(made)
    made.write(KEY, 1, 0, NO_OFFSET, 6, [Batch(10, 12, 2, 1)])
    (_, is_snapshot, row), = rows_of(made)
    assert not is_snapshot and row.delivery_complete_count == 6
    assert made.states[KEY].complete_count == 6 and made.states[KEY].start_offset == 10
    made.write(KEY, 1, 0, 11, 0, [])
    assert made.states[KEY].batches == [(11, 12, 2, 1)]


@pytest.mark.parametrize("row, error", [
    ((0, 0, 2, 0), 0), ((-1, 0, 2, 1), 42), ((5, 4, 2, 1), 42), ((5, 5, 2, 1), 0),
    ((5, 6, 2, -1), 42)])
def test_a_range_of_offsets_ascends_from_zero_and_was_not_delivered_less_than_never(row, error):
    made = started()
    rows_of(made)
    assert write(made, (20, 20, 2, 1), row) == error
    assert bool(rows_of(made)) == (error == 0)


def test_the_snapshot_after_so_many_updates_has_all_of_them_and_its_time():
    clock = Clock()
    made = started(updates_max=2, clock=clock)
    rows_of(made)
    for offset in (10, 11):
        write(made, (offset, offset, 2, 1))
    clock.ms += 70
    made.unsaved = {KEY}
    write(made, (12, 12, 2, 1))
    kinds = rows_of(made)
    assert [is_snapshot for _, is_snapshot, _ in kinds] == [False, False, True]
    row = kinds[-1][2]
    assert (row.snapshot_epoch, row.create_timestamp, row.write_timestamp) == (
        1, clock.wall_ms(), clock.wall_ms())
    assert [(cell.first_offset, cell.last_offset) for cell in row.state_batches] == [(10, 12)]
    assert made.unsaved == set() and made.states[KEY].updates == 0


# ---- the log ------------------------------------------------------------------------------------

def test_after_a_load_nothing_has_a_snapshot_that_counts():
    made = reloaded(started())
    assert made.unsaved == {KEY}


def test_update_without_a_snapshot_creates_a_state():
    """Compaction may have removed the snapshot that a later one replaced."""
    made = started()
    made.initialize(KEY, 2, 20)
    write(made, (20, 20, 2, 1), state=2)
    update = made.records[-1:]
    made.records = update
    found = reloaded(made).states[KEY]
    assert (found.snapshot_epoch, found.batches) == (1, [(20, 20, 2, 1)])


def test_records_of_newer_types_are_skipped():
    made = state_machine()
    made.replay(b"\x7f\xff", b"of a later version")
    made.replay(partition_state.snapshot_key(KEY), None)
    assert made.states == {}


# ---- upkeep -------------------------------------------------------------------------------------

@pytest.mark.parametrize("ms, count", [(COLD_MS - 1, 0), (COLD_MS, 1)])
def test_a_state_is_cold_at_its_age(ms, count):
    clock = Clock()
    made = started(clock=clock, cold_ms=COLD_MS)
    made.mark()
    rows_of(made)
    clock.ms += ms
    assert len(list(made.save_cold())) == count
    rows = rows_of(made)
    assert [is_snapshot for _, is_snapshot, _ in rows] == [True] * count
    assert made.states[KEY].snapshot_epoch == count and (KEY in made.unsaved) == (not count)
    if count:
        assert rows[0][2].snapshot_epoch == 1
        assert rows[0][2].write_timestamp == clock.wall_ms()
        assert rows[0][2].create_timestamp == clock.wall_ms() - ms
    assert list(made.save_cold()) == []


def test_each_cold_state_takes_one_step_and_deleted_ones_are_skipped():
    clock = Clock()
    made = started(clock=clock)
    for index in (0, 1, 2):
        made.initialize(KEY._replace(partition=index), 1, 0)
    made.mark()
    clock.ms += COLD_MS
    steps = made.save_cold()
    next(steps)
    left, = set(list(made.unsaved)[:1])
    made.states.pop(left)
    assert len(list(steps)) == 2


def test_state_with_an_existing_partition_is_kept():
    made = started()
    other = KEY._replace(partition=1)
    made.initialize(other, 1, 0)
    made.mark()
    made._leader_epoch_of = lambda topic, index: 0 if index == 1 else None
    rows_of(made)
    made.forget_gone()
    assert made.states.keys() == made.unsaved == {other}
    assert rows_of(made) == [(KEY.partition, True, None)]


def test_a_deleted_state_is_written_once_and_needs_no_snapshot():
    made = started()
    made.mark()
    rows_of(made)
    made.delete(KEY)
    made.delete(KEY)
    assert rows_of(made) == [(KEY.partition, True, None)]
    assert made.unsaved == set()


# ---- batches ------------------------------------------------------------------------------------

def test_neighbouring_batches_are_merged_only_if_equal():
    assert combined([Batch(0, 1, 2, 1), Batch(2, 3, 2, 1)], 0) == [(0, 3, 2, 1)]
    assert combined([Batch(0, 1, 2, 1), Batch(3, 4, 2, 1)], 0) == [(0, 1, 2, 1), (3, 4, 2, 1)]
    assert combined([Batch(0, 1, 2, 1), Batch(2, 3, 4, 1)], 0) == [(0, 1, 2, 1), (2, 3, 4, 1)]
    assert combined([Batch(0, 1, 2, 1), Batch(2, 3, 2, 2)], 0) == [(0, 1, 2, 1), (2, 3, 2, 2)]


@pytest.mark.parametrize("start, found", [
    (4, [(5, 9, 2, 1)]), (5, [(5, 9, 2, 1)]), (6, [(6, 9, 2, 1)]), (9, [(9, 9, 2, 1)]), (10, [])])
def test_offsets_before_the_start_are_removed(start, found):
    assert combined([Batch(5, 9, 2, 1)], start) == found


def test_unread_updates_are_combined_before_they_accumulate():
    most, state = partition_state.PENDING_MIN, ShareState()
    state.add([Batch(number, number, 2, 1) for number in range(most)])
    assert len(state._pending) == most
    state.add([Batch(most, most, 2, 1)])
    assert state._pending == [] and state.batches == [(0, most, 2, 1)]


def test_uncombined_updates_are_at_most_twice_the_state():
    most, state = partition_state.PENDING_MIN, ShareState()
    apart = [Batch(number, number, 2, 1) for number in range(0, 4 * most, 2)]
    state.add(apart)
    assert state._pending == [] and state.batches == apart
    state.add(apart * 2)
    assert len(state._pending) == 4 * most
    state.add(apart[:1])
    assert state._pending == [] and state.batches == apart


def test_a_key_needs_a_group_a_topic_id_and_a_number():
    assert partition_state.is_key("a:AAAAAAAAAAAAAAAAAAAAAA:0")
    assert not partition_state.is_key("a:AAAAAAAAAAAAAAAAAAAAAA:")
    assert not partition_state.is_key("a:AAAAAAAAAAAAAAAAAAAAAA:-1")
    assert not partition_state.is_key("a:AAAAAAAAAAAAAAAAAAAAAAAA:0")
