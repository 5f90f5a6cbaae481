"""Streams groups of KIP-1071: the same valid and invalid requests to Apache Kafka and to brokerd,
every response compared.

Walks follow --seed; --seed random explores further. With equal load the task of a member is random,
so tasks are displayed by their number, and two members with a process each alternate: with more
members the order of released tasks is random too.
"""

import random
import time

import pytest

from tests.wire.messages import ask
from tests.wire.sides import Side, compare
from tests.wire.talk import configure_group, create_topic, unique

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
BEAT, DESCRIBE, LIST, COMMIT, FETCH, FORGET, DELETE = 88, 89, 16, 8, 9, 47, 42
FIND, JOIN, SYNC, HEARTBEAT, LEAVE, DESCRIBE_CLASSIC = 10, 11, 14, 12, 13, 15
METADATA, VERSIONS, CONSUMER_BEAT = 3, 18, 68
GROUP = 0
LOADING, NOT_COORDINATOR, NOT_AVAILABLE = 14, 16, 15
TASKS = 12
STEPS = 120
WAIT_S = 30


def subtopology(id_: str, sources=(), sinks=(), repartitions=(), changelogs=(), copartitions=()):
    """repartitions, changelogs: [(name, partitions)]."""
    def infos(rows):
        return [{"name": name, "partitions": count, "replication_factor": 1, "topic_configs": [
            {"key": "cleanup.policy", "value": "compact"}]} for name, count in rows]

    return {"subtopology_id": id_, "source_topics": list(sources), "source_topic_regex": [],
            "repartition_sink_topics": list(sinks), "state_changelog_topics": infos(changelogs),
            "repartition_source_topics": infos(repartitions), "copartition_groups": [
                {"source_topics": some, "source_topic_regex": [],
                 "repartition_source_topics": more} for some, more in copartitions]}


class Talk:
    """One side: a group without assignment delay. Its topics are created before it: Kafka's
    coordinator is notified of them after the client, but before the group's settings. rebalance_ms:
    maximum time for members to revoke tasks.
    """

    rebalance_ms = 60_000

    def __init__(self, side: Side, delay_ms: int = 0):
        self.side = side
        self.group = unique("group")
        side.stems[self.group] = "group"
        self.until(FIND, 4, lambda answer: answer["coordinators"][0]["error_code"],
                   coordinator_keys=[self.group], key_type=GROUP)
        self.until(DESCRIBE, 0, lambda answer: answer["groups"][0]["error_code"],
                   group_ids=[self.group], include_authorized_operations=False)
        configure_group(side.connection, self.group, "streams.assignment.interval.ms", 0)
        configure_group(side.connection, self.group, "streams.initial.rebalance.delay.ms", delay_ms)

    def until(self, key, version, error_of, **fields):
        """Retry until the coordinator is available."""
        end_s = time.monotonic() + WAIT_S
        while True:
            answer = ask(self.side.connection, key, version, **fields)
            if error_of(answer) not in (LOADING, NOT_COORDINATOR, NOT_AVAILABLE):
                return answer
            assert time.monotonic() < end_s, answer
            time.sleep(0.02)

    def sent(self, member_id: str, epoch: int, **fields) -> dict:
        fields = {"endpoint_information_epoch": 0, "rebalance_timeout": -1, **fields}
        return self.until(BEAT, 0, lambda answer: answer["error_code"], group_id=self.group,
                          member_id=member_id, member_epoch=epoch, **fields)

    def beat(self, label: str, member_id: str, epoch: int, **fields) -> dict:
        answer = self.sent(member_id, epoch, **fields)
        self.note(label, answer)
        return answer

    def join(self, label: str, member_id: str, *subtopologies, topology_epoch=0, **fields) -> dict:
        return self.beat(label, member_id, 0, **{**self.joining(member_id, topology_epoch,
                                                                *subtopologies), **fields})

    def joining(self, member_id: str, topology_epoch: int, *subtopologies) -> dict:
        return {"rebalance_timeout": self.rebalance_ms, "process_id": f"of {member_id}",
                "client_tags": [],
                "topology": {"epoch": topology_epoch, "subtopologies": list(subtopologies)},
                "active_tasks": [], "standby_tasks": [], "warmup_tasks": []}

    def note(self, label: str, answer: dict) -> None:
        shown = dict(answer)
        for field in ("active_tasks", "standby_tasks", "warmup_tasks"):
            shown[field] = counted(answer[field])
        shown["status"] = [row["status_code"] for row in answer["status"] or ()]
        shown["partitions_by_user_endpoint"] = endpoints(answer["partitions_by_user_endpoint"])
        self.side.note(label, shown)

    def describe(self, label: str, version: int = 0) -> dict:
        answer = ask(self.side.connection, DESCRIBE, version, group_ids=[self.group],
                     include_authorized_operations=False)
        shown = {**answer, "groups": []}
        for group in answer["groups"]:
            shown["groups"].append({**group, "members": sorted((
                {**member, **{field: {kind: counted(rows) for kind, rows in member[field].items()}
                              for field in ("assignment", "target_assignment")}}
                for member in group["members"]), key=lambda member: member["member_id"])})
        self.side.note(label, shown)
        return answer

    def listed(self, label: str, states=(), types=()) -> None:
        answer = ask(self.side.connection, LIST, 5, states_filter=list(states),
                     types_filter=list(types))
        self.side.note(label, [row for row in answer["groups"] if row["group_id"] == self.group])

    def has(self, topic: str) -> bool:
        answer = ask(self.side.connection, METADATA, 4, topics=[{"name": topic}],
                     allow_auto_topic_creation=False)
        return answer["topics"][0]["error_code"] == 0

    def wait_for(self, *topics: str) -> None:
        end_s = time.monotonic() + WAIT_S
        while not all(map(self.has, topics)):
            assert time.monotonic() < end_s, topics
            time.sleep(0.05)

    def joined(self, member_id: str, *subtopologies, code: int | None = None) -> dict:
        """Repeat until the status matches, which may be a moment after topics exist."""
        end_s = time.monotonic() + WAIT_S
        while True:
            answer = self.sent(member_id, 0, **self.joining(member_id, 0, *subtopologies))
            codes = [row["status_code"] for row in answer["status"] or ()]
            if codes == ([] if code is None else [code]):
                return answer
            assert time.monotonic() < end_s, answer
            time.sleep(0.1)


