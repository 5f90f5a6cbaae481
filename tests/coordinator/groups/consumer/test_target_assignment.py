"""Times at which a consumer group checks topics and expressions, and computes a target assignment.
"""

from types import SimpleNamespace

import pytest

from pylog.coordinator.groups.consumer import target_assignment
from pylog.coordinator.groups.state.group_config import ConsumerLimits
from pylog.metadata.image.image import Image, Topic
from tests.coordinator.groups.consumer import test_heartbeat
from tests.coordinator.groups.consumer.test_heartbeat import CLIENT, IMAGE, Machine, T, U
from tests.coordinator.world import LIMITS

PAUSE_MS, REFRESH_MS, NEVER_MS = 10_000, 600_000, 2**31 - 1


@pytest.fixture
def state_machine():
    return Machine()


def grown(topic, offset=6) -> Image:
    """Return the cluster image with twice the partitions of one topic."""
    now = {name: Topic(name, row.id, row.partitions * (1 + (row is topic)))
           for name, row in IMAGE.topics.items()}
    return Image(topics=now, topics_by_id={row.id: row for row in now.values()}, offset=offset)


def without(name, offset=6) -> Image:
    now = {key: row for key, row in IMAGE.topics.items() if key != name}
    return Image(topics=now, topics_by_id={row.id: row for row in now.values()}, offset=offset)


def join_matching(state_machine, text, member_id="m"):
    answer = state_machine.beat(member_id, 0, rebalance_timeout_ms=1000, topic_partitions=[],
                          subscribed_topic_regex=text)
    state_machine.run(0)
    state_machine.run(0)
    return answer


def beat_matching(state_machine, text, member_id="m"):
    epoch = state_machine.group.members[member_id].epoch
    assert state_machine.beat(member_id, epoch, subscribed_topic_regex=text).error_code == 0


def records_of(state_machine) -> int:
    found, state_machine.groups.records = len(state_machine.groups.records), []
    return found


# ---- topics -------------------------------------------------------------------------------------

@pytest.mark.parametrize("ms, epoch", [(NEVER_MS - 1, 2), (NEVER_MS, 3)])
def test_topics_without_a_change_hint_are_checked_again_after_a_long_interval(state_machine, ms,
                                                                              epoch):
    state_machine.join("a")
    state_machine.groups.image = lambda: grown(T)
    state_machine.groups.clock.ms += ms
    assert state_machine.beat("a", 2).member_epoch == epoch


def test_topic_hint_without_a_change_keeps_the_epoch_and_is_used_once(state_machine):
    state_machine.join("a")
    records_of(state_machine)
    target_assignment.topics_changed(state_machine.groups, {"t"})
    assert state_machine.group.refresh_ms == 0
    assert state_machine.beat("a", 2).member_epoch == 2
    assert records_of(state_machine) == 0
    assert state_machine.group.refresh_ms == state_machine.groups.clock.now_ms() + NEVER_MS


def test_newest_hinted_image_version_is_stored(state_machine):
    assert state_machine.groups.topics_version < 5
    target_assignment.topics_changed(state_machine.groups, set())
    assert state_machine.groups.topics_version == 5
    state_machine.groups.image = lambda: grown(T, offset=4)
    target_assignment.topics_changed(state_machine.groups, set())
    assert state_machine.groups.topics_version == 5


def test_topic_record_of_an_older_kafka_is_removed_at_the_next_check(state_machine):
    state_machine.join("a")
    records_of(state_machine)
    state_machine.group.had_old_metadata = True
    state_machine.beat("a", 2)
    assert records_of(state_machine) == 0
    target_assignment.topics_changed(state_machine.groups, {"t"})
    state_machine.beat("a", 2)
    (key, value), = state_machine.groups.records
    assert (int.from_bytes(key[:2], "big"), value) == (4, None)
    assert not state_machine.group.had_old_metadata


