"""Committed offsets: permission to commit, stored fields, fetches, deletion and expiry."""

from types import SimpleNamespace

import pytest

from pylog.coordinator.groups import offsets, transactional_offsets
from pylog.coordinator.groups.offsets import UNSTABLE
from pylog.coordinator.groups.state.classic_group import CONSUMER, NO_TIME
from pylog.coordinator.runtime.transactional_batches import Marker, TransactionalRecords
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.coordinator.groups.consumer.test_classic_members import subscription
from tests.coordinator.groups.consumer.test_heartbeat import Machine as Consumers
from tests.coordinator.groups.consumer.test_heartbeat import T
from tests.coordinator.groups.test_shard import LIMITS, Machine

LOADING, GENERATION, UNKNOWN = 14, 22, 25
REBALANCING, TOO_LARGE, NO_GROUP, FENCED = 27, 12, 69, 82
LONGEST = LIMITS.metadata_characters_max
RETENTION_MS = LIMITS.retention_ms


@pytest.fixture
def store():
    return Machine()


def asked(member="", generation=-1, instance=None, retention_ms=-1, group="g", producer=7):
    return SimpleNamespace(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member,
        group_instance_id=instance, retention_time_ms=retention_ms,
        producer_id=producer, producer_epoch=0)


def row(offset, topic="t", partition=0, metadata=None):
    return topic, bytes(16), partition, offset, -1, metadata


def commit(store, *rows, version=0, **request):
    return offsets.commit(store.groups, asked(**request), rows or [row(1)], version)


def commit_open(store, *rows, version=5, **request):
    return offsets.commit_in_transaction(store.groups, asked(**request), rows or [row(1)], version)


def committed(store, group="g") -> dict:
    return {place: entry.offset
            for place, entry in store.groups.groups[group].offsets.items()}


# ---- commits ------------------------------------------------------------------------------------

def test_commit_in_a_transaction_names_the_missing_group_from_version_6(store):
    assert commit_open(store, generation=1) == [ErrorCode.ILLEGAL_GENERATION]
    assert commit_open(store, generation=1, version=6) == [ErrorCode.GROUP_ID_NOT_FOUND]


@pytest.mark.parametrize("length, found", [
    (LONGEST, ErrorCode.NONE), (LONGEST + 1, [TOO_LARGE, 0])])
def test_only_entries_with_oversized_metadata_are_rejected(store, length, found):
    long, short = row(1, metadata="m" * length), row(2, partition=1, metadata="m")
    assert commit(store, long, short) == found
    assert (("t", 0) in committed(store)) == (found == ErrorCode.NONE)
    assert store.groups.groups["g"].offsets["t", 1].metadata == "m"
    assert store.groups.events["offset_committed"] == len(store.groups.records) \
        == len(committed(store))


def test_rejected_commit_leaves_no_group_behind(store):
    assert commit(store, row(1, metadata="m" * 99)) == [TOO_LARGE]
    assert commit_open(store, row(1, metadata="m" * 99)) == [TOO_LARGE]
    assert not store.groups.groups and not store.groups.records


def test_rejected_commit_keeps_a_nonempty_group(store):
    commit(store, row(5))
    assert commit(store, row(6, metadata="m" * 99)) == [TOO_LARGE]
    assert commit_open(store, row(6, metadata="m" * 99)) == [TOO_LARGE]
    assert committed(store) == {("t", 0): 5}


@pytest.mark.parametrize("retention_ms, expires", [(-1, False), (0, True), (9, True)])
def test_commit_may_contain_an_expiry(store, retention_ms, expires):
    commit(store, row(1), retention_ms=retention_ms)
    entry = store.groups.groups["g"].offsets["t", 0]
    assert entry.commit_ms == store.clock.wall_ms()
    assert entry.expire_ms == (entry.commit_ms + retention_ms if expires else NO_TIME)


def test_changes_are_reported_once_per_topic(store):
    commit(store, row(1), row(2, partition=1), row(3, "u"), row(4))
    assert store.groups.changed >= {("g", "t"), ("g", "u")}
    assert committed(store) == {("t", 0): 4, ("t", 1): 2, ("u", 0): 3}
    assert len({key for key, _ in store.groups.records}) == 3


@pytest.mark.parametrize("generation, version, error", [
    (-1, 0, 0), (0, 8, GENERATION), (0, 9, NO_GROUP), (1, 8, GENERATION), (1, 9, NO_GROUP)])
def test_generation_of_a_missing_group_is_invalid(store, generation, version, error):
    assert commit(store, generation=generation, version=version) == error
    assert ("g" in store.groups.groups) == (error == 0)


def test_group_being_deleted_rejects_commits(store):
    store.groups.deleting.add("g")
    assert commit(store) == LOADING and commit_open(store) == [LOADING]
    assert not store.groups.groups


