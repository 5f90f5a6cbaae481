"""In-flight records of a share group: single steps, and thousands of random schedules."""

import random

import pytest

from pylog.protocol.errors import ErrorCode
from pylog.share.acknowledgement_types import ACCEPT, GAP, REJECT, RELEASE, RENEW
from pylog.share.in_flight import InFlight, Limits, Wanted
from pylog.share.offset_ranges import (
    ACKNOWLEDGED, ARCHIVED, ARCHIVING, AVAILABLE, DONE, StateBatch, states_of,
)

SCHEDULES = 150
STEPS = 120
LIMITS = Limits(lock_ms=100, deliveries_max=3, records_max=50, renews=True)


def wanted(member="a", records=500, size=500, exact=False):
    return Wanted(member, records, size, exact)


def rows_of(found):
    return [(row.first, row.last, row.deliveries) for row in found]


def acquired(in_flight, *batches, member="a", now_ms=0, **fields):
    return rows_of(in_flight.acquire(
        wanted(member, **fields), in_flight.next_offset(), list(batches), now_ms))


def acknowledged(in_flight, first, last, kind, member="a", now_ms=0):
    error, _, moved = in_flight.acknowledge(member, [(first, last, [kind])], now_ms)
    in_flight.settle(moved, True, now_ms)
    return error


def test_acquired_records_are_not_delivered_to_another_member():
    in_flight = InFlight(LIMITS, 0)
    assert acquired(in_flight, (0, 9)) == [(0, 9, 1)]
    assert in_flight.next_offset() == 10
    assert acquired(in_flight, (0, 9), member="b") == []
    assert acknowledged(in_flight, 0, 9, ACCEPT, "b") == ErrorCode.INVALID_RECORD_STATE
    assert acknowledged(in_flight, 0, 9, ACCEPT) == ErrorCode.NONE
    assert (in_flight.start, in_flight.end, in_flight.count) == (10, 10, 0)


def test_released_records_return_with_a_higher_count_until_archived():
    in_flight = InFlight(LIMITS, 5)
    for count in (1, 2, 3):
        got = acquired(in_flight, (5, 5))
        assert got == [(5, 5, count)]
        assert acknowledged(in_flight, 5, 5, RELEASE) == ErrorCode.NONE
    assert (in_flight.start, in_flight.count) == (6, 0)


def test_rejected_record_is_not_redelivered():
    in_flight = InFlight(LIMITS, 0)
    acquired(in_flight, (0, 4))
    assert acknowledged(in_flight, 2, 2, REJECT) == ErrorCode.NONE
    assert acknowledged(in_flight, 0, 1, RELEASE) == ErrorCode.NONE
    assert in_flight.next_offset() == 0
    assert acquired(in_flight, (0, 4)) == [(0, 1, 2)]


def test_start_advances_only_over_settled_records():
    in_flight = InFlight(LIMITS, 0)
    acquired(in_flight, (0, 9))
    acknowledged(in_flight, 3, 9, ACCEPT)
    assert (in_flight.start, in_flight.done_count) == (0, 7)
    acknowledged(in_flight, 0, 1, ACCEPT)
    assert in_flight.start == 2
    acknowledged(in_flight, 2, 2, ACCEPT)
    assert (in_flight.start, in_flight.count) == (10, 0)


def test_renewed_acquisition_lock_expires_later():
    in_flight = InFlight(LIMITS, 0)
    acquired(in_flight, (0, 1), (2, 3), size=1)
    assert in_flight.next_due_ms == 100
    assert acknowledged(in_flight, 2, 3, RENEW, now_ms=60) == ErrorCode.NONE
    assert [row[:3] for row in in_flight.expire(100)] == [(0, 1, AVAILABLE)]
    assert in_flight.next_due_ms == 160
    assert acquired(in_flight, (0, 1), member="b", now_ms=100) == [(0, 1, 2)]
    assert acknowledged(in_flight, 0, 1, ACCEPT) == ErrorCode.INVALID_RECORD_STATE


def test_a_group_may_forbid_renewal():
    in_flight = InFlight(LIMITS._replace(renews=False), 0)
    acquired(in_flight, (0, 1))
    assert acknowledged(in_flight, 0, 1, RENEW) == ErrorCode.INVALID_RECORD_STATE


