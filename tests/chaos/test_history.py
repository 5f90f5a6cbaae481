"""The history checker finds each violation, and none in a correct history."""

import pytest

from tests.chaos.history import (
    Acknowledged,
    Committed,
    Copied,
    Ended,
    Final,
    History,
    Partition,
    Read,
    Sent,
    ObservedPosition,
    Topic,
    Value,
    Writer,
    problems,
    tally,
)

A, B = Partition("orders", 0), Partition("orders", 1)
ONE, TWO = "one", "two"


def of(writer, *numbers):
    return [Value(writer, number) for number in numbers]


class World:
    """A correct history: two writers, two transactions, a reader, a group."""

    def __init__(self):
        self.history = History()
        self.history.writers = {ONE: Writer(), TWO: Writer()}
        self.finals = {A: Final({}, set(), {1: "x", 2: "x"}), B: Final({}, set(), {1: "y"})}
        self.topics = {"orders", "made"}
        add = self.history.add
        for offset, value in enumerate(of(ONE, 0, 1, 2, 3)):
            self.write(value, A, offset)
        for transaction, numbers in (("good", (0, 1)), ("bad", (2, 3))):
            for number in numbers:
                place = (A, B)[number % 2]
                self.write(Value(TWO, number), place, len(self.finals[place].records) + 1,
                           transaction)
            add(Ended(transaction, transaction == "good"))
        add(Sent(Value(ONE, 4), A))  # Its outcome is unknown.
        for offset in (0, 1, 2, 3):
            add(Read("group/1", 0, A, offset, Value(ONE, offset), True))
        for offset, value in self.finals[A].records.items():
            add(Read("all", 0, A, offset, value))
        add(Committed("group", A, 4, 10.0))
        add(ObservedPosition("group", A, 4, 11.0))
        add(Topic("made", True, False, False))
        add(Topic("gone", True, True, True))

    def write(self, value, place, offset, transaction=None):
        self.history.add(Sent(value, place, transaction))
        self.history.add(Acknowledged(value, offset))
        self.finals[place].records[offset] = value
        if transaction != "bad":
            self.finals[place].visible.add(offset)

    def problems(self):
        return problems(self.history, self.finals, self.topics)


@pytest.fixture
def world():
    return World()


def only_problem(world) -> str:
    """Return the only problem found."""
    told = world.problems()
    assert len(told) == 1, told
    return told[0]


def test_correct_history_has_no_problems(world):
    assert world.problems() == []


def test_missing_acknowledged_record_is_found(world):
    world.history.add(Sent(Value(ONE, 5), A))
    world.history.add(Acknowledged(Value(ONE, 5), 9))
    assert "acknowledged and lost: 1: one/5" in only_problem(world)


def test_record_with_unknown_offset_is_lost_only_if_it_is_nowhere(world):
    world.history.add(Sent(Value(ONE, 5), A))
    world.history.add(Acknowledged(Value(ONE, 5), -1))
    assert "lost" in only_problem(world)
    world.finals[A].records[20] = Value(ONE, 5)
    assert world.problems() == []


def test_record_at_a_wrong_offset_is_found(world):
    world.history.add(Sent(Value(ONE, 5), A))
    world.history.add(Acknowledged(Value(ONE, 5), 19))
    world.finals[A].records[20] = Value(ONE, 5)
    assert "acknowledged at another offset" in only_problem(world)


def test_duplicate_is_found_for_idempotent_writers(world):
    world.finals[A].records[20] = Value(ONE, 3)
    assert "doubled: 1: one/3" in only_problem(world)
    world.history.writers[ONE] = Writer(once=False)
    assert world.problems() == []


def test_reordered_records_are_found(world):
    world.history.add(Sent(Value(ONE, 5), A))
    world.finals[A].records |= {20: Value(ONE, 5), 21: Value(ONE, 4)}
    assert "out of order: 1: one/4" in only_problem(world)
    world.history.writers[ONE] = Writer(ordered=False)
    assert world.problems() == []


def test_unwritten_record_is_found(world):
    world.finals[A].records[20] = Value(ONE, 99)
    assert "nobody wrote: 1: one/99" in only_problem(world)
    world.finals[A].records[20] = Value(TWO, 1)
    assert "nobody wrote: 1: two/1" in only_problem(world)


def test_vanished_record_that_was_read_is_found(world):
    world.history.add(Read("other", 0, A, 30, Value(ONE, 4)))
    assert "read and no longer there: 1: other: one/4" in only_problem(world)


def test_replaced_record_that_was_read_is_found(world):
    world.history.add(Read("other", 0, A, 2, Value(ONE, 4)))
    assert "read and no longer there" in only_problem(world)


def test_aborted_record_read_with_read_committed_is_found(world):
    offset = next(at for at, value in world.finals[A].records.items() if value == Value(TWO, 2))
    world.history.add(Read("other", 0, A, offset, Value(TWO, 2), True))
    assert "read though it was not committed" in only_problem(world)


def test_skipped_records_are_found(world):
    world.history.add(Read("other", 0, A, 0, Value(ONE, 0)))
    world.history.add(Read("other", 0, A, 2, Value(ONE, 2)))
    assert "read past others: 1: other: one/2 in orders-0 at 2 after 0" in only_problem(world)