def test_share_group_rejects_commits(store):
    store.groups.shares["g"] = None
    assert commit(store, version=9) == NO_GROUP
    assert not store.groups.groups


def test_non_member_must_not_commit_to_a_group_with_members(store):
    member, = store.stable("a")
    assert commit(store) == UNKNOWN
    assert commit(store, member=member) == GENERATION
    assert commit(store, member="other", generation=1) == UNKNOWN
    assert commit(store, generation=1) == UNKNOWN
    assert commit(store, member=member, generation=2) == GENERATION
    assert commit(store, member=member, generation=0) == GENERATION
    assert commit(store, member=member, generation=1) == 0


def test_old_clients_need_no_member_id_in_transactions(store):
    member, = store.stable("a")
    assert commit_open(store) == [0]
    assert commit_open(store, member=member) == [GENERATION]
    assert commit_open(store, generation=1) == [UNKNOWN]


def test_an_instance_under_an_older_member_id_is_fenced(store):
    store.join("a", instance="i")
    store.run(100)
    generation = store.answers["a"].generation_id
    member = store.answers["a"].member_id
    assert commit(store, member="other", instance="i", generation=generation) == FENCED
    assert commit(store, member=member, instance="i", generation=generation) == REBALANCING
    assert commit_open(store, member=member, instance="i", generation=generation) == [0]


@pytest.mark.parametrize("commits, left", [(True, 1), (False, 0)])
def test_a_commit_is_a_sign_of_life(store, commits, left):
    member, = store.stable("a")
    store.run(999)
    if commits:
        assert commit(store, member=member, generation=1) == 0
    store.run(1)
    assert len(store.group.members) == left


# ---- in a transaction ---------------------------------------------------------------------------

def test_offsets_of_a_transaction_are_one_batch_that_its_marker_commits(store):
    assert commit_open(store, row(5), row(6, "u", metadata="m" * 99), row(7, "u")) \
        == [0, TOO_LARGE, 0]
    made, = store.groups.records
    assert isinstance(made, TransactionalRecords) and (made.producer_id, made.epoch) == (7, 0)
    assert len(made.records) == 2 and store.groups.events["offset_committed"] == 2
    assert committed(store) == {}
    assert transactional_offsets.end(store.groups, Marker(7, 0, 0, True, 0)) == 0
    assert committed(store) == {("t", 0): 5, ("u", 0): 7}
    assert store.groups.open_offsets == {} and store.group.unstable == {}


def test_aborted_transaction_keeps_earlier_offsets_and_creates_no_group(store):
    commit_open(store, row(5))
    transactional_offsets.end(store.groups, Marker(7, 0, 0, False, 0))
    assert not store.groups.groups
    commit(store, row(1))
    commit_open(store, row(5))
    transactional_offsets.end(store.groups, Marker(8, 0, 0, True, 0))
    assert committed(store) == {("t", 0): 1} and ("t", 0) in store.group.unstable
    transactional_offsets.end(store.groups, Marker(7, 0, 0, False, 0))
    assert committed(store) == {("t", 0): 1} and not store.group.unstable


def test_last_write_of_two_transactions_wins_in_any_commit_order(store):
    for first, second in ((7, 8), (8, 7)):
        commit_open(store, row(5), producer=7)
        commit_open(store, row(6), producer=8)
        for producer in (first, second):
            transactional_offsets.end(store.groups, Marker(producer, 0, 0, True, 0))
        assert committed(store) == {("t", 0): 6}


def test_plain_commit_overrides_earlier_open_ones_but_not_later_ones(store):
    commit_open(store, row(5), row(5, partition=1))
    commit(store, row(6))
    transactional_offsets.end(store.groups, Marker(7, 0, 0, True, 0))
    assert committed(store) == {("t", 0): 6, ("t", 1): 5}
    commit(store, row(7))
    commit_open(store, row(8))
    transactional_offsets.end(store.groups, Marker(7, 0, 0, True, 0))
    assert committed(store)["t", 0] == 8


# ---- groups of newer protocols ------------------------------------------------------------------

@pytest.mark.parametrize("member, generation, version, in_transaction, expected", [
    ("a", 2, 9, False, 0), ("a", 2, 8, False, ErrorCode.UNSUPPORTED_VERSION), ("a", 2, 0, True, 0),
    ("a", 3, 9, False, ErrorCode.STALE_MEMBER_EPOCH), ("a", 3, 0, True, GENERATION),
    ("a", 1, 9, False, ErrorCode.STALE_MEMBER_EPOCH), ("", -1, 9, False, UNKNOWN),
    ("b", 2, 9, False, UNKNOWN), ("", -1, 0, True, 0), ("b", -1, 0, True, UNKNOWN),
    ("", 2, 0, True, UNKNOWN)])
