"""Random walks over consumer groups of KIP-848: the same valid and invalid requests to Apache Kafka
and to brokerd, every response compared.

They follow --seed; --seed random explores further. Members join, send heartbeats, revoke, commit,
leave and return, also as static members; epochs, ids and partitions are sometimes wrong. The
members of a walk request the range assignor, whose result is the same on both sides. In walks where
a member without a requested assignor joins and leaves, the others request the default: Kafka starts
an epoch for another assignor only since KAFKA-20434.
"""

import random
import time
import uuid

import pytest

from pylog.protocol import codec, messages
from tests.wire.messages import ask
from tests.wire.sides import Side, compare
from tests.wire.talk import configure_group, unique

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
BEAT, DESCRIBE, LIST, COMMIT, FETCH, FORGET, DELETE = 68, 69, 16, 8, 9, 47, 42
FIND, JOIN, SYNC, HEARTBEAT, LEAVE, DESCRIBE_CLASSIC = 10, 11, 14, 12, 13, 15
GROUP = 0
LOADING, NOT_COORDINATOR, NOT_AVAILABLE = 14, 16, 15
STEPS = 150
WAIT_S = 20
USUAL_MS = 5000


class Talk:
    """One side: a group without assignment delay, and topics."""

    def __init__(self, side: Side):
        self.side = side
        self.group = unique("group")
        side.stems[self.group] = "group"
        self.topics = [side.topic("first", 3), side.topic("second", 2)]
        self.names = {uuid.UUID(side.id_of(topic)).hex: topic for topic in self.topics}
        self.until(FIND, 4, lambda answer: answer["coordinators"][0]["error_code"],
                   coordinator_keys=[self.group], key_type=GROUP)
        self.until(DESCRIBE, 1, lambda answer: answer["groups"][0]["error_code"],
                   group_ids=[self.group], include_authorized_operations=False)
        configure_group(side.connection, self.group, "consumer.assignment.interval.ms", 0)

    def until(self, key, version, error_of, **fields):
        """Retry until the coordinator is available."""
        end_s = time.monotonic() + WAIT_S
        while True:
            answer = ask(self.side.connection, key, version, **fields)
            if error_of(answer) not in (LOADING, NOT_COORDINATOR, NOT_AVAILABLE):
                return answer
            assert time.monotonic() < end_s, answer
            time.sleep(0.02)

    def beat(self, label: str, member_id: str, epoch: int, version: int = 1, **fields) -> dict:
        owned = fields.pop("owned", None)
        answer = self.until(
            BEAT, version, lambda answer: answer["error_code"], group_id=self.group,
            member_id=member_id, member_epoch=epoch, rebalance_timeout=fields.pop("timeout", -1),
            topic_partitions=None if owned is None else [
                {"topic_id": uuid.UUID(self.side.id_of(topic)), "partitions": partitions}
                for topic, partitions in owned.items()], **fields)
        self.note(label, answer)
        return answer

    def note(self, label: str, answer: dict) -> None:
        shown = dict(answer)
        # Ours requests more heartbeats while a group rebalances (docs/reference/differences.md).
        if 0 < shown["heartbeat_interval"] <= USUAL_MS:
            shown["heartbeat_interval"] = USUAL_MS
        if shown.get("assignment"):
            shown["assignment"] = self.shown(shown["assignment"])
        self.side.note(label, shown)

    def held(self, assignment: dict) -> dict:
        return {self.names[row["topic_id"]]: sorted(row["partitions"])
                for row in assignment["topic_partitions"]}

    def shown(self, assignment: dict) -> list:
        return sorted((self.side.stems[topic], partitions)
                      for topic, partitions in self.held(assignment).items())

    def describe(self, label: str) -> None:
        answer = ask(self.side.connection, DESCRIBE, 1, group_ids=[self.group],
                     include_authorized_operations=False)
        for group in answer["groups"]:
            group["members"].sort(key=lambda member: member["member_id"])
            for member in group["members"]:
                member["subscribed_topic_names"].sort()
                for field in ("assignment", "target_assignment"):
                    member[field] = self.shown(member[field])
        self.side.note(label, answer)

    def listed(self, label: str) -> None:
        answer = ask(self.side.connection, LIST, 5, states_filter=[], types_filter=[])
        self.side.note(label, [row for row in answer["groups"] if row["group_id"] == self.group])


class Member:
    """The state of one client. instance: None for a dynamic member."""

    def __init__(self, number: int):
        self.id = f"member-{number}"
        self.instance = f"instance-{number}" if number == 3 else None
        self.epoch = 0
        self.owned: dict[str, list[int]] = {}
        self.topics = 2