def test_each_epoch_counts_as_a_rebalance_and_each_newcomer_once(state_machine):
    state_machine.join("a")
    state_machine.join("b")
    events = state_machine.groups.events
    assert (events["member_joined"], events["rebalance"], events["generation"]) == (2, 2, 2)
    state_machine.beat("a", 2)
    assert (events["member_joined"], events["rebalance"]) == (2, 2)


def test_changed_subscription_is_written_and_a_repeated_one_is_not(state_machine):
    state_machine.join("a")
    records_of(state_machine)
    state_machine.groups.changed.clear()
    state_machine.beat("a", 2, rack_id="r")
    (key, _), = state_machine.groups.records
    assert int.from_bytes(key[:2], "big") == 5
    assert state_machine.groups.changed == {("g", ("a",))}
    records_of(state_machine)
    state_machine.beat("a", 2, rack_id="r", subscribed_topic_names=["t"])
    assert records_of(state_machine) == 0 and state_machine.group.epoch == 2


def test_changed_topics_start_an_epoch_with_a_separate_reason(state_machine):
    state_machine.join("a")
    answer = state_machine.beat("a", 2, subscribed_topic_names=["t", "u"])
    assert answer.member_epoch == 3
    assert {row.topic_id for row in answer.assignment.topic_partitions} == {T.id, U.id}


# ---- expressions --------------------------------------------------------------------------------

def test_an_expression_that_is_no_longer_anybodys_is_forgotten_with_its_record(state_machine):
    join_matching(state_machine, "t.*")
    join_matching(state_machine, "u.*", "n")
    assert set(state_machine.group.regexes) == {"t.*", "u.*"}
    state_machine.groups.clock.ms += PAUSE_MS + 1
    beat_matching(state_machine, "u.*", "n")
    state_machine.run(0)
    state_machine.run(0)
    assert set(state_machine.group.resolved) == {"t.*", "u.*"}
    records_of(state_machine)
    state_machine.groups.changed.clear()
    state_machine.beat("n", -1)
    assert set(state_machine.group.resolved) == {"t.*"}
    gone = [key for key, value in state_machine.groups.records
            if value is None and int.from_bytes(key[:2], "big") == 16]
    assert len(gone) == 1 and b"u.*" in gone[0]
    assert ("g", None) in state_machine.groups.changed


@pytest.mark.parametrize("ms, resolves", [(PAUSE_MS, False), (PAUSE_MS + 1, True)])
def test_between_two_matches_is_a_pause_also_for_a_new_expression(state_machine, ms, resolves):
    join_matching(state_machine, "t.*")
    state_machine.groups.clock.ms += ms
    state_machine.beat("n", 0, rebalance_timeout_ms=1000, topic_partitions=[],
                 subscribed_topic_regex="u.*")
    assert (state_machine.group.resolving is not None) == resolves
    state_machine.run(0)
    state_machine.run(0)
    state_machine.run(0)
    assert ("u.*" in state_machine.group.resolved) == resolves
    assert state_machine.group.resolving is None


@pytest.mark.parametrize("ms, resolves", [(REFRESH_MS, False), (REFRESH_MS + 1, True)])
def test_expressions_are_matched_again_after_the_refresh_interval(ms, resolves):
    state_machine = Machine(LIMITS._replace(consumer=ConsumerLimits(refresh_ms=REFRESH_MS)))
    join_matching(state_machine, "t.*")
    state_machine.groups.clock.ms += ms
    beat_matching(state_machine, "t.*")
    assert (state_machine.group.resolving is not None) == resolves


@pytest.mark.parametrize("version, resolves", [(5, False), (6, True)])
def test_expressions_are_matched_again_when_topics_are_newer(state_machine, version, resolves):
    join_matching(state_machine, "t.*")
    state_machine.groups.topics_version = version
    state_machine.groups.clock.ms += PAUSE_MS + 1
    beat_matching(state_machine, "t.*")
    assert (state_machine.group.resolving is not None) == resolves


