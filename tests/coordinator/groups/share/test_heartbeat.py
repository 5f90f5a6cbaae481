"""Share groups in the group coordinator's state machine: members, epochs, assignment, records."""

from types import SimpleNamespace

from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.share import group as share_group
from pylog.coordinator.groups.share import heartbeat as share_heartbeat
from pylog.coordinator.groups.share.heartbeat import ShareGroupConfig
from pylog.coordinator.groups.state.group_config import Limits
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.coordinator.world import Clock, loaded

LIMITS = Limits(10, 60_000, 3, 100, 10, 1000, share_session_ms=300)
OBEYED = ShareGroupConfig(session_ms=300, heartbeat_ms=50, assignment_ms=0, members_max=2,
                          retry_ms=1000)
T = b"t" * 16


def topic(name="t", id_=T, partitions=2):
    return SimpleNamespace(name=name, id=id_, partitions=[None] * partitions)


class World:
    """A machine, and its requests to initialize share partitions."""

    def __init__(self, obeyed=OBEYED):
        self.clock = Clock()
        self.state_machine = GroupShard(LIMITS, self.clock, lambda: "id")
        self.state_machine.loaded()
        self.topics = {"t": topic()}
        self.obeyed = obeyed
        self.log = []
        self.asked = []

    def beat(self, member="m", epoch=0, topics=("t",), rack=None, group="g"):
        answer = share_heartbeat.heartbeat(
            self.state_machine, messages.ShareGroupHeartbeatRequest(
                group_id=group, member_id=member, member_epoch=epoch, rack_id=rack,
                subscribed_topic_names=None if topics is None else list(topics)),
            "client", "/host", self.topics, self.obeyed, None)
        self.settle()
        return answer

    def settle(self):
        self.log += self.state_machine.records
        self.state_machine.records = []
        self.asked += [message for _, message in self.state_machine.responses]
        self.state_machine.responses = []

    def initialize(self):
        for asked in self.asked:
            assert share_heartbeat.initialized(
                self.state_machine, asked.group_id, asked.partitions, {T: "t"}) == ErrorCode.NONE
        self.asked = []
        self.settle()

    def joined(self, member="m"):
        """Return the member's epoch after it has its full assignment."""
        epoch = self.beat(member).member_epoch
        self.initialize()
        return self.beat(member, epoch, None).member_epoch

    def group(self):
        return self.state_machine.shares["g"]

    def run(self, ms):
        self.clock.ms += ms
        self.state_machine.tick()
        self.settle()


def assigned(answer):
    return None if answer.assignment is None else {
        bytes(row.topic_id): row.partitions for row in answer.assignment.topic_partitions}


def state(group):
    return list(share_group.records_of(group))


def test_partitions_are_assigned_once_they_are_initialized():
    world = World()
    first = world.beat()
    assert first.error_code == 0 and assigned(first) == {} and first.heartbeat_interval_ms == 50
    asked, = world.asked
    assert asked.partitions == {T: [0, 1]}
    assert assigned(world.beat(epoch=first.member_epoch, topics=None)) is None
    assert len(world.asked) == 1
    world.initialize()
    second = world.beat(epoch=first.member_epoch, topics=None)
    assert assigned(second) == {T: [0, 1]} and second.member_epoch == first.member_epoch + 1
    # The response was lost: the previous epoch is accepted.
    assert world.beat(epoch=first.member_epoch, topics=None).error_code == 0


def test_a_heartbeat_without_news_writes_nothing():
    world = World()
    epoch = world.joined()
    before = len(world.log)
    for _ in range(3):
        assert world.beat(epoch=epoch, topics=None).member_epoch == epoch
    assert len(world.log) == before


def test_failed_initialization_is_requested_again():
    world = World()
    epoch = world.beat().member_epoch
    asked = world.asked.pop()
    share_heartbeat.uninitialized(world.state_machine, "g", asked.partitions)
    world.beat(epoch=epoch, topics=None)
    assert world.asked.pop().partitions == {T: [0, 1]}
    world.clock.ms += 1001
    world.beat(epoch=epoch, topics=None)
    assert world.asked.pop().partitions == {T: [0, 1]}


def test_a_topic_that_grows_is_followed():
    world = World()
    epoch = world.joined()
    world.topics = {"t": topic(partitions=3)}
    epoch = world.beat(epoch=epoch, topics=None).member_epoch
    assert world.asked[0].partitions == {T: [2]}
    world.initialize()
    assert assigned(world.beat(epoch=epoch, topics=None)) == {T: [0, 1, 2]}