class Walk:
    """One side's walk."""

    def __init__(self, side: Side, seed: int):
        self.talk = Talk(side)
        self.side = side
        self.random = random.Random(seed)
        self.members = [Member(number) for number in range(4)]
        self.label = ""
        self.lives = 0

    def run(self) -> None:
        moves = [(self.join, 12), (self.beat, 30), (self.full_beat, 12), (self.wrong, 8),
                 (self.leave, 5), (self.change, 4), (self.commit, 10), (self.fetch, 5),
                 (self.describe, 8), (self.list_, 3), (self.delete, 2), (self.forget, 2)]
        for step in range(STEPS):
            move, = self.random.choices([move for move, _ in moves],
                                        [weight for _, weight in moves])
            member = self.random.choice(self.members)
            self.label = f"{step} {move.__name__} of {member.id}"
            move(member)

    def sent(self, member: Member, epoch: int, **fields) -> None:
        answer = self.talk.beat(self.label, member.id, epoch, instance_id=member.instance, **fields)
        if answer["error_code"] in (25, 110):
            member.epoch, member.owned = 0, {}
        elif answer["error_code"] == 0:
            member.epoch = max(0, answer["member_epoch"])
            if answer["assignment"] is not None:
                member.owned = self.talk.held(answer["assignment"])

    def full(self, member: Member) -> dict:
        return {"timeout": 60_000, "server_assignor": "range", "owned": member.owned,
                "subscribed_topic_names": self.talk.topics[:member.topics]}

    def join(self, member: Member) -> None:
        if member.instance is not None and self.random.random() < 0.5:
            self.lives += 1
            member.id = f"member-3-{self.lives}"
        member.owned = {}
        # Kafka assigns topics to a new member without topics if the others have the same ones.
        member.topics = max(1, member.topics)
        self.sent(member, 0, **self.full(member))

    def beat(self, member: Member) -> None:
        owned = member.owned if self.random.random() < 0.6 else None
        self.sent(member, member.epoch, owned=owned)

    def full_beat(self, member: Member) -> None:
        self.sent(member, member.epoch, **self.full(member))

    def change(self, member: Member) -> None:
        member.topics = self.random.randrange(3)
        self.sent(member, member.epoch, subscribed_topic_names=self.talk.topics[:member.topics],
                  owned=self.random.choice((None, member.owned)))

    def wrong(self, member: Member) -> None:
        epoch = member.epoch + self.random.choice((-2, -1, 1, 5))
        fields = self.random.choice(({}, {"owned": member.owned}, {"owned": {
            self.talk.topics[0]: [0, 1, 2]}}, {"server_assignor": "none"}, {"rack_id": ""}))
        id_ = self.random.choice((member.id, member.id, "nobody", ""))
        self.talk.beat(self.label, id_, epoch, self.random.randrange(2), **fields,
                       instance_id=self.random.choice((member.instance, None, "instance-3", "")))

    def leave(self, member: Member) -> None:
        for_a_while = member.instance is not None and self.random.random() < 0.6
        self.sent(member, -2 if for_a_while else -1)
        member.epoch, member.owned = 0, {}

    def commit(self, member: Member) -> None:
        version = self.random.choice((8, 9, 9))
        self.side.note(self.label, ask(
            self.side.connection, COMMIT, version, group_id=self.talk.group, member_id=member.id,
            generation_id_or_member_epoch=member.epoch + self.random.choice((0, 0, 0, -1, 1)),
            group_instance_id=None, topics=[{"name": self.talk.topics[0], "partitions": [
                {"partition_index": self.random.randrange(3), "committed_offset": 5,
                 "committed_leader_epoch": -1, "committed_metadata": ""}]}]))

    def fetch(self, member: Member) -> None:
        who = self.random.choice(((None, -1), (member.id, member.epoch), (member.id, 77)))
        self.side.note(self.label, ask(
            self.side.connection, FETCH, 9, require_stable=False, groups=[{
                "group_id": self.talk.group, "member_id": who[0], "member_epoch": who[1],
                "topics": [{"name": self.talk.topics[0], "partition_indexes": [0, 1, 2]}]}]))

    def describe(self, member: Member) -> None:
        self.talk.describe(self.label)
        self.side.note(self.label + " (15)", ask(
            self.side.connection, DESCRIBE_CLASSIC, self.random.choice((5, 6)),
            groups=[self.talk.group], include_authorized_operations=False))

    def list_(self, member: Member) -> None:
        self.talk.listed(self.label)

    def delete(self, member: Member) -> None:
        self.side.note(self.label, ask(
            self.side.connection, DELETE, 2, groups_names=[self.talk.group]))

    def forget(self, member: Member) -> None:
        self.side.note(self.label, ask(
            self.side.connection, FORGET, 0, group_id=self.talk.group, topics=[
                {"name": self.talk.topics[1], "partitions": [{"partition_index": 0}]}]))