def test_concurrent_regex_resolution_is_not_started(state_machine):
    state_machine.beat("m", 0, rebalance_timeout_ms=1000, topic_partitions=[],
                 subscribed_topic_regex="t.*")
    under_way = state_machine.group.resolving
    assert under_way is not None
    state_machine.beat("n", 0, rebalance_timeout_ms=1000, topic_partitions=[],
                 subscribed_topic_regex="u.*")
    assert state_machine.group.resolving is under_way


def test_only_changed_regex_matches_raise_the_epoch(state_machine):
    join_matching(state_machine, "[tv]")
    beat_matching(state_machine, "[tv]")
    epoch = state_machine.group.epoch
    state_machine.groups.clock.ms += REFRESH_MS + 1
    beat_matching(state_machine, "[tv]")
    state_machine.run(0)
    assert state_machine.group.resolving is None and state_machine.group.epoch == epoch
    assert state_machine.group.resolved["[tv]"].ms == state_machine.groups.clock.wall_ms()
    now = {**IMAGE.topics, "v": Topic("v", b"v" * 16, (SimpleNamespace(replicas=()),))}
    state_machine.groups.image = lambda: Image(
        topics=now, topics_by_id={row.id: row for row in now.values()}, offset=8)
    state_machine.groups.clock.ms += REFRESH_MS + 1
    beat_matching(state_machine, "[tv]")
    state_machine.run(0)
    assert state_machine.group.epoch == epoch + 1
    assert state_machine.group.resolved["[tv]"].topics == {"t", "v"}
    assert state_machine.group.resolved["[tv]"].version == 8


def test_abandoned_regex_is_not_stored_after_its_resolution(state_machine):
    state_machine.beat("m", 0, rebalance_timeout_ms=1000, topic_partitions=[],
                 subscribed_topic_regex="t.*")
    state_machine.join("n")
    state_machine.beat("m", -1)
    state_machine.run(0)
    assert state_machine.group.resolving is None and state_machine.group.resolved == {}


def test_expression_matches_only_topics_visible_to_its_member(state_machine):
    join_matching(state_machine, "[tu]")
    group = state_machine.group
    group.viewers["[tu]"] = lambda name: name == "u"
    group.resolving = target_assignment._resolving(state_machine.groups, group)
    target_assignment.resolve_some(state_machine.groups, group)
    assert group.resolved["[tu]"].topics == {"u"}


def test_refresh_resolves_each_expression_with_its_members_permissions(state_machine, monkeypatch):
    def beat(member_id, epoch, text, seen):
        monkeypatch.setattr(test_heartbeat, "CLIENT", CLIENT._replace(
            sees=lambda name: name in seen))
        state_machine.beat(member_id, epoch, rebalance_timeout_ms=1000, topic_partitions=[],
                     subscribed_topic_regex=text)
        state_machine.run(0)
        state_machine.run(0)
        state_machine.run(0)

    beat("m", 0, "[tu]", {"t"})
    state_machine.groups.clock.ms += PAUSE_MS + 1
    beat("n", 0, "t|u", {"u"})
    found = {text: row.topics for text, row in state_machine.group.resolved.items()}
    assert found == {"[tu]": {"t"}, "t|u": {"u"}}


def test_regex_of_a_silent_member_keeps_its_topics_after_a_load(state_machine):
    join_matching(state_machine, "t.*")
    state_machine.group.viewers.clear()
    state_machine.groups.clock.ms += PAUSE_MS + 1
    join_matching(state_machine, "u.*", "n")
    state_machine.run(0)
    assert set(state_machine.group.resolved) == {"t.*", "u.*"}
    assert state_machine.group.resolved["t.*"].ms < state_machine.group.resolved["u.*"].ms


def test_static_member_returning_with_another_assignor_changes_the_target(state_machine):
    for name in "abc":
        state_machine.join(name, instance_id=name, server_assignor="uniform")
    epoch = state_machine.group.epoch
    for name in "abc":
        state_machine.beat(name, -2, instance_id=name)
    state_machine.join("a2", instance_id="a", server_assignor="range")
    assert state_machine.group.epoch == epoch
    state_machine.join("b2", instance_id="b", server_assignor="range")
    assert state_machine.group.epoch == epoch + 1
    state_machine.join("c2", instance_id="c", server_assignor="range")
    assert state_machine.group.epoch == epoch + 1 and state_machine.group.assignors == {"range": 3}