def counted(rows) -> list | None:
    return None if rows is None else [
        (row["subtopology_id"], len(row["partitions"]))
        for row in sorted(rows, key=lambda row: row["subtopology_id"])]


def endpoints(rows) -> list | None:
    return None if rows is None else sorted(
        (row["user_endpoint"]["port"], sum(len(part["partitions"])
                                           for part in row["active_partitions"]))
        for row in rows)


# ---- walks --------------------------------------------------------------------------------------

class Member:
    """The state of one client. owned: active tasks, in the format of heartbeats."""

    def __init__(self, number: int):
        self.id = f"member-{number}"
        self.epoch = 0
        self.endpoint_epoch = 0
        self.owned: list[dict] = []


class Walk:
    """One side's walk."""

    def __init__(self, side: Side, seed: int):
        self.side = side
        self.talk = Talk(side)
        self.topic = side.topic("source", TASKS)
        self.random = random.Random(seed)
        self.members = [Member(number) for number in range(2)]
        self.label = ""

    def run(self) -> None:
        moves = [(self.join, 12), (self.beat, 30), (self.full_beat, 14), (self.wrong, 8),
                 (self.leave, 5), (self.commit, 8), (self.fetch, 4), (self.describe, 8),
                 (self.list_, 3), (self.delete, 2), (self.forget, 2), (self.classic, 2)]
        for step in range(STEPS):
            move, = self.random.choices([move for move, _ in moves],
                                        [weight for _, weight in moves])
            member = self.random.choice(self.members)
            self.label = f"{step} {move.__name__} of {member.id}"
            move(member)

    def sent(self, member: Member, epoch: int, **fields) -> None:
        answer = self.talk.beat(self.label, member.id, epoch,
                                endpoint_information_epoch=member.endpoint_epoch, **fields)
        if answer["error_code"] in (25, 110):
            member.epoch, member.owned = 0, []
        elif answer["error_code"] == 0:
            member.epoch = max(0, answer["member_epoch"])
            member.endpoint_epoch = answer["endpoint_information_epoch"]
            if answer["active_tasks"] is not None:
                member.owned = answer["active_tasks"]

    def join(self, member: Member) -> None:
        member.owned = []
        port = int(member.id[-1]) + 1
        self.sent(member, 0, **self.talk.joining(member.id, 0, subtopology("0", [self.topic])),
                  user_endpoint={"host": "h", "port": port} if port % 2 else None)

    def beat(self, member: Member) -> None:
        self.sent(member, member.epoch) if self.random.random() < 0.4 else self.full_beat(member)

    def full_beat(self, member: Member) -> None:
        if member.epoch == 0:
            self.join(member)
        else:
            self.sent(member, member.epoch, active_tasks=member.owned, standby_tasks=[],
                      warmup_tasks=[])

    def wrong(self, member: Member) -> None:
        epoch = member.epoch + self.random.choice((-2, -1, 1, 5))
        tasks = [{"subtopology_id": "0", "partitions": [0, TASKS]}]
        fields = self.random.choice((
            {}, {"active_tasks": tasks, "standby_tasks": [], "warmup_tasks": []},
            {"active_tasks": []}, {"rack_id": ""}, {"instance_id": "i"},
            {"active_tasks": [], "standby_tasks": [], "warmup_tasks": tasks},
            {"topology": {"epoch": 0, "subtopologies": []}}))
        self.talk.beat(self.label, self.random.choice((member.id, "nobody", "")), epoch, **fields)

    def leave(self, member: Member) -> None:
        self.sent(member, -1)
        member.epoch, member.owned = 0, []

    def commit(self, member: Member) -> None:
        self.side.note(self.label, ask(
            self.side.connection, COMMIT, self.random.choice((8, 9, 9)),
            group_id=self.talk.group, member_id=member.id,
            generation_id_or_member_epoch=member.epoch + self.random.choice((0, 0, 0, 1)),
            group_instance_id=None, topics=[{"name": self.topic, "partitions": [
                {"partition_index": self.random.randrange(3), "committed_offset": 5,
                 "committed_leader_epoch": -1, "committed_metadata": ""}]}]))

    def fetch(self, member: Member) -> None:
        who = self.random.choice(((None, -1), (member.id, member.epoch), (member.id, 77)))
        self.side.note(self.label, ask(
            self.side.connection, FETCH, 9, require_stable=False, groups=[{
                "group_id": self.talk.group, "member_id": who[0], "member_epoch": who[1],
                "topics": [{"name": self.topic, "partition_indexes": [0, 1, 2]}]}]))

    def describe(self, member: Member) -> None:
        self.talk.describe(self.label)
        self.side.note(self.label + " (15)", ask(
            self.side.connection, DESCRIBE_CLASSIC, self.random.choice((5, 6)),
            groups=[self.talk.group], include_authorized_operations=False))

    def list_(self, member: Member) -> None:
        self.talk.listed(self.label)
        self.talk.listed(self.label + ", some", ["Stable", "Empty"], ["streams"])

    def delete(self, member: Member) -> None:
        self.side.note(self.label, ask(
            self.side.connection, DELETE, 2, groups_names=[self.talk.group]))

    def forget(self, member: Member) -> None:
        self.side.note(self.label, ask(
            self.side.connection, FORGET, 0, group_id=self.talk.group, topics=[
                {"name": self.topic, "partitions": [{"partition_index": 0}]}]))

    def classic(self, member: Member) -> None:
        """Requests that the group rejects; none of them makes the group a classic one."""
        group, connection = self.talk.group, self.side.connection
        self.side.note(self.label + " beats", ask(
            connection, HEARTBEAT, 4, group_id=group, member_id="m", generation_id=1))
        self.side.note(self.label + " leaves", ask(
            connection, LEAVE, 5, group_id=group, members=[{"member_id": "m"}]))
        self.side.note(self.label + " syncs", ask(
            connection, SYNC, 5, group_id=group, member_id="m", generation_id=1))
        self.side.note(self.label + " is a consumer", ask(
            connection, CONSUMER_BEAT, 1, group_id=group, member_id="m", member_epoch=1))