def test_a_member_of_a_consumer_group_commits_in_its_epoch(
        member, generation, version, in_transaction, expected):
    store = Consumers()
    store.join("a")
    request = {"member": member, "generation": generation}
    if in_transaction:
        assert commit_open(store, **request) == [expected]
    else:
        assert commit(store, version=version, **request) == expected
    assert bool(store.group.offsets) == (expected == 0 and not in_transaction)
    assert bool(store.group.unstable) == (expected == 0 and in_transaction)


def test_outdated_member_commits_partitions_owned_since_its_epoch():
    store = Consumers()
    store.join("a")
    store.join("b")
    mine = [messages.ConsumerGroupHeartbeatRequest.TopicPartitions(
        topic_id=T.id, partitions=sorted(store.group.targets["a"][T.id]))]
    store.beat("a", 2, topic_partitions=mine)
    held = store.group.members["a"].assigned[T.id]
    assert store.group.members["a"].epoch == 3 and set(held.values()) == {2}
    first = min(held)
    other = min(set(range(4)) - set(held))
    for generation, partition, found in (
            (2, first, 0), (1, first, ErrorCode.STALE_MEMBER_EPOCH),
            (2, other, ErrorCode.STALE_MEMBER_EPOCH), (3, other, 0)):
        entry = "t", T.id, partition, 1, -1, None
        assert commit(store, entry, version=9, member="a", generation=generation) == found


@pytest.mark.parametrize("member, epoch, found", [
    (None, -1, 0), (None, 0, UNKNOWN), ("a", 2, 0), ("a", 1, ErrorCode.STALE_MEMBER_EPOCH),
    ("a", 3, ErrorCode.STALE_MEMBER_EPOCH), ("b", 2, UNKNOWN), ("b", -1, UNKNOWN)])
def test_member_reads_its_groups_offsets_in_its_epoch(member, epoch, found):
    store = Consumers()
    store.join("a")
    assert offsets.fetch_fault(store.groups, "g", member, epoch) == found
    assert offsets.fetch_fault(store.groups, "other", member, epoch) == 0


# ---- fetches ------------------------------------------------------------------------------------

def test_require_stable_reports_offsets_of_open_transactions(store):
    commit(store, row(1), row(2, partition=1))
    wanted = [("t", [0, 1, 2]), ("u", [0])]

    def seen(stable, topics=wanted):
        return {(topic, index): getattr(entry, "offset", entry)
                for topic, found in offsets.fetch(store.groups, "g", topics, stable)
                for index, entry in found}

    plain = {("t", 0): 1, ("t", 1): 2, ("t", 2): None, ("u", 0): None}
    assert seen(True) == seen(False) == plain
    commit_open(store, row(5), row(5, partition=2))
    assert seen(False) == plain
    assert seen(True) == {**plain, ("t", 0): UNSTABLE, ("t", 2): UNSTABLE}
    assert seen(True, None) == {("t", 0): UNSTABLE, ("t", 1): 2}
    assert seen(False, None) == {("t", 0): 1, ("t", 1): 2}


def test_missing_group_has_no_offsets(store):
    assert offsets.fetch(store.groups, "g", [("t", [0])], True) == [("t", [(0, None)])]
    assert offsets.fetch(store.groups, "g", None, True) == []
    assert len(offsets.everything(store.groups,
                                  "g")) == 0 and not store.groups.groups


@pytest.mark.parametrize("count, sizes", [
    (1, [1] * 7 + [0]), (2, [2, 2, 2, 1]), (3, [3, 3, 1]), (6, [6, 1]), (7, [7, 0]), (8, [7])])
def test_full_offset_listing_is_split_by_partition_count(store, count, sizes):
    for topic, partitions in (("t", 4), ("u", 3)):
        for partition in range(partitions):
            commit(store, row(partition, topic, partition))
    parts = list(offsets.everything(store.groups, "g").parts(count))
    assert [sum(len(found) for _, found in part) for part in parts] == sizes
    assert [(topic, index) for part in parts for topic, found in part for index, _ in found] \
        == list(committed(store))


def test_long_listing_yields_to_other_requests(store):
    everything = offsets.Everything({("t", number): number for number in range(10_001)})
    parts = list(everything.parts(10_001))
    assert [bool(part) for part in parts] == [False, False, True, False]
    assert everything.rows() == [("t", [(number, number) for number in range(10_001)])]


# ---- deletion -----------------------------------------------------------------------------------

def test_deleting_missing_offsets_writes_nothing(store):
    commit(store, row(1))
    store.settle()
    group = store.group
    assert offsets.forget(store.groups, group, "t", 1) is False
    assert store.groups.records == []
    assert offsets.forget(store.groups, group, "t", 0) is True
    (_, value), = store.groups.records
    assert value is None and not group.offsets
    assert not group.offset_keys, "nothing of the topic stays in memory"