def walk(side: Side, seed: int) -> None:
    Walk(side, seed).run()


# Slow like the transaction walks: Kafka needs long on a busy machine.
@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_a_walk_over_a_group_is_answered_as_by_kafka(kafka, brokerd, random_source, number):
    compare(kafka, brokerd, walk, random_source.randrange(1 << 30))


# ---- expressions --------------------------------------------------------------------------------

def expressions(side: Side) -> None:
    """A valid expression, an invalid one, and a topic that is created later."""
    talk = Talk(side)
    stem = unique("matched")
    side.stems[stem] = "matched"

    def full(epoch: int, text: str, owned: dict) -> dict:
        return talk.until(BEAT, 1, lambda answer: answer["error_code"], group_id=talk.group,
                          member_id="m", member_epoch=epoch, rebalance_timeout=60_000,
                          subscribed_topic_regex=text, server_assignor="uniform",
                          topic_partitions=[])

    for text in ("(", "a{2", "[z-a]", "(?=x)", "\\1", "*", "x**", "(?P<n>x)", "[[:alpha:]]+",
                 "\\pN", "\\Qa.b\\E", "a{1001}", "(?i)x"):
        side.note(f"join {text}", full(0, text, {})["error_code"])
        talk.beat(f"leave {text}", "m", -1)
    topic = side.topic("matched-1", 2)
    talk.names[uuid.UUID(side.id_of(topic)).hex] = topic
    # Matches only this topic, and none that an earlier try has created.
    text = topic.replace("-", ".", 1)
    side.stems[topic], side.stems[text] = "matched-1", "expression"
    answer = full(0, text, {})
    side.note("first", (answer["error_code"], answer["member_epoch"], answer["assignment"]))
    end_s = time.monotonic() + WAIT_S
    while not (answer["assignment"] or {}).get("topic_partitions"):
        assert time.monotonic() < end_s, answer
        time.sleep(0.05)
        answer = full(answer["member_epoch"], text, {})
    talk.note("resolved", answer)
    talk.describe("described")


def test_subscription_patterns_match_kafka(kafka, brokerd):
    compare(kafka, brokerd, expressions)


# ---- both protocols in one group ----------------------------------------------------------------

def subscription(topics: list[str], owned: list[tuple[str, list[int]]]) -> bytes:
    new = messages.ConsumerProtocolSubscription
    return codec.program("ConsumerProtocolSubscription", 1).encode(new(
        topics=topics, owned_partitions=[new.TopicPartition(topic=topic, partitions=partitions)
                                         for topic, partitions in owned]), b"\0\1")


def assignment(rows: list[tuple[str, list[int]]]) -> bytes:
    new = messages.ConsumerProtocolAssignment
    return codec.program("ConsumerProtocolAssignment", 1).encode(new(
        assigned_partitions=[new.TopicPartition(topic=topic, partitions=partitions)
                             for topic, partitions in rows]), b"\0\1")