def walk(side: Side, seed: int) -> None:
    Walk(side, seed).run()


@pytest.mark.parametrize("number", range(2))
def test_a_walk_over_a_group_is_answered_as_by_kafka(kafka, brokerd, random_source, number):
    compare(kafka, brokerd, walk, random_source.randrange(1 << 30))


# ---- topologies ---------------------------------------------------------------------------------

def word_count(side: Side) -> None:
    """Its topics are created one after another; it is described, shut down and deleted."""
    talk = Talk(side)
    source, between, changelog = (
        side.name(stem) for stem in ("source", "between", "changelog"))
    parts = (subtopology("0", [source], [between]),
             subtopology("1", (), (), [(between, 0)], [(changelog, 0)]))
    talk.join("without a source", "m", *parts)
    talk.describe("not ready")
    talk.listed("not ready")
    side.topic("unrelated")
    create_topic(side.port, source, 3)
    talk.wait_for(source)
    talk.joined("m", *parts, code=3)
    talk.wait_for(between, changelog)
    ready = talk.joined("m", *parts)
    talk.note("ready", ready)
    talk.describe("stable")
    talk.listed("stable", ["stable"], ["Streams"])
    for name in (between, changelog):
        side.ask(side.stems[name], METADATA, 4, topics=[{"name": name}],
                 allow_auto_topic_creation=False)
    talk.join("another topology", "m2", subtopology("0", [source]))
    talk.join("a later one", "m2", *parts, topology_epoch=1)
    talk.beat("shut down", "m", ready["member_epoch"], shutdown_application=True)
    talk.beat("told so", "m", ready["member_epoch"])
    side.ask("deleted with members", DELETE, 2, groups_names=[talk.group])
    talk.beat("left", "m", -1)
    talk.describe("empty")
    side.ask("deleted", DELETE, 2, groups_names=[talk.group])
    talk.describe("gone")
    talk.join("joined anew", "m", subtopology("0", [source]))