def test_backward_read_is_found_within_a_session(world):
    world.history.add(Read("other", 0, A, 1, Value(ONE, 1)))
    world.history.add(Read("other", 1, A, 0, Value(ONE, 0)))
    assert world.problems() == []
    world.history.add(Read("other", 1, A, 0, Value(ONE, 0)))
    assert "read again or backwards" in only_problem(world)


def test_torn_transaction_is_found_for_every_outcome(world):
    offset = next(at for at, value in world.finals[A].records.items() if value == Value(TWO, 0))
    world.finals[A].visible.discard(offset)
    assert "committed transactions that are not there as a whole: 1: good" in only_problem(world)
    world.history.events.remove(Ended("good", True))
    assert "unknown end that are there in part: 1: good" in only_problem(world)


def test_visible_aborted_transaction_is_found(world):
    offset = next(at for at, value in world.finals[B].records.items() if value == Value(TWO, 3))
    world.finals[B].visible.add(offset)
    assert "aborted transactions that are visible: 1: bad" in only_problem(world)


def test_decreasing_group_offset_is_found(world):
    # Requested before the commit was acknowledged.
    world.history.add(ObservedPosition("group", A, 3, 9.0))
    assert world.problems() == []
    world.history.add(ObservedPosition("group", A, 3, 12.0))
    assert "positions of groups that went back: 1: group orders-0: 3 after 4" in only_problem(world)


def test_committed_record_that_no_member_read_is_found(world):
    world.history.events.remove(Read("group/1", 0, A, 3, Value(ONE, 3), True))
    assert "committed by a group that never read it: 1: group orders-0 at 3" in only_problem(world)


def test_missing_copy_is_found(world):
    copies = Partition("copies", 0)
    world.history.writers["copy-of-one"] = Writer()
    world.finals[copies] = Final({}, set())
    for offset in range(4):
        world.write(Value("copy-of-one", offset), copies, offset, "copying")
    world.history.add(Copied(A, copies, 4))
    assert world.problems() == []
    world.history.add(Copied(A, copies, 6))  # Another writer's record, without a copy.
    assert "not copied: 1: two/0 in orders-0" in only_problem(world)


def test_copy_without_committed_position_is_found(world):
    copies = Partition("copies", 0)
    world.history.writers["copy-of-one"] = Writer()
    world.finals[copies] = Final({}, set())
    for offset in range(4):
        world.write(Value("copy-of-one", offset), copies, offset, "copying")
    world.history.add(Copied(A, copies, 3))
    assert "copied without its position: 1: one/3 in orders-0 at 3" in only_problem(world)


def test_copies_must_match_the_number_of_originals(world):
    copies = Partition("copies", 0)
    world.history.writers["copy-of-one"] = Writer()
    world.finals[copies] = Final({}, set())
    world.write(Value("copy-of-one", 0), copies, 0, "copying")

    def duplicates_after(place, offset, writer):
        world.finals[place].records[offset] = Value(writer, 0)
        world.finals[place].visible.add(offset)
        return "; ".join(line for line in map(str, world.problems()) if "doubled" in line)

    assert "copy-of-one" in duplicates_after(copies, 1, "copy-of-one")
    one_doubled = duplicates_after(A, 30, ONE)
    assert "one/0" in one_doubled and "copy-of-one" not in one_doubled
    assert "copy-of-one" in duplicates_after(copies, 2, "copy-of-one")


def test_resent_record_of_aborted_transaction_exists_once(world):
    world.history.add(Sent(Value(TWO, 2), A, "again"))
    world.history.add(Ended("again", True))
    world.finals[A].records[30] = Value(TWO, 2)
    world.finals[A].visible.add(30)
    assert "doubled" not in str(world.problems())
    world.finals[A].records[31] = Value(TWO, 2)
    world.finals[A].visible.add(31)
    assert "doubled: 1: two/2" in str(world.problems())


def test_differing_replicas_are_found(world):
    world.finals[A].digests[3] = "z"
    assert "replicas differ: 1: orders-0" in only_problem(world)


def test_lost_and_reappeared_topics_are_found(world):
    world.topics.discard("made")
    assert "topics that were made and are gone: 1: made" in only_problem(world)
    world.topics |= {"made", "gone"}
    assert "topics that were deleted and are there: 1: gone" in only_problem(world)


def test_unreadable_partition_is_not_judged(world):
    world.history.add(Sent(Value(ONE, 5), A))
    world.history.add(Acknowledged(Value(ONE, 5), 9))
    world.history.add(Copied(A, B, 4))
    del world.finals[A]
    assert world.problems() == []
    # The transaction's record in this partition.
    world.finals[B].visible.clear()
    assert "committed transactions that are not there as a whole: 1: good" in only_problem(world)


def test_topics_are_not_judged_if_existing_topics_are_unknown(world):
    world.topics = None
    assert world.problems() == []


def test_findings_are_counted_by_kind(world):
    assert set(tally(world.problems()).values()) == {0}
    world.finals[A].digests[3] = "z"
    world.finals[A].records |= {20: Value(ONE, 3), 21: Value(ONE, 2)}
    world.history.add(ObservedPosition("group", A, 3, 12.0))
    for number in (5, 6):
        world.history.add(Sent(Value(ONE, number), A))
        world.history.add(Acknowledged(Value(ONE, number), 30 + number))
    told = [*world.problems(), "own was refused 2: ['1']", "1 ended: ", "a sentence"]
    assert tally(told) == {"lost": 2, "doubled": 2, "reordered": 0, "stale": 1, "divergent": 1}