class Classic:
    """A member of the classic protocol."""

    def __init__(self, talk: Talk, name: str, instance: str | None = None):
        self.talk, self.side, self.name = talk, talk.side, name
        self.instance = instance
        self.id, self.generation = "", -1
        self.owned: list[tuple[str, list[int]]] = []

    def join(self, label: str, version: int = 7, name: str = "range") -> dict:
        answer = self._joined(version, name)
        answer["members"] = [row["member_id"] for row in answer["members"]]
        self.side.note(f"{label}: join of {self.name}", answer)
        return answer

    def come_before(self, other: "Classic") -> None:
        """Let the broker generate ids until one sorts before the other's: assignments depend on the
        order.
        """
        while self.id > other.id:
            self.id = ""
            self._joined(7, "range")

    def _joined(self, version: int, name: str) -> dict:
        answer = ask(self.side.connection, JOIN, version, group_id=self.talk.group,
                     session_timeout=30_000, rebalance_timeout=30_000, member_id=self.id,
                     group_instance_id=self.instance, protocol_type="consumer", protocols=[
                         {"name": name,
                          "metadata": subscription([self.talk.topics[0]], self.owned)}])
        if answer["member_id"]:
            self.side.stems[answer["member_id"]] = self.name
            self.id = answer["member_id"]
        if answer["error_code"] == 0:
            self.generation = answer["generation_id"]
        return answer

    def sync(self, label: str, version: int = 5, rows=()) -> dict:
        answer = ask(self.side.connection, SYNC, version, group_id=self.talk.group,
                     generation_id=self.generation, member_id=self.id,
                     group_instance_id=self.instance, protocol_type="consumer",
                     protocol_name="range", assignments=[
                         {"member_id": self.id, "assignment": assignment(list(rows))}]
                     if rows else [])
        if answer["assignment"]:
            made = codec.program("ConsumerProtocolAssignment", 1).decode(answer["assignment"], 2)
            self.owned = [(row.topic, sorted(row.partitions)) for row in made.assigned_partitions]
        answer["assignment"] = [(self.side.stems[topic], partitions)
                                for topic, partitions in self.owned]
        self.side.note(f"{label}: sync of {self.name}", answer)
        return answer

    def beat(self, label: str) -> None:
        self.side.note(f"{label}: heartbeat of {self.name}", ask(
            self.side.connection, HEARTBEAT, 4, group_id=self.talk.group, member_id=self.id,
            generation_id=self.generation, group_instance_id=self.instance))

    def leave(self, label: str) -> None:
        self.side.note(f"{label}: leave of {self.name}", ask(
            self.side.connection, LEAVE, 5, group_id=self.talk.group, members=[
                {"member_id": self.id, "group_instance_id": self.instance, "reason": ""}]))


def joined(talk: Talk, label: str, epoch: int = 0, owned=None) -> dict:
    return talk.beat(label, "zzz", epoch, timeout=60_000, server_assignor="range",
                     subscribed_topic_names=[talk.topics[0]], owned=owned or {})


def up_and_down(side: Side) -> None:
    """A classic member, then a member of the new protocol, then only the classic one again."""
    talk = Talk(side)
    topic = talk.topics[0]
    first = Classic(talk, "first member")
    first.join("a")
    first.join("b")
    first.sync("b", rows=[(topic, [0, 1, 2])])
    talk.describe("classic")
    new = joined(talk, "c: new member")
    talk.describe("c")
    talk.listed("c")
    first.beat("c")
    first.sync("c")
    for label in ("d", "e", "f"):
        first.join(label)
        first.beat(label + " before")
        first.sync(label)
        first.owned = [(name, partitions) for name, partitions in first.owned]
        first.beat(label + " after")
        new = talk.beat(f"{label}: new member", "zzz", new["member_epoch"])
        talk.describe(label)
    second = Classic(talk, "second member")
    second.join("g", name="other")
    second.id = ""
    second.join("g")
    second.come_before(first)
    second.join("g again")
    second.sync("g")
    talk.describe("g")
    second.leave("h")
    talk.describe("h")
    talk.beat("i: new member leaves", "zzz", -1)
    talk.listed("i")
    talk.describe("i")
    first.beat("i")
    first.join("j")
    first.sync("j", rows=[(topic, [0, 1, 2])])
    talk.listed("j")
    first.leave("k")
    talk.listed("k")
    joined(talk, "l: an empty classic group")
    talk.listed("l")
    talk.beat("m: leaves", "zzz", -1)
    first.id, first.generation = "", -1
    first.join("n: an empty consumer group", version=3)
    first.sync("n", version=3, rows=[(topic, [0])])
    talk.listed("n")


def test_classic_and_consumer_members_of_one_group_match_kafka(kafka, brokerd):
    compare(kafka, brokerd, up_and_down)


def instances(side: Side) -> None:
    """A static member changes its protocol and back."""
    talk = Talk(side)
    topic = talk.topics[0]
    fields = {"timeout": 60_000, "server_assignor": "uniform", "subscribed_topic_names": [topic]}
    talk.beat("new", "one", 0, instance_id="i", owned={}, **fields)
    talk.describe("new")
    classic = Classic(talk, "classic", "i")
    classic.join("a")
    talk.listed("a")
    talk.describe("a")
    classic.sync("a", rows=[(topic, [0, 1, 2])])
    classic.beat("a")
    talk.beat("b: back", "two", 0, instance_id="i", owned={}, **fields)
    talk.listed("b")
    talk.describe("b")
    classic.beat("b")
    talk.beat("b: again", "two", 2, instance_id="i")


def test_an_instance_changes_its_protocol_as_with_kafka(kafka, brokerd):
    compare(kafka, brokerd, instances)