def test_topics_of_a_word_count_application_are_created_as_by_kafka(kafka, brokerd):
    compare(kafka, brokerd, word_count)


def wrong_topologies(side: Side) -> None:
    two, three = side.topic("two", 2), side.topic("three", 3)
    between, copy, more = side.name("between"), side.name("copy"), side.topic("more", 5)
    names = iter(range(100))

    def tried(label: str, *subtopologies, **fields) -> None:
        talk = Talk(side)
        answer = talk.join(label, f"m{next(names)}", *subtopologies, **fields)
        if answer["error_code"] == 0:
            talk.describe(label + ", described")

    tried("no subtopology")
    tried("copartitioned", subtopology("0", [two, three], copartitions=[([0, 1], [])]))
    tried("not copartitioned", subtopology("0", [two, three]))
    tried("fixed beside a source", subtopology("0", [two], [between]),
          subtopology("1", [two], (), [(between, 3)], copartitions=[([0], [0])]))
    tried("an internal topic that is another", subtopology("0", [two], [more]),
          subtopology("1", (), (), [(more, 0)]))
    tried("a loop", subtopology("0", (), [between], [(copy, 0)]),
          subtopology("1", (), [copy], [(between, 0)]))
    tried("nobody writes it", subtopology("0", [two]), subtopology("1", (), (), [(between, 0)]))
    tried("reads nothing", subtopology("0", [two]), subtopology("1", (), (), (), [(copy, 0)]))
    tried("a changelog with partitions", subtopology("0", [two], (), (), [(copy, 2)]))
    tried("patterns", {**subtopology("0", [two]), "source_topic_regex": ["a.*"]})
    tried("an internal topic of Kafka", subtopology("0", ["__consumer_offsets"]))
    tried("no name", subtopology("0", ["a b"]))
    tried("no time-out", subtopology("0", [two]), rebalance_timeout=-1)
    tried("an instance", subtopology("0", [two]), instance_id="i")
    tried("tasks", subtopology("0", [two]),
          active_tasks=[{"subtopology_id": "0", "partitions": [0]}])
    talk = Talk(side)
    talk.beat("without a topology", "m", 0, rebalance_timeout=1000)
    talk.beat("no group", "m", 3)
    talk.beat("leaves no group", "m", -1)
    talk.beat("minus two", "m", -2)
    talk.beat("minus three", "m", -3)


def test_wrong_topologies_are_rejected_as_by_kafka(kafka, brokerd):
    compare(kafka, brokerd, wrong_topologies)


def delayed(side: Side) -> None:
    """No task is assigned before the initial rebalance delay is over."""
    topic = side.topic("source", 2)
    talk = Talk(side, 1500)
    parts = subtopology("0", [topic])
    first = talk.join("first", "a", parts)
    talk.beat("first again", "a", first["member_epoch"])
    talk.join("second", "b", parts)
    end_s = time.monotonic() + WAIT_S
    answer = talk.sent("a", first["member_epoch"])
    while any(row["status_code"] == 5 for row in answer["status"]):
        assert time.monotonic() < end_s
        time.sleep(0.1)
        answer = talk.sent("a", answer["member_epoch"])
    talk.note("given", answer)
    talk.beat("the other's", "b", first["member_epoch"])
    talk.describe("stable")


def test_the_first_rebalance_waits_as_in_kafka(kafka, brokerd):
    compare(kafka, brokerd, delayed)


def standbys(side: Side) -> None:
    """A setting of the group starts a rebalance; standby replicas are assigned to another process.
    """
    source, copy = side.topic("source", 4), side.topic("copy", 4)
    talk = Talk(side)
    parts = subtopology("0", [source], (), (), [(copy, 0)])
    talk.join("first", "a", parts)
    second = talk.join("second", "b", parts)
    configure_group(side.connection, talk.group, "streams.num.standby.replicas", 1)
    end_s = time.monotonic() + WAIT_S
    answer = talk.sent("b", second["member_epoch"])
    while answer["member_epoch"] == second["member_epoch"]:
        assert time.monotonic() < end_s
        time.sleep(0.05)
        answer = talk.sent("b", answer["member_epoch"])
    talk.note("copies", answer)
    talk.describe("two processes")


def test_copies_of_state_are_assigned_as_by_kafka(kafka, brokerd):
    compare(kafka, brokerd, standbys)


def levels(side: Side) -> None:
    answer = ask(side.connection, VERSIONS, 4, client_software_name="n",
                 client_software_version="1")
    side.note("apis", [row for row in answer["api_keys"] if row["api_key"] in (BEAT, DESCRIBE)])
    side.note("levels", [row for field in ("supported_features", "finalized_features")
                         for row in answer[field] if row["name"] == "streams.version"])


def test_the_protocol_is_advertised_as_by_kafka(kafka, brokerd):
    compare(kafka, brokerd, levels)