def test_records_do_not_change_during_their_state_write():
    in_flight = InFlight(LIMITS, 0)
    acquired(in_flight, (0, 9))
    _, _, moved = in_flight.acknowledge("a", [(0, 9, [RELEASE])], 0)
    assert acquired(in_flight, (0, 9), member="b") == []
    error, _, _ = in_flight.acknowledge("a", [(3, 4, [ACCEPT])], 0)
    assert error == ErrorCode.INVALID_RECORD_STATE
    assert in_flight.expire(1000) == []
    in_flight.settle(moved, False, 50)
    assert acknowledged(in_flight, 3, 4, ACCEPT, now_ms=50) == ErrorCode.NONE


def test_failed_write_after_lock_expiry_releases_the_records():
    in_flight = InFlight(LIMITS, 0)
    acquired(in_flight, (0, 9))
    _, _, moved = in_flight.acknowledge("a", [(0, 9, [ACCEPT])], 0)
    in_flight.settle(moved, False, 200)
    assert acquired(in_flight, (0, 9), member="b", now_ms=200) == [(0, 9, 2)]


def test_acknowledgements_of_records_not_in_flight_are_rejected_without_effect():
    in_flight = InFlight(LIMITS, 10)
    assert acknowledged(in_flight, 10, 11, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
    acquired(in_flight, (10, 19))
    assert acknowledged(in_flight, 15, 25, ACCEPT) == ErrorCode.INVALID_REQUEST
    error, _, _ = in_flight.acknowledge("a", [(10, 12, [ACCEPT]), (18, 30, [ACCEPT])], 0)
    assert error == ErrorCode.INVALID_REQUEST and in_flight.start == 10
    # Records below the start are settled: the client may not have noticed.
    assert acknowledged(in_flight, 3, 12, ACCEPT) == ErrorCode.NONE
    assert in_flight.start == 13


def test_types_may_differ_from_offset_to_offset():
    in_flight = InFlight(LIMITS, 0)
    acquired(in_flight, (0, 4))
    error, _, moved = in_flight.acknowledge("a", [(0, 4, [1, 1, 2, 0, 3])], 0)
    assert error == ErrorCode.NONE
    assert [(row.first, row.last, row.state) for row in moved] == [
        (0, 1, ACKNOWLEDGED), (2, 2, AVAILABLE), (3, 3, ARCHIVED), (4, 4, ARCHIVED)]


def test_individually_acknowledged_records_merge_into_one_range():
    in_flight = InFlight(LIMITS, 0)
    acquired(in_flight, (0, 29))
    error, _, moved = in_flight.acknowledge("a", [(at, at, [ACCEPT]) for at in range(30)], 0)
    assert error == ErrorCode.NONE
    assert [(row.first, row.last) for row in moved] == [(0, 29)]


def test_error_is_that_of_the_first_invalid_row():
    in_flight = InFlight(LIMITS, 0)
    acquired(in_flight, (0, 9))
    acknowledged(in_flight, 5, 5, ACCEPT)
    error, why, _ = in_flight.acknowledge(
        "a", [(4, 4, [ACCEPT]), (5, 5, [ACCEPT]), (6, 10, [ACCEPT])], 0)
    assert (error, why) == (ErrorCode.INVALID_RECORD_STATE, "The records are not acquired.")
    error, _, _ = in_flight.acknowledge("a", [(6, 10, [ACCEPT]), (5, 5, [ACCEPT])], 0)
    assert error == ErrorCode.INVALID_REQUEST


def test_acknowledgement_ending_at_a_missing_record_is_rejected():
    in_flight = InFlight(LIMITS, 0)
    acquired(in_flight, (0, 4))
    assert acquired(in_flight, (8, 9)) == [(8, 9, 1)]
    error, _, moved = in_flight.acknowledge("a", [(0, 6, [ACCEPT]), (7, 9, [ACCEPT])], 0)
    assert (error, moved) == (ErrorCode.INVALID_REQUEST, [])
    assert acknowledged(in_flight, 0, 9, ACCEPT) == ErrorCode.NONE
    assert (in_flight.start, in_flight.count) == (10, 0)


def said_at_once(rng):
    """Return (in-flight state, the rows of one request) with some acquired records."""
    in_flight = InFlight(LIMITS, 0)
    for member, first in (("a", 0), ("b", 10), ("a", 20), ("a", 30)):
        acquired(in_flight, (first, first + 9), member=member)
    acknowledged(in_flight, *sorted((rng.randrange(10), rng.randrange(10))), ACCEPT)
    rows, at = [], rng.randrange(8, 22)
    for _ in range(rng.randrange(1, 6)):
        size = rng.randrange(1, 5)
        rows.append((at, at + size - 1, [
            rng.choice((GAP, ACCEPT, RELEASE, REJECT)) for _ in range(rng.choice((1, size)))]))
        at += size + rng.choice((0, 0, 2))
    return in_flight, rows


def test_rows_of_one_request_have_the_same_effect_as_separate_requests(request):
    seed = request.config.getoption("--seed")
    for number in range(SCHEDULES) if seed is None else (seed,):
        one, rows = said_at_once(random.Random(number))
        other, _ = said_at_once(random.Random(number))
        error, _, moved = one.acknowledge("a", rows, 0)
        alone = [other.acknowledge("a", [row], 0) for row in rows]
        errors = [found[0] for found in alone if found[0] != ErrorCode.NONE]
        assert error == (errors[0] if errors else ErrorCode.NONE), f"--seed {number}"
        if not errors:
            assert states_of(moved) == states_of(
                row for found in alone for row in found[2]), f"--seed {number}"


def test_in_flight_limit_counts_only_unreleased_records():
    in_flight = InFlight(LIMITS, 0)
    assert acquired(in_flight, (0, 29), (30, 49)) == [(0, 49, 1)]
    assert not in_flight.can_acquire()
    assert acknowledged(in_flight, 20, 24, RELEASE) == ErrorCode.NONE
    assert in_flight.can_acquire() and in_flight.next_offset() == 20
    assert acquired(in_flight, (0, 29), (30, 49), (50, 60), member="b") == [(20, 24, 2)]


def test_whole_batches_are_acquired_unless_the_limit_is_exact():
    in_flight = InFlight(LIMITS, 0)
    assert acquired(in_flight, (0, 9), (10, 19), (20, 29), records=12) == [(0, 19, 1)]
    in_flight = InFlight(LIMITS, 0)
    assert acquired(in_flight, (0, 9), (10, 19), records=12, exact=True) == [(0, 11, 1)]
    assert in_flight.end == 19 and in_flight.next_offset() == 12
    assert acquired(in_flight, (10, 19), records=3, exact=True, member="b") == [(12, 14, 1)]


def test_acquired_ranges_are_split_at_batch_boundaries():
    in_flight = InFlight(LIMITS, 0)
    assert acquired(in_flight, (0, 3), (4, 7), (8, 11), size=8) == [(0, 7, 1), (8, 11, 1)]


def test_repeatedly_failing_record_is_delivered_in_its_own_batch():
    in_flight = InFlight(LIMITS._replace(deliveries_max=5), 0)
    sizes = []
    for now_ms in range(0, 900, 100):
        got = acquired(in_flight, (0, 15), now_ms=now_ms)
        sizes.append(sum(last - first + 1 for first, last, _ in got))
        in_flight.expire(now_ms + 100)
    assert sizes[:5] == [16, 16, 16, 8, 1]


def test_offsets_lost_between_retained_ones_are_redelivered():
    in_flight = InFlight(LIMITS, 10, [StateBatch(15, 19, ACKNOWLEDGED, 1),
                                      StateBatch(20, 22, AVAILABLE, 1)])
    assert in_flight.next_offset() == 10
    assert acquired(in_flight, (10, 22)) == [(10, 14, 1), (20, 22, 2)]
    with pytest.raises(ValueError):
        InFlight(LIMITS, 10, [StateBatch(9, 12, ACKNOWLEDGED, 1)])
    with pytest.raises(ValueError):
        InFlight(LIMITS, 10, [StateBatch(10, 12, 1, 1)])


def test_raised_log_start_removes_offsets():
    in_flight = InFlight(LIMITS, 0)
    acquired(in_flight, (0, 9), (10, 19), size=10)
    in_flight.move_start(5)
    assert (in_flight.start, in_flight.next_offset()) == (5, 20)
    assert acknowledged(in_flight, 0, 9, ACCEPT) == ErrorCode.NONE
    in_flight.move_start(40)
    assert (in_flight.start, in_flight.next_offset(), in_flight.count) == (40, 40, 0)


class Schedule:
    """Random steps, compared with a model of each offset."""

    def __init__(self, rng):
        self.random = rng
        self.limits = Limits(100, rng.randrange(2, 6), rng.choice((20, 50, 100)), True,
                             rng.random() < 0.5)
        self.in_flight = InFlight(self.limits, 0)
        self.batches = []
        self.end = self.now_ms = 0
        self.deliveries = {}
        self.held = {}
        self.done = set()
        self.under_way = []
        self.letters = set()

    def step(self):
        self.now_ms += self.random.randrange(20)
        self.random.choices((self.produce, self.acquire, self.acknowledge, self.settle,
                             self.expire, self.write_letters), (4, 7, 6, 4, 2, 2))[0]()
        self.check()

    def produce(self):
        count = self.random.randrange(1, 15)
        self.batches.append((self.end, self.end + count - 1))
        self.end += count

    def acquire(self):
        offset = self.in_flight.next_offset()
        read = [row for row in self.batches if row[1] >= offset][:self.random.randrange(1, 4)]
        if not read or not self.in_flight.can_acquire():
            return
        member = self.random.choice("abc")
        asked = Wanted(member, self.random.randrange(1, 30), self.random.randrange(1, 20),
                       self.random.random() < 0.5)
        for row in self.in_flight.acquire(asked, offset, read, self.now_ms):
            for at in range(row.first, row.last + 1):
                assert at not in self.held and at not in self.done | self.letters, at
                self.deliveries[at] = self.deliveries.get(at, 0) + 1
                assert self.deliveries[at] == row.deliveries <= self.limits.deliveries_max, at
                self.held[at] = member

    def acknowledge(self):
        member = self.random.choice("abc")
        mine = sorted(at for at, holder in self.held.items() if holder == member)
        if not mine:
            return
        first = last = self.random.choice(mine)
        while last + 1 in mine and self.random.random() < 0.8:
            last += 1
        types = [self.random.choice((1, 2, 3, 4))] if self.random.random() < 0.5 else [
            self.random.choice((0, 1, 2, 3)) for _ in range(last - first + 1)]
        error, _, moved = self.in_flight.acknowledge(
            member, [(first, last, types)], self.now_ms)
        if error == ErrorCode.NONE:
            self.under_way.append(moved)
        else:
            # A rollback after the lock timeout releases the records.
            self.look()

    def settle(self):
        if self.under_way:
            moved = self.under_way.pop(self.random.randrange(len(self.under_way)))
            self.in_flight.settle(moved, self.random.random() < 0.8, self.now_ms)
            self.look()

    def expire(self):
        self.in_flight.expire(self.now_ms)
        self.look()

    def write_letters(self):
        moved = self.in_flight.begin_archiving(self.random.randrange(1, 20))
        if self.random.random() < 0.7:
            self.letters.update(at for row in moved for at in range(row.first, row.last + 1))
            self.in_flight.archived(moved)
        self.under_way.append(moved)

    def look(self):
        """Available and settled records have no owner, and settled ones stay settled."""
        at_rest = {at: row for row in self.in_flight._ranges if row.before is None
                   for at in range(row.first, row.last + 1)}
        for at in list(self.held):
            row = at_rest.get(at)
            if at < self.in_flight.start or row is not None and row.state in DONE:
                self.done.add(at)
                del self.held[at]
            elif row is not None and row.state in (AVAILABLE, ARCHIVING):
                del self.held[at]

    def check(self):
        ranges = self.in_flight._ranges
        assert all(a.last < b.first for a, b in zip(ranges, ranges[1:], strict=False))
        assert not ranges or ranges[0].first >= self.in_flight.start
        assert not ranges or ranges[0].state not in DONE or ranges[0].before is not None
        assert all(at not in self.done or row.state in DONE for row in ranges
                   if row.before is None for at in range(row.first, row.last + 1))


def test_random_schedules_deliver_no_record_to_two_members_or_after_it_is_done(request):
    seed = request.config.getoption("--seed")
    for number in range(SCHEDULES) if seed is None else (seed,):
        schedule = Schedule(random.Random(number))
        try:
            for _ in range(STEPS):
                schedule.step()
        except AssertionError:
            print(f"--seed {number}")
            raise


# ---- dead letters -------------------------------------------------------------------------------

LETTERS = LIMITS._replace(has_letters=True)


def archived(in_flight, records=500, written=True):
    """Run one round of dead letters and return its ranges."""
    moved = in_flight.begin_archiving(records)
    if written:
        in_flight.archived(moved)
    in_flight.settle(moved, written, 0)
    return [(row.first, row.last) for row in moved]


def test_rejected_record_is_in_flight_until_its_dead_letter_is_written():
    in_flight = InFlight(LETTERS, 0)
    acquired(in_flight, (0, 4))
    acknowledged(in_flight, 0, 0, ACCEPT)
    assert not in_flight.is_archiving
    acknowledged(in_flight, 1, 2, REJECT)
    acknowledged(in_flight, 3, 4, ACCEPT)
    assert in_flight.is_archiving
    assert (in_flight.start, in_flight.archiving_count, in_flight.done_count) == (1, 2, 2)
    assert archived(in_flight, written=False) == [(1, 2)]
    assert in_flight.start == 1
    assert archived(in_flight) == [(1, 2)]
    assert not in_flight.is_archiving
    assert (in_flight.start, in_flight.count) == (5, 0)


def test_archiving_record_is_not_owned_by_any_member():
    in_flight = InFlight(LETTERS, 0)
    acquired(in_flight, (0, 1))
    acknowledged(in_flight, 0, 1, REJECT)
    assert acquired(in_flight, (0, 1)) == []
    assert acknowledged(in_flight, 0, 1, ACCEPT) == ErrorCode.INVALID_RECORD_STATE
    assert in_flight.release("a") == []
    assert in_flight.expire(1000) == []
    assert in_flight.archiving_count == 2


def test_released_or_expired_last_delivery_creates_a_dead_letter():
    for ends in ("released", "ran out"):
        in_flight = InFlight(LETTERS, 0)
        for count in (1, 2, 3):
            assert acquired(in_flight, (0, 0)) == [(0, 0, count)]
            if ends == "released":
                acknowledged(in_flight, 0, 0, RELEASE)
            else:
                in_flight.expire(1000)
        moved, = in_flight.begin_archiving(1)
        assert in_flight.deliveries_exceeded(moved)


def test_dead_letter_names_rejection_also_at_the_last_delivery():
    in_flight = InFlight(LETTERS._replace(deliveries_max=2), 0)
    acquired(in_flight, (0, 0))
    acknowledged(in_flight, 0, 0, RELEASE)
    acquired(in_flight, (0, 0))
    acknowledged(in_flight, 0, 0, REJECT)
    moved, = in_flight.begin_archiving(1)
    assert not in_flight.deliveries_exceeded(moved)


def test_letters_are_written_some_at_a_time():
    in_flight = InFlight(LETTERS, 0)
    acquired(in_flight, (0, 9))
    acknowledged(in_flight, 0, 9, REJECT)
    assert archived(in_flight, 4) == [(0, 3)]
    assert archived(in_flight, 4, written=False) == [(4, 7)]
    assert archived(in_flight, 4) == [(4, 7)]
    assert archived(in_flight, 4) == [(8, 9)]
    assert (in_flight.start, in_flight.is_archiving) == (10, False)


def test_archiving_records_count_towards_the_in_flight_limit():
    in_flight = InFlight(LETTERS._replace(records_max=4), 0)
    acquired(in_flight, (0, 3))
    acknowledged(in_flight, 0, 3, REJECT)
    assert not in_flight.can_acquire()
    archived(in_flight)
    assert in_flight.can_acquire()


def test_archiving_continues_after_a_leader_change():
    in_flight = InFlight(LETTERS, 3, [
        StateBatch(3, 5, ARCHIVING, 2), StateBatch(6, 7, ARCHIVING, 3)])
    assert in_flight.is_archiving
    first, second = in_flight.begin_archiving(500)
    assert not in_flight.deliveries_exceeded(first)
    assert in_flight.deliveries_exceeded(second)


def test_gap_creates_no_dead_letter():
    in_flight = InFlight(LETTERS, 0)
    acquired(in_flight, (0, 3))
    acknowledged(in_flight, 0, 3, GAP)
    assert (in_flight.start, in_flight.is_archiving) == (4, False)


def test_unwritten_rejection_keeps_the_record_acquired():
    in_flight = InFlight(LETTERS, 0)
    acquired(in_flight, (0, 1))
    _, _, moved = in_flight.acknowledge("a", [(0, 1, [REJECT])], 0)
    in_flight.settle(moved, False, 0)
    assert not in_flight.is_archiving
    assert in_flight.holds("a")


def test_raised_log_start_does_not_cancel_a_dead_letter():
    in_flight = InFlight(LETTERS, 0)
    acquired(in_flight, (0, 9))
    acknowledged(in_flight, 0, 9, REJECT)
    moved = in_flight.begin_archiving(500)
    in_flight.move_start(5)
    in_flight.settle(moved, False, 0)
    assert archived(in_flight) == [(5, 9)]