def test_open_transactional_offsets_are_deleted_with_a_record_too(store):
    commit_open(store, row(1))
    store.settle()
    assert offsets.forget(store.groups, store.group, "t", 0) is True
    assert len(store.groups.records) == 1
    assert not store.groups.open_offsets and not store.group.unstable


@pytest.mark.parametrize("count, pauses", [(999, 0), (1000, 1), (2001, 2)])
def test_all_that_a_group_has_is_forgotten_in_steps(store, count, pauses):
    commit(store, *(row(1, partition=number) for number in range(1, count)))
    commit_open(store, row(1), row(1, partition=1))
    store.groups.records = []
    assert len(list(offsets.forget_all(store.groups, store.group))) == pauses
    assert len({key for key,
                _ in store.groups.records}) == len(store.groups.records) == count
    assert not store.groups.open_offsets and not store.group.unstable


def test_topic_deletion_removes_only_its_offsets(store):
    commit(store, row(1), row(2, "u"))
    commit_open(store, row(3), row(3, partition=1))
    store.groups.records = []
    offsets.forget_topic(store.groups, store.group, "t")
    assert committed(store) == {("u", 0): 2} and not store.group.unstable
    assert len(store.groups.records) == 2


@pytest.mark.parametrize("group, error", [("", 24), ("other", NO_GROUP), ("g", 0)])
def test_offsets_of_an_existing_group_are_deleted(store, group, error):
    commit(store, row(1), row(2, "u"))
    found = offsets.delete(store.groups, group, [("t", [0, 5])])
    assert found == (error, {} if error else {"t": 0})
    assert (("t", 0) in committed(store)) == (error != 0)
    assert ("u", 0) in committed(store)


def test_offsets_of_a_non_consumer_group_are_deleted_when_it_is_empty(store):
    store.join("a", kind="connect")
    commit_open(store, row(1))
    transactional_offsets.end(store.groups, Marker(7, 0, 0, True, 0))
    assert offsets.delete(store.groups, "g", [("t", [0])]) == (ErrorCode.NON_EMPTY_GROUP,
                                                                       {})
    assert committed(store) == {("t", 0): 1}


def test_offsets_that_members_are_subscribed_to_are_not_deleted(store):
    store.join("a", protocols=(("range", subscription("t")),))
    store.run(100)
    generation, member = store.answers["a"].generation_id, store.answers["a"].member_id
    store.sync("s", member, generation, {member: b""})
    assert commit(store, row(1), row(2, "u"), member=member, generation=generation) == 0
    assert offsets.delete(store.groups, "g", [("t", [0]), ("u", [0])]) == (0, {
        "t": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, "u": 0})
    assert committed(store) == {("t", 0): 1}


def test_unreadable_subscription_keeps_all_offsets(store):
    store.join("a", protocols=(("range", b"\x7f"),))
    store.run(100)
    assert offsets.subscribed_topics(store.group) is None
    assert offsets.is_subscribed(store.group, "t")
    assert store.group.protocol_type == CONSUMER


# ---- expiry -------------------------------------------------------------------------------------

def test_offset_expires_at_its_own_time_and_the_group_with_the_last_one(store):
    commit(store, row(1), retention_ms=50)
    commit(store, row(2, "u"), retention_ms=60)
    store.run(49)
    assert offsets.expire(store.groups, store.group) == 0
    store.run(1)
    assert offsets.expire(store.groups, store.group) == 1
    assert committed(store) == {("u", 0): 2}
    store.run(10)
    assert offsets.expire(store.groups, store.group) == 1
    assert not store.groups.groups and store.groups.events["offset_expired"] == 2


def test_an_offset_that_a_transaction_may_change_does_not_expire(store):
    commit(store, row(1), row(2, partition=1))
    commit_open(store, row(3))
    store.run(RETENTION_MS)
    assert offsets.expire(store.groups, store.group) == 1
    assert committed(store) == {("t", 0): 1}


def test_group_with_a_pending_member_does_not_expire(store):
    store.join("a", version=4)
    group = store.group
    assert group.pending and offsets.expire(store.groups, group) == 0
    assert "g" in store.groups.groups
    store.run(1000)
    assert not group.pending
    offsets.expire(store.groups, group)
    assert not store.groups.groups


def test_while_members_join_nothing_expires(store):
    commit(store, row(1), retention_ms=5)
    store.join("a")
    store.run(50)
    assert store.group.state == "PreparingRebalance"
    assert offsets.expire(store.groups, store.group) == 0
    assert committed(store) == {("t", 0): 1}