def test_resolving_without_a_pending_resolution_writes_nothing(state_machine):
    state_machine.join("a")
    records_of(state_machine)
    target_assignment.resolve_some(state_machine.groups, state_machine.group)
    assert records_of(state_machine) == 0


def test_regex_resolution_yields_every_five_thousand_topics():
    state_machine = Machine()
    for count, steps in ((4_999, 1), (5_000, 2), (5_001, 2), (10_000, 3)):
        names = {f"t{number}": Topic(f"t{number}", number.to_bytes(16, "big"), ())
                 for number in range(count)}
        image = Image(topics=names, topics_by_id={}, offset=6)
        state_machine.groups.image = lambda image=image: image
        group = SimpleNamespace(regexes={"t1": 1}, viewers={"t1": None})
        found = list(target_assignment._resolving(state_machine.groups, group))
        assert found[:-1] == [None] * (steps - 1)
        assert found[-1]["t1"].topics == {"t1"}


def test_of_several_expressions_each_is_a_step(state_machine):
    group = SimpleNamespace(regexes={"t": 1, "u": 1}, viewers={"t": None, "u": None})
    found = list(target_assignment._resolving(state_machine.groups, group))
    assert found[:-1] == [None, None]
    assert {text: row.topics for text, row in found[-1].items()} == {"t": {"t"}, "u": {"u"}}


@pytest.mark.parametrize("text, code", [("(", 128), ("t.*", 0), ("", 0)])
def test_invalid_regex_is_rejected_without_side_effects(state_machine, text, code):
    answer = state_machine.beat("m", 0, rebalance_timeout_ms=1000, topic_partitions=[],
                          subscribed_topic_names=[], subscribed_topic_regex=text)
    assert answer.error_code == code and bool(answer.error_message) == bool(code)
    assert ("g" in state_machine.groups.groups) == (code == 0)


def test_only_a_new_regex_triggers_resolution(state_machine):
    join_matching(state_machine, "t.*")
    state_machine.groups.clock.ms += PAUSE_MS + 1
    beat_matching(state_machine, "t.*")
    state_machine.beat("n", 0, rebalance_timeout_ms=1000, topic_partitions=[],
                 subscribed_topic_regex="t.*")
    state_machine.join("o")
    assert state_machine.group.resolving is None


def test_absent_instance_is_not_awaited(state_machine):
    state_machine.join("a", instance_id="i")
    state_machine.join("b")
    state_machine.beat("a", -2, instance_id="i")
    assert len(state_machine.group.members) == 2
    waited = []
    state_machine.groups.rebalances.waits_for = lambda group, whom: waited.append(list(whom()))
    target_assignment.next_epoch(state_machine.groups, state_machine.group)
    assert waited == [["b"]]


# ---- targets ------------------------------------------------------------------------------------

def interval_machine(interval_ms):
    settings = {**ConsumerLimits().settings,
                "group.consumer.assignment.interval.ms": interval_ms}
    return Machine(LIMITS._replace(consumer=ConsumerLimits(settings=settings)))


@pytest.mark.parametrize("ms, epoch", [(99, 2), (100, 3)])
def test_next_target_is_computed_after_the_interval(ms, epoch):
    state_machine = interval_machine(100)
    assert state_machine.join("a").member_epoch == 2
    state_machine.groups.clock.ms += ms
    state_machine.join("b")
    assert (state_machine.group.epoch, state_machine.group.assignment_epoch) == (3, epoch)
    state_machine.groups.clock.ms += 100 - ms
    state_machine.beat("a", 2)
    assert state_machine.group.assignment_epoch == 3


