"""Ranges of offsets, and their encoding."""

import pytest

from pylog.share.offset_ranges import (
    ACKNOWLEDGED, ACQUIRED, ARCHIVED, AVAILABLE, Range, StateBatch, states_of,
)


def test_adjacent_equal_ranges_are_merged():
    rows = [Range(3, 4, ACKNOWLEDGED, 1), Range(5, 5, ACKNOWLEDGED, 1, (5, 9)),
            Range(6, 9, ACKNOWLEDGED, 2), Range(10, 10, ARCHIVED, 2)]
    assert states_of(rows) == [
        StateBatch(3, 5, ACKNOWLEDGED, 1), StateBatch(6, 9, ACKNOWLEDGED, 2),
        StateBatch(10, 10, ARCHIVED, 2)]


def test_non_adjacent_ranges_are_written_separately():
    rows = [Range(0, 1, AVAILABLE, 1), Range(3, 4, AVAILABLE, 1)]
    assert states_of(rows) == [StateBatch(0, 1, AVAILABLE, 1), StateBatch(3, 4, AVAILABLE, 1)]
    assert states_of([]) == []


def test_split_range_keeps_state_owner_and_batch():
    row = Range(10, 19, ACQUIRED, 2, None, "a", 70)
    row.is_rejected = True
    rest = row.cut(14)
    assert (row.first, row.last, rest.first, rest.last) == (10, 13, 14, 19)
    for part in (row, rest):
        assert (part.state, part.count, part.batch, part.member, part.deadline_ms,
                part.is_rejected) == (ACQUIRED, 2, (10, 19), "a", 70, True)
    assert row.joins(rest)


@pytest.mark.parametrize("at", [10, 20])
def test_no_part_of_a_range_is_empty(at):
    with pytest.raises(AssertionError):
        Range(10, 19, AVAILABLE, 0).cut(at)


def test_range_being_written_is_not_split():
    row = Range(10, 19, ACKNOWLEDGED, 1)
    row.before = ACQUIRED, "a"
    with pytest.raises(AssertionError):
        row.cut(14)
