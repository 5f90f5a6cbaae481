"""Subscriptions of a consumer, and the state that is reset when a position changes."""

import re

import pytest

from pylog.client.consumer.subscription_state import PartitionState, Subscription
from pylog.client.errors import IllegalStateError
from pylog.client.network.cluster_metadata import Metadata, TopicInfo
from pylog.client.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def fields(state):
    return {name: getattr(state, name) for name in PartitionState.__slots__}


def topics(**rows):
    """Return metadata; name -> (is_internal, error code)."""
    return Metadata(topics={name: TopicInfo(name, b"", internal, code, {})
                            for name, (internal, code) in rows.items()})


def test_new_subscription_state_is_empty():
    assert fields(PartitionState(A1, 7)) == {
        "tp": A1, "topic": "a", "partition": 1, "source": 7, "epoch": 0, "position": None,
        "rewind_position": None, "poll": -1, "before": 0, "before_epoch": -1,
        "fetch_position": -1, "paused": False, "revoking": False, "reset": None,
        "record_epoch": -1, "validate": -1, "checked_epoch": -1, "high_watermark": -1,
        "last_stable_offset": -1, "log_start_offset": -1, "preferred": -1,
        "preferred_until_s": 0.0, "not_before_s": 0.0, "error": None,
        "stored": None, "stored_committed": None, "topic_id": bytes(16)}


def test_position_change_invalidates_pending_work_and_uses_the_leader():
    state = PartitionState(A0, 0)
    state.forget_position("earliest")
    assert (state.epoch, state.position, state.reset) == (1, None, "earliest")
    state.error, state.preferred, state.paused = ValueError(), 3, True
    before = fields(state)
    state.move_to(70, 4)
    assert fields(state) == {**before, "epoch": 2, "position": 70, "rewind_position": 70,
                             "fetch_position": 70,
                             "record_epoch": 4, "reset": None, "error": None, "preferred": -1}
    state.error = ValueError()
    before = fields(state)
    state.forget_position(None)
    assert fields(state) == {**before, "epoch": 3, "position": None, "rewind_position": None,
                             "error": None}
    state.move_to(0)
    assert (state.position, state.record_epoch) == (0, -1)


@pytest.mark.parametrize("given, names, pattern", [
    (["a", "b"], {"a", "b"}, None), ("a", {"a"}, None), ("^a.*", set(), "^a.*"),
    (["^a.*"], set(), "^a.*")])
def test_topics_and_patterns_are_distinguished(given, names, pattern):
    subscription = Subscription(True)
    assert not subscription.by_group
    listener = object()
    subscription.subscribe(given, None, listener)
    assert subscription.topics == names and subscription.listener is listener
    assert (subscription.pattern and subscription.pattern.pattern) == pattern
    assert subscription.by_group and not subscription.is_manual
    subscription.unsubscribe()
    assert (subscription.topics, subscription.pattern, subscription.listener) == (
        frozenset(), None, None)
    assert not subscription.by_group


@pytest.mark.parametrize("given, pattern", [
    (None, None), ([], None), (["a"], "b"), ([""], None), (["a", ""], None), (["a", 1], None),
    (["^a", "b"], None)])
def test_invalid_subscription_is_rejected(given, pattern):
    subscription = Subscription(True)
    with pytest.raises((TypeError, ValueError)):
        subscription.subscribe(given, pattern, None)
    assert not subscription.by_group


def test_a_pattern_follows_the_topics_that_can_be_used():
    subscription = Subscription(True)
    assert not subscription.match(topics(a1=(False, 0)))
    subscription.subscribe(None, re.compile("a|_"), None)
    picture = topics(a1=(False, 0), b=(False, 0), a2=(False, 3), _x=(True, 0), ba=(False, 0))
    assert subscription.match(picture) and subscription.topics == {"a1"}
    assert not subscription.match(picture) and subscription.topics == {"a1"}
    assert subscription.match(topics()) and subscription.topics == frozenset()
    internal = Subscription(False)
    internal.subscribe(None, "_", None)
    assert internal.match(picture) and internal.topics == {"_x"}


def test_manual_assignment_keeps_state_and_number_of_existing_partitions():
    subscription = Subscription(True)
    first, second = subscription.assign([A0, B0, A0])
    assert [(one.tp, one.source) for one in (first, second)] == [(A0, 0), (B0, 1)]
    assert subscription.is_manual and not subscription.by_group
    first.move_to(5)
    [third] = subscription.assign([("a", 0), A1])
    assert (third.tp, third.source) == (A1, 2)
    assert subscription.states == {A0: first, A1: third} and first.position == 5
    # A dropped partition is invalid, and returns as a new state with the same number.
    assert second.revoking and second.epoch == 1 and not first.revoking and first.epoch == 1
    [again] = subscription.assign([A0, A1, B0])
    assert again is not second and (again.source, again.epoch, again.revoking) == (1, 0, False)
    assert subscription.known == [A0, B0, A1]
    assert subscription.state(B0) is again
    subscription.unsubscribe()
    assert subscription.states == {} and not subscription.is_manual and again.revoking
    with pytest.raises(IllegalStateError, match="b-0 is not assigned"):
        subscription.state(B0)


def test_by_hand_and_by_group_exclude_each_other():
    subscription = Subscription(True)
    subscription.assign([A0])
    with pytest.raises(IllegalStateError):
        subscription.subscribe(["a"], None, None)
    subscription.unsubscribe()
    subscription.subscribe(["a"], None, None)
    with pytest.raises(IllegalStateError):
        subscription.assign([A0])
    assert not subscription.states