def test_deleted_topic_is_removed():
    world = World()
    epoch = world.joined()
    world.topics = {}
    share_heartbeat.forget_topics(world.state_machine, set())
    assert world.state_machine.cleanups and not world.group().initialized
    assert assigned(world.beat(epoch=epoch, topics=None)) == {}


def test_wrong_members_are_rejected_and_nothing_changes():
    world = World()
    assert world.beat(epoch=1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.beat(epoch=-1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    epoch = world.joined()
    before = state(world.group())
    assert world.beat("n", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.beat("n", -1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.beat(epoch=epoch + 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert world.beat(epoch=epoch - 2).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    world.state_machine.find_or_make("classic")
    assert world.beat(group="classic").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert state(world.group()) == before
    world.beat("n")
    assert world.beat("o").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_silent_and_leaving_members_are_removed():
    world = World()
    epoch = world.joined()
    world.beat("n")
    world.run(200)
    world.beat(epoch=epoch, topics=None)
    world.run(150)
    assert list(world.group().members) == ["m"]
    assert world.beat(epoch=-1).member_epoch == -1
    assert world.group().state == "Empty" and not world.group().target
    world.run(1000)


def test_group_is_restored_from_its_snapshot_and_its_records():
    world = World()
    world.joined()
    world.beat("n")
    for records in (world.log, state(world.group())):
        other = GroupShard(LIMITS, Clock(), lambda: "id")
        loaded(other, records)
        assert state(other.shares["g"]) == state(world.group())
    other.clock.ms += 301
    other.tick()
    assert not other.shares["g"].members


def kept(group):
    """Return the state of a group that a reload must restore."""
    members = {member.id: (member.epoch, member.previous_epoch, member.rack, member.client_id,
                           member.host, member.topics, member.assigned)
               for member in group.members.values()}
    places = [{topic: (row.name, row.partitions) for topic, row in rows.items()}
              for rows in (group.initializing, group.initialized)]
    return (group.epoch, group.hash, group.target_epoch, group.assigned_ms, members,
            {name: target for name, target in group.target.items() if target}, places)


def walked(world, random, epochs):
    """Take one step of a random member, or of the environment."""
    member, turn = random.choice("mno"), random.randrange(12)
    if turn < 6:
        topics = random.choice((None, ["t"], ["t", "u"], []))
        known = epochs.get(member)
        if known is None:
            topics = topics or ["t"]
        rack = random.choice((None, None, "r"))
        answer = world.beat(member, known or 0, topics, rack)
        if answer.error_code == 0:
            epochs[member] = answer.member_epoch
        else:
            epochs.pop(member, None)
    elif turn == 6:
        world.beat(member, -1)
        epochs.pop(member, None)
    elif turn == 7:
        world.topics = {name: topic(name, name.encode() * 16, random.randrange(1, 4))
                        for name in random.choice(("t", "tu", "u"))}
    elif turn == 8:
        for asked in world.asked:
            assert share_heartbeat.uninitialized(world.state_machine, "g",
                                                 asked.partitions) == ErrorCode.NONE
        world.asked = []
    elif turn == 9:
        world.run(random.choice((10, 100, 301)))
    else:
        for asked in world.asked:
            share_heartbeat.initialized(world.state_machine, "g", asked.partitions, {
                row.id: row.name for row in world.topics.values()})
        world.asked = []
    world.settle()


def test_random_share_group_is_restored_from_its_log_and_reaches_the_target(random_source):
    for _ in range(30):
        world, epochs = World(), {}
        for _ in range(60):
            before = world.state_machine.shares.get("g") and kept(world.group())
            length = len(world.log)
            walked(world, random_source, epochs)
            if "g" not in world.state_machine.shares:
                assert not world.log
                continue
            group = world.group()
            assert (before == kept(group)) == (len(world.log) == length) or before is None
            assert group.target_epoch <= group.epoch
            for member in group.members.values():
                assert member.previous_epoch <= member.epoch <= group.target_epoch
                assert len(group.members) <= OBEYED.members_max
            for target in group.target.values():
                for id_, indexes in target.items():
                    assert set(indexes) <= group.initialized[id_].partitions
            assert set(group.target) <= set(group.members)
            assert group.state == ("Stable" if group.members else "Empty")
        if "g" in world.state_machine.shares:
            other = GroupShard(LIMITS, Clock(), lambda: "id")
            loaded(other, world.log)
            assert kept(other.shares["g"]) == kept(world.group())


def test_group_is_described_and_listed():
    world = World(OBEYED._replace(members_max=3))
    described = share_heartbeat.described(world.state_machine, "g", {})
    assert (described.error_code, described.group_id) == (ErrorCode.GROUP_ID_NOT_FOUND, "g")
    epoch = world.joined()
    world.beat("n", rack="r")
    world.topics["u"] = topic("u", b"u" * 16)
    names = {row.id: row for row in world.topics.values()}
    found = share_heartbeat.described(world.state_machine, "g", names)
    assert (found.error_code, found.group_state, found.assignor_name) == (0, "Stable", "simple")
    assert (found.group_epoch, found.assignment_epoch) == (
        world.group().epoch, world.group().target_epoch)
    first, second = found.members
    assert (first.member_id, first.member_epoch, first.client_id, first.client_host,
            first.subscribed_topic_names, first.rack_id) == ("m", epoch, "client", "/host", ["t"],
                                                             None)
    [row] = first.assignment.topic_partitions
    assert (row.topic_id, row.topic_name, row.partitions) == (T, "t", [0, 1])
    assert (second.member_id, second.rack_id) == ("n", "r")
    # A deleted topic is not described.
    member = share_heartbeat.described(world.state_machine, "g", {}).members[0]
    assert not member.assignment.topic_partitions
    for states, types, expected in ((set(), set(), 1), ({"stable"}, {"share"}, 1),
                                    ({"empty"}, set(), 0), (set(), {"classic"}, 0)):
        rows = list(share_heartbeat.listed(world.state_machine, states, types))
        assert len(rows) == expected
        for row in rows:
            assert (row.group_id, row.protocol_type, row.group_state, row.group_type) == (
                "g", "share", "Stable", "share")
    world.beat("m", -1)
    world.beat("n", -1)
    [row] = share_heartbeat.listed(world.state_machine, {"empty"}, set())
    assert row.group_state == "Empty"
    assert {name: count for name, count in world.state_machine.events.items() if count} == {
        "member_joined": 2, "member_left": 2, "rebalance": 5}


def test_group_being_deleted_is_not_recreated():
    world = World()
    world.state_machine.deleting.add("g")
    assert world.beat().error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert "g" not in world.state_machine.shares
    for call in (lambda: share_heartbeat.initialized(world.state_machine, "h", {}, {}),
                 lambda: share_heartbeat.uninitialized(world.state_machine, "h", {})):
        assert call() == ErrorCode.GROUP_ID_NOT_FOUND


def test_sessions_restart_with_each_heartbeat_and_load():
    world = World()
    epoch = world.joined()
    for _ in range(4):
        world.run(299)
        assert world.beat(epoch=epoch, topics=None).member_epoch == epoch
    other = GroupShard(LIMITS, Clock(), lambda: "id")
    loaded(other, world.log)
    other.clock.ms += 299
    other.tick()
    assert list(other.shares["g"].members) == ["m"]
    other.clock.ms += 1
    other.tick()
    assert not other.shares["g"].members and other.events["member_expired"] == 1
    world.run(300)
    assert not world.group().members


def test_member_epoch_is_accepted_until_two_later_ones():
    world = World(OBEYED._replace(members_max=3))
    first = world.beat().member_epoch
    world.initialize()
    second = world.beat(epoch=first, topics=None).member_epoch
    assert second == first + 1 and world.group().members["m"].previous_epoch == first
    assert world.beat(epoch=first, topics=None).error_code == 0
    world.beat("n")
    third = world.beat(epoch=second, topics=None).member_epoch
    assert third > second
    assert world.beat(epoch=first, topics=None).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert world.beat(epoch=second, topics=None).error_code == 0
    # A member that rejoins receives its complete assignment.
    again = world.beat(epoch=0)
    assert again.member_epoch == third and assigned(again) is not None


def test_a_classic_member_cannot_join_a_share_group():
    world = World()
    world.beat()
    world.state_machine.join(messages.JoinGroupRequest(
        group_id="g", session_timeout_ms=1000, rebalance_timeout_ms=1000, member_id="",
        protocol_type="consumer", protocols=[messages.JoinGroupRequest.JoinGroupRequestProtocol(
            name="range", metadata=b"")]), 9, "c", "h", "token")
    (_, answer), = world.state_machine.responses
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
