"""Share groups in the group coordinator's machine: members, epochs, assignment, records."""

from types import SimpleNamespace

from pylog.coordinator import share_group, share_groups
from pylog.coordinator.groups import Groups
from pylog.coordinator.limits import Limits
from pylog.coordinator.share_groups import Obeyed
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from tests.coordinator.world import Clock, loaded

LIMITS = Limits(10, 60_000, 3, 100, 10, 1000, share_session_ms=300)
OBEYED = Obeyed(session_ms=300, heartbeat_ms=50, assignment_ms=0, members_max=2, retry_ms=1000)
T = b"t" * 16


def topic(name="t", id_=T, partitions=2):
    return SimpleNamespace(name=name, id=id_, partitions=[None] * partitions)


class World:
    """A machine, and what it asked to be initialized."""

    def __init__(self, obeyed=OBEYED):
        self.clock = Clock()
        self.machine = Groups(LIMITS, self.clock, lambda: "id")
        self.machine.loaded()
        self.topics = {"t": topic()}
        self.obeyed = obeyed
        self.log = []
        self.asked = []

    def beat(self, member="m", epoch=0, topics=("t",), rack=None, group="g"):
        answer = share_groups.heartbeat(
            self.machine, messages.ShareGroupHeartbeatRequest(
                group_id=group, member_id=member, member_epoch=epoch, rack_id=rack,
                subscribed_topic_names=None if topics is None else list(topics)),
            "client", "/host", self.topics, self.obeyed, None)
        self.settle()
        return answer

    def settle(self):
        self.log += self.machine.records
        self.machine.records = []
        self.asked += [message for _, message in self.machine.replies]
        self.machine.replies = []

    def initialize(self):
        for asked in self.asked:
            assert share_groups.initialized(
                self.machine, asked.group_id, asked.places, {T: "t"}) == ErrorCode.NONE
        self.asked = []
        self.settle()

    def joined(self, member="m"):
        """The member's epoch, with everything that it may have."""
        epoch = self.beat(member).member_epoch
        self.initialize()
        return self.beat(member, epoch, None).member_epoch

    def group(self):
        return self.machine.shares["g"]

    def run(self, ms):
        self.clock.ms += ms
        self.machine.tick()
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
    assert asked.places == {T: [0, 1]}
    assert assigned(world.beat(epoch=first.member_epoch, topics=None)) is None
    assert len(world.asked) == 1
    world.initialize()
    second = world.beat(epoch=first.member_epoch, topics=None)
    assert assigned(second) == {T: [0, 1]} and second.member_epoch == first.member_epoch + 1
    # Its answer was lost: the epoch before is accepted.
    assert world.beat(epoch=first.member_epoch, topics=None).error_code == 0


def test_a_heartbeat_without_news_writes_nothing():
    world = World()
    epoch = world.joined()
    before = len(world.log)
    for _ in range(3):
        assert world.beat(epoch=epoch, topics=None).member_epoch == epoch
    assert len(world.log) == before


def test_what_could_not_be_initialized_is_asked_for_again():
    world = World()
    epoch = world.beat().member_epoch
    asked = world.asked.pop()
    share_groups.uninitialized(world.machine, "g", asked.places)
    world.beat(epoch=epoch, topics=None)
    assert world.asked.pop().places == {T: [0, 1]}
    world.clock.ms += 1001
    world.beat(epoch=epoch, topics=None)
    assert world.asked.pop().places == {T: [0, 1]}


def test_a_topic_that_grows_is_followed():
    world = World()
    epoch = world.joined()
    world.topics = {"t": topic(partitions=3)}
    epoch = world.beat(epoch=epoch, topics=None).member_epoch
    assert world.asked[0].places == {T: [2]}
    world.initialize()
    assert assigned(world.beat(epoch=epoch, topics=None)) == {T: [0, 1, 2]}


def test_a_topic_that_is_gone_is_forgotten():
    world = World()
    epoch = world.joined()
    world.topics = {}
    share_groups.forget_topics(world.machine, set())
    assert world.machine.cleanups and not world.group().initialized
    assert assigned(world.beat(epoch=epoch, topics=None)) == {}


def test_wrong_members_are_refused_and_nothing_changes():
    world = World()
    assert world.beat(epoch=1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert world.beat(epoch=-1).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    epoch = world.joined()
    before = state(world.group())
    assert world.beat("n", 1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.beat("n", -1).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.beat(epoch=epoch + 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert world.beat(epoch=epoch - 2).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    world.machine.find_or_make("classic")
    assert world.beat(group="classic").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert state(world.group()) == before
    world.beat("n")
    assert world.beat("o").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_silent_member_and_one_that_leaves_are_no_members():
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


def test_the_assignment_is_not_computed_again_too_soon():
    world = World(OBEYED._replace(assignment_ms=500))
    epoch = world.beat().member_epoch
    world.initialize()
    assert world.beat(epoch=epoch, topics=None).member_epoch == epoch
    world.clock.ms += 500
    assert assigned(world.beat(epoch=epoch, topics=None)) == {T: [0, 1]}


def test_a_group_is_the_same_after_a_load_and_from_its_own_records():
    world = World()
    world.joined()
    world.beat("n")
    for records in (world.log, state(world.group())):
        other = Groups(LIMITS, Clock(), lambda: "id")
        loaded(other, records)
        assert state(other.shares["g"]) == state(world.group())
    other.clock.ms += 301
    other.tick()
    assert not other.shares["g"].members


def test_a_classic_member_cannot_join_a_share_group():
    world = World()
    world.beat()
    world.machine.join(messages.JoinGroupRequest(
        group_id="g", session_timeout_ms=1000, rebalance_timeout_ms=1000, member_id="",
        protocol_type="consumer", protocols=[messages.JoinGroupRequest.JoinGroupRequestProtocol(
            name="range", metadata=b"")]), 9, "c", "h", "token")
    (_, answer), = world.machine.replies
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
