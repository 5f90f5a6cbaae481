"""Acquired records, compared with a table with an entry for each offset."""

import pytest

from pylog.client.share.acknowledgements import GAP, Acknowledge, Batch, DeliveredRecords

ACCEPT, RELEASE, REJECT, RENEW = Acknowledge


def hand(*ranges, gaps=()) -> DeliveredRecords:
    made = DeliveredRecords(1)
    made.add(ranges, gaps)
    return made


def test_implicit_acknowledgements_are_sent_as_ranges():
    one = hand((0, 4), (7, 9))
    assert one.take(ACCEPT) == [Batch(0, 4, ACCEPT), Batch(7, 9, ACCEPT)]
    assert one.ranges == [] and one.unacknowledged_count == 0


def test_adjacent_equal_acknowledgements_are_one_batch():
    one = hand((0, 5))
    for offset, kind in enumerate((ACCEPT, ACCEPT, RELEASE, REJECT, REJECT, ACCEPT)):
        assert one.acknowledge(offset, kind)
    assert one.take(None) == [Batch(0, 1, ACCEPT), Batch(2, 2, RELEASE), Batch(3, 4, REJECT),
                              Batch(5, 5, ACCEPT)]


def test_unacknowledged_records_stay_in_hand():
    one = hand((0, 5))
    one.acknowledge(2, ACCEPT)
    assert one.unacknowledged_count == 5
    assert one.take(None) == [Batch(2, 2, ACCEPT)]
    assert one.ranges == [(0, 1), (3, 5)] and one.unacknowledged_count == 5
    assert not one.acknowledge(2, REJECT)


def test_gap_needs_no_acknowledgement():
    one = hand((0, 3), gaps=[3])
    assert one.unacknowledged_count == 3
    assert one.take(ACCEPT) == [Batch(0, 2, ACCEPT), Batch(3, 3, GAP)]


def test_renewed_record_stays_acquired():
    one = hand((0, 1))
    one.acknowledge(0, RENEW)
    one.acknowledge(1, ACCEPT)
    assert one.take(None) == [Batch(0, 0, RENEW), Batch(1, 1, ACCEPT)]
    assert one.ranges == [(0, 0)] and one.unacknowledged_count == 0
    assert one.take(None) == []
    one.acknowledge(0, ACCEPT)
    assert one.take(None) == [Batch(0, 0, ACCEPT)] and one.ranges == [] and not one.renewed


def test_redelivered_record_is_held_once_without_acknowledgement():
    one = hand((0, 9))
    for offset in range(10):
        one.acknowledge(offset, RENEW)
    one.take(None)
    one.add([(3, 5), (9, 11)])
    assert one.ranges == [(0, 2), (3, 5), (6, 8), (9, 11)]
    assert one.renewed == {0, 1, 2, 6, 7, 8} and one.unacknowledged_count == 6
    assert one.take(ACCEPT) == [Batch(*ends, ACCEPT) for ends in (
        (0, 2), (3, 5), (6, 8), (9, 11))]


@pytest.mark.parametrize("offset, there", [(-1, False), (0, True), (4, True), (5, False), (7, True),
                                           (9, True), (10, False)])
def test_both_boundaries_of_a_range_are_acquired(offset, there):
    assert hand((0, 4), (7, 9)).has(offset) is there


def test_random_acknowledgements_match_a_reference_table(random_source):
    for _ in range(200):
        one, table, expected = DeliveredRecords(1), {}, {}
        for _ in range(random_source.randint(1, 4)):
            first = (max(table) + random_source.randint(1, 3)) if table else 0
            last = first + random_source.randint(0, 6)
            gaps = [offset for offset in range(first, last + 1) if random_source.random() < 0.2]
            one.add([(first, last)], gaps)
            table |= {offset: GAP if offset in gaps else None for offset in range(first, last + 1)}
        for offset in list(table):
            if table[offset] is None and random_source.random() < 0.6:
                table[offset] = random_source.choice(list(Acknowledge))
                assert one.acknowledge(offset, table[offset])
        default = random_source.choice([None, ACCEPT])
        for batch in one.take(default):
            expected |= dict.fromkeys(range(batch.first, batch.last + 1), batch.kind)
        said = {offset: default if kind is None else kind for offset, kind in table.items()}
        assert expected == {offset: kind for offset, kind in said.items() if kind is not None}
        assert {offset for first, last in one.ranges for offset in range(first, last + 1)} == {
            offset for offset, kind in said.items() if kind in (None, RENEW)}


def test_unreturned_records_of_an_iteration_are_not_acknowledged():
    one = hand((0, 5))
    one.later = {2, 3, 5}
    assert one.acknowledge(3, REJECT)
    assert one.take(ACCEPT) == [Batch(0, 1, ACCEPT), Batch(3, 3, REJECT), Batch(4, 4, ACCEPT)]
    assert one.ranges == [(2, 2), (5, 5)]
    one.add([(5, 5)])
    assert one.later == {2, 3} and one.take(ACCEPT) == [Batch(5, 5, ACCEPT)]