def test_without_an_interval_each_epoch_has_its_target_at_once():
    state_machine = interval_machine(0)
    state_machine.join("a")
    state_machine.join("b")
    assert state_machine.group.assignment_epoch == state_machine.group.epoch == 3


def test_target_is_computed_once_per_epoch(state_machine):
    state_machine.join("a")
    records_of(state_machine)
    assert target_assignment.assign_if_due(state_machine.groups, state_machine.group) is True
    assert records_of(state_machine) == 0


def test_failed_assignor_is_retried_after_the_interval():
    calls = []

    def fails(members, topics):
        calls.append(len(members))
        raise RuntimeError("made up")

    settings = {**ConsumerLimits().settings, "group.consumer.assignment.interval.ms": 100}
    state_machine = Machine(LIMITS._replace(consumer=ConsumerLimits(
        assignors={"own": fails}, settings=settings)))
    assert state_machine.join("a").error_code == -1
    group = state_machine.group
    assert group.assignment_ms == state_machine.groups.clock.wall_ms()
    state_machine.groups.clock.ms += 99
    assert target_assignment.assign_if_due(state_machine.groups, group) is True and len(calls) == 1
    state_machine.groups.clock.ms += 1
    assert target_assignment.assign_if_due(state_machine.groups, group) is False and len(calls) == 2


def test_most_requested_assignor_is_used_or_the_first_configured():
    asked = []

    def named(name):
        def assign(members, topics):
            asked.append(name)
            return {}
        return assign

    state_machine = Machine(LIMITS._replace(consumer=ConsumerLimits(
        assignors={"first": named("first"), "second": named("second")})))
    state_machine.join("a")
    state_machine.join("b", server_assignor="second")
    assert asked == ["first", "second"]
    # The member requested this assignor before a restart that removed it.
    member = state_machine.group.members["b"].copy()
    member.assignor = "gone"
    state_machine.group.put(member)
    target_assignment.next_epoch(state_machine.groups, state_machine.group)
    target_assignment.assign_if_due(state_machine.groups, state_machine.group)
    assert asked[-1] == "first"


def test_unchanged_target_of_a_member_is_not_written(state_machine):
    state_machine.join("a")
    records_of(state_machine)
    target_assignment.next_epoch(state_machine.groups, state_machine.group)
    state_machine.groups.changed.clear()
    target_assignment.assign_if_due(state_machine.groups, state_machine.group)
    kinds = [int.from_bytes(key[:2], "big") for key, _ in state_machine.groups.records]
    assert kinds == [3, 6]
    assert state_machine.groups.changed == {("g", None)}


def test_deleted_topic_is_removed_from_targets(state_machine):
    state_machine.join("a", topics=("t", "u"))
    state_machine.groups.image = lambda: without("u")
    target_assignment.topics_changed(state_machine.groups, {"u"})
    answer = state_machine.beat("a", 2)
    assert [row.topic_id for row in answer.assignment.topic_partitions] == [T.id]


@pytest.mark.parametrize("ahead_ms, waits", [(0, True), (1, False), (10**9, False)])
def test_a_clock_that_was_put_back_holds_no_assignment_up(ahead_ms, waits):
    obeyed = LIMITS.consumer.settings | {"group.consumer.assignment.interval.ms": 5_000}
    state_machine = Machine(LIMITS._replace(consumer=LIMITS.consumer._replace(settings=obeyed)))
    state_machine.join("a")
    group = state_machine.group
    group.epoch += 1
    group.assignment_ms = state_machine.groups.clock.wall_ms() + ahead_ms
    assert target_assignment.assign_if_due(state_machine.groups, group)
    assert (group.assignment_epoch < group.epoch) == waits


def test_a_clock_that_was_put_back_holds_no_expression_up(state_machine):
    join_matching(state_machine, "t.*")
    state_machine.group.matched_ms += 10**9
    state_machine.beat("n", 0, rebalance_timeout_ms=1000, topic_partitions=[],
                 subscribed_topic_regex="u.*")
    assert state_machine.group.resolving is not None
