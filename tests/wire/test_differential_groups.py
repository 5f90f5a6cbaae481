"""Random walks over groups with several members, static and dynamic: the same requests to Apache
Kafka and to brokerd, every response compared.

They follow --seed; --seed random explores further. Members join, sync, send heartbeats, commit,
leave and return; generations, member ids and instances are sometimes wrong, fields null, empty or
repeated. Cases that Kafka decides randomly are excluded: the leader after one that left several
members behind, and protocols with equal votes.
"""

import random
import select
import time
import uuid

import pytest

from tests.wire import raw
from tests.wire.messages import ask, decode, encode
from tests.wire.raw import Closed, Connection
from tests.wire.sides import Side, compare, differences, once
from tests.wire.test_groups import (
    BROKER_SETTINGS,
    COMMIT,
    DELETE,
    DESCRIBE,
    FETCH,
    FORGET,
    HEARTBEAT,
    ID_REQUIRED,
    JOIN,
    LEAVE,
    LIST,
    OK,
    SYNC,
    Talk,
    _commit_fields,
    _join_fields,
)

__all__ = ["BROKER_SETTINGS"]
# Duplicates in these requests are answered once here; see docs/reference/differences.md.
ANSWERED_ONCE = {9, 15, 47}
pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
STEPS = 120
# A response that does not arrive within this time waits for other members.
PENDING_S = 0.2
WAIT_S = 20
# For all members, if the group waits for one more that only has an id.
STUCK_S = 4.0
VERSIONS = {JOIN: 9, SYNC: 5, HEARTBEAT: 4, LEAVE: 5, COMMIT: 10, FETCH: 10, DESCRIBE: 6, LIST: 5,
            DELETE: 2}
VERSION_MIN = {COMMIT: 2, FETCH: 1}
PREPARING, COMPLETING = "PreparingRebalance", "CompletingRebalance"
# Any two members have the same first common protocol: votes are never equal.
PROTOCOLS = (("range",), ("range", "sticky"), ("range", "sticky", "own"))


class Member:
    """One client of the group, on a separate connection."""

    def __init__(self, side: Side, number: int):
        self.label = f"client {number}"
        self.instance = f"instance {number}" if number % 2 else None
        self.side = side
        self.connection = Connection(side.port, wait_s=WAIT_S)
        self.id = ""
        self.generation = -1
        self.protocol = None
        self.pending = None      # (api key, version) of a request that waits for others.

    def send(self, key: int, version: int, /, **fields) -> None:
        self.connection.correlation_id += 1
        self.connection.send(raw.frame(
            raw.header(key, version, self.connection.correlation_id)
            + encode(key, version, **fields)))
        self.pending = key, version

    def answer(self, wait_s: float):
        """Return the response, or None if there is none within that time."""
        if not select.select([self.connection.socket], [], [], wait_s)[0]:
            return None
        (key, version), self.pending = self.pending, None
        return decode(key, version, self.connection.answer(key, version))


class Walk:
    """One side's group and its members; `leader` is that of the last response."""

    def __init__(self, side: Side, seed: int):
        self.side = side
        self.random = random.Random(seed)
        self.talk = Talk(side, "walked")
        self.group = self.talk.group
        self.topic = side.topic("topic", 3)
        self.members = [Member(side, number) for number in range(4)]
        self.leader = None
        # the former leader, which rejoined under an id that no response has contained yet
        self.heir = None
        self.stuck = False  # every member waits until another one acts
        self.gone = []  # ids that were replaced, or left
        self.step = 0
        self.label = ""

    def close(self) -> None:
        for member in self.members:
            member.connection.close()

    def version(self, key: int) -> int:
        return self.random.randint(VERSION_MIN.get(key, 0), VERSIONS[key])

    def run(self) -> None:
        moves = [(self.join, 30), (self.sync, 22), (self.beat, 12), (self.leave, 5),
                 (self.commit, 12), (self.fetch, 6), (self.describe, 5), (self.list_, 3),
                 (self.delete, 2), (self.forget, 2), (self.restart, 4)]
        for self.step in range(STEPS):
            move, = self.random.choices([move for move, _ in moves],
                                        [weight for _, weight in moves])
            member = self.random.choice(self.members)
            self.label = f"{self.step} {move.__name__} of {member.label}"
            move(member)
            self.collect()

    # ---- what members do ------------------------------------------------------------------------

    def ask(self, key: int, version: int, /, **fields):
        self.label += f" v{version}"
        answer = self.side.quiet(key, version, **fields)
        self.note(self.label, once(answer) if key in ANSWERED_ONCE else answer)
        return answer

    def note(self, label: str, answer: dict) -> None:
        """Members whose id is not in any response yet have the same displayed id on both sides."""
        self.talk.learn(answer.get("member_id"))
        if "groups" in answer:
            # Responses of several coordinators are in any order.
            answer["groups"].sort(key=lambda row: row["group_id"])
        if answer.get("results") and "group_id" in answer["results"][0]:
            answer["results"].sort(key=lambda row: row["group_id"])
        for row in [answer, *(answer.get("groups") or [])]:
            if "leader" in row:
                row["leader"] = self.told(row["leader"])
            for member in row.get("members") or ():
                member["member_id"] = self.told(member["member_id"])
            if row.get("members"):
                row["members"].sort(key=lambda member: str(self.side.comparable(member)))
        self.talk.note(label, answer)

    def told(self, id_: str) -> str:
        # Both brokers' ids end with a random UUID.
        return "not told yet" if id_ not in self.side.ids and id_.count("-") > 4 else id_

    def join(self, member: Member) -> None:
        if member.pending:
            return
        version = self.version(JOIN)
        names = self.random.choice(PROTOCOLS) if self.chance(0.9) else \
            self.random.choice(((), ("other",)))
        fields = {
            "group_id": self.group if self.chance(0.98) else "", "member_id": member.id,
            "session_timeout": 60_000 if self.chance(0.98) else 1, "rebalance_timeout": 60_000,
            "group_instance_id": member.instance,
            "protocol_type": "consumer" if self.chance(0.97) else self.random.choice(("", "x")),
            "protocols": [{"name": name, "metadata": name.encode()} for name in names],
            "reason": self.random.choice((None, "", "because"))}
        if self.chance(0.04):
            fields["member_id"] = self.another(member)
        if version < 5:
            fields["group_instance_id"] = None
        self.label += f" v{version}"
        self.stuck = False
        member.send(JOIN, version, **fields)
        answer = member.answer(PENDING_S)
        if answer is not None and answer["error_code"] == ID_REQUIRED and self.chance(0.97):
            self.joined(member, answer)
            member.send(JOIN, version, **{**fields, "member_id": member.id})
            answer = member.answer(PENDING_S)
        if answer is not None:
            self.joined(member, answer)

    def joined(self, member: Member, answer: dict) -> None:
        leader = answer["leader"]
        self.note(f"{self.label}: {member.label} joined", answer)
        if answer["error_code"] in (OK, ID_REQUIRED):
            member.id = answer["member_id"]
        if answer["error_code"] == OK:
            member.generation = answer["generation_id"]
            member.protocol = answer["protocol_name"]
            self.leader, self.heir = leader, None
        elif answer["error_code"] in (25, 82):
            self.forget_id(member)

    def sync(self, member: Member) -> None:
        if member.pending:
            return
        version = self.version(SYNC)
        fields = self.identity(member, version >= 3)
        fields |= {
            "protocol_type": self.random.choice(("consumer",) * 12 + (None, "x")),
            "protocol_name": self.random.choice((member.protocol,) * 12 + (None, "x")),
            "assignments": []}
        if self.leads(member) or self.chance(0.1):
            known = [one.id for one in self.members if one.id and self.chance(0.9)]
            fields["assignments"] = [
                {"member_id": id_, "assignment": bytes((self.step, place))}
                for place, id_ in enumerate([*known, *known[:self.random.randrange(2)], "nobody"])]
        self.label += f" v{version}"
        member.send(SYNC, version, **fields)
        answer = member.answer(PENDING_S)
        if answer is not None:
            self.synced(member, answer)

    def synced(self, member: Member, answer: dict) -> None:
        self.note(f"{self.label}: {member.label} synced", answer)
        if answer["error_code"] in (25, 82):
            self.forget_id(member)

    def beat(self, member: Member) -> None:
        version = self.version(HEARTBEAT)
        self.ask(HEARTBEAT, version, **self.identity(member, version >= 3))

    def leave(self, member: Member) -> None:
        version = self.version(LEAVE)
        leaving = [member] if version < 3 or self.chance(0.7) else \
            self.random.choices(self.members, k=self.random.randrange(4))
        # A member that joins under a new id remains when its old id leaves.
        staying = [one for one in self.members if one.pending or one.id and one not in leaving]
        if any(map(self.leads, leaving)) and len(staying) > 1:
            return  # Kafka chooses the next leader randomly.
        if any(one.pending and one.pending[0] == SYNC for one in leaving):
            return  # Kafka never answers that member.
        rows = []
        for one in leaving:
            id_ = "" if one.instance and self.chance(0.3) else one.id
            instance = one.instance if self.chance(0.9) else self.random.choice((None, "strange"))
            rows.append({"member_id": id_, "group_instance_id": instance,
                         "reason": self.random.choice((None, "bye"))})
        group = self.group if self.chance(0.95) else self.nobodys()
        answer = self.ask(LEAVE, version, group_id=group, member_id=member.id, members=rows)
        codes = [row["error_code"] for row in answer["members"]] if version >= 3 else \
            [answer["error_code"]]
        for one, code in zip(leaving, codes):
            if code == OK and not one.pending:
                self.forget_id(one)

    def restart(self, member: Member) -> None:
        """Simulate a restart of the member's process, without its member id."""
        if member.instance and not member.pending:
            self.forget_id(member)

    def commit(self, member: Member) -> None:
        version = self.version(COMMIT)
        fields = self.identity(member, version >= 7)
        fields["generation_id_or_member_epoch"] = fields.pop("generation_id")
        if self.chance(0.15):
            fields |= {"generation_id_or_member_epoch": -1, "member_id": "",
                       "group_instance_id": None}
        if self.chance(0.05):
            fields["group_id"] = self.nobodys()
            fields["generation_id_or_member_epoch"] = 1
        where = {"topic_id": uuid.UUID(self.side.id_of(self.topic))} if version >= 10 \
            else {"name": self.topic}
        times = self.random.choice((1, 1, 1, 2))
        # Kafka merges the rows of a repeated topic if one of them is unknown.
        known = (0, 1, 2, 9) if times == 1 else (0, 1, 2)
        cells = [{"partition_index": index, "committed_offset": self.step,
                  "committed_leader_epoch": self.random.choice((-1, 0)),
                  "committed_metadata": self.random.choice((None, "", "note"))}
                 for index in self.random.choices(known, k=self.random.randrange(4))]
        self.ask(COMMIT, version, **fields, retention_time=-1,
                 topics=[{**where, "partitions": cells}] * times)

    def fetch(self, _) -> None:
        version = self.version(FETCH)
        topics = None if version >= 2 and self.chance(0.3) else [{
            **({"topic_id": uuid.UUID(self.side.id_of(self.topic))} if version >= 10
               else {"name": self.topic}),
            "partition_indexes": self.random.choices((0, 1, 2, 9), k=self.random.randrange(4))}]
        group = self.group if self.chance(0.9) else self.nobodys()
        if version < 8:
            self.ask(FETCH, version, group_id=group, topics=topics, require_stable=False)
        else:
            rows = [{"group_id": group, "topics": topics, "member_id": None, "member_epoch": -1}]
            self.ask(FETCH, version, require_stable=self.chance(0.5),
                     groups=rows * self.random.choice((1, 1, 2)))

    def describe(self, _) -> None:
        version = self.version(DESCRIBE)
        groups = self.random.choices((self.group, self.nobodys()), k=self.random.randrange(4))
        self.ask(DESCRIBE, version, groups=groups,
                 include_authorized_operations=self.chance(0.3))

    def list_(self, _) -> None:
        version = self.version(LIST)
        states = self.random.choice(([], ["Stable"], ["stable", "EMPTY"], ["nonsense"],
                                     [PREPARING, COMPLETING]))
        types = self.random.choice(([], ["classic"], ["Consumer"]))
        answer = self.side.list_groups(version, states, types)
        self.side.note(f"{self.label} v{version}", [
            row for row in answer["groups"] if row["group_id"] == self.group])

    def delete(self, _) -> None:
        self.ask(DELETE, self.version(DELETE), groups_names=self.random.choices(
            (self.group, self.nobodys()), k=self.random.randrange(3)))

    def forget(self, _) -> None:
        self.ask(FORGET, 0, group_id=self.group, topics=[{"name": self.topic, "partitions": [
            {"partition_index": self.random.randrange(3)}]}])

    # ---- responses
    # --------------------------------------------------------------------------------

    def collect(self) -> None:
        """Receive the responses that the step gave to other members. The group's state shows which
        must arrive.
        """
        end_s = time.monotonic() + STUCK_S
        while any(member.pending for member in self.members):
            row = self.side.describe(self.group)
            joining = [one for one in self.members if one.pending and one.pending[0] == JOIN]
            syncing = [one for one in self.members if one.pending and one.pending[0] == SYNC]
            due = (joining if row["group_state"] != PREPARING else []) + \
                (syncing if row["group_state"] != COMPLETING else [])
            self.take(due)
            if due:
                continue
            # All are present: it takes milliseconds, unless a member only has an id.
            if self.stuck or row["group_state"] != PREPARING or len(joining) < len(row["members"]):
                break
            self.stuck = time.monotonic() > end_s
            time.sleep(0.01)
        if self.random.random() < 0.3:
            self.label += " described"
            self.ask(DESCRIBE, 5, groups=[self.group])

    def take(self, due: list) -> None:
        told = [(member, member.pending[0], member.answer(WAIT_S)) for member in due]
        for member, _, answer in told:
            assert answer is not None, f"{self.label}: {member.label} waits for ever"
            self.talk.learn(answer.get("member_id"))
        for member, key, answer in told:
            (self.joined if key == JOIN else self.synced)(member, answer)

    # ---- random choices
    # ---------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def leads(self, member: Member) -> bool:
        return self.heir is member or member.id != "" and member.id == self.leader

    def nobodys(self) -> str:
        return f"{self.group}-nobody"

    def another(self, member: Member) -> str:
        return self.random.choice([*self.gone, "strange", *[
            one.id for one in self.members if one is not member]])

    def identity(self, member: Member, with_instance: bool) -> dict:
        """Return the requesting member's fields, sometimes wrong."""
        fields = {"group_id": self.group, "generation_id": member.generation,
                  "member_id": member.id,
                  "group_instance_id": member.instance if with_instance else None}
        if self.chance(0.06):
            fields["generation_id"] += self.random.choice((-1, 1))
        if self.chance(0.05):
            fields["member_id"] = self.another(member)
        if with_instance and self.chance(0.04):
            fields["group_instance_id"] = self.random.choice((None, "strange", "instance 1"))
        if self.chance(0.02):
            fields["group_id"] = self.nobodys()
        return fields

    def forget_id(self, member: Member) -> None:
        if member.instance and self.leads(member):
            self.heir = member  # Unless it left, its static instance remains in the group.
        if member.id:
            self.gone.append(member.id)
        member.id, member.generation = "", -1


class WalkSide(Side):
    """Opens a connection for queries of the walk itself."""

    def quiet(self, key: int, version: int, /, **fields) -> dict:
        connection = self.__dict__.setdefault("_quiet", Connection(self.port, wait_s=WAIT_S))
        return decode(key, version, connection.call(key, version, encode(key, version, **fields)))

    def describe(self, group: str) -> dict:
        return self.quiet(DESCRIBE, 5, groups=[group])["groups"][0]

    def list_groups(self, version: int, states: list, types: list) -> dict:
        return self.quiet(LIST, version, **({"states_filter": states} if version >= 4 else {}),
                          **({"types_filter": types} if version >= 5 else {}))

    def close(self) -> None:
        super().close()
        if "_quiet" in self.__dict__:
            self._quiet.close()


def _unknown(side: Side) -> None:
    """Unknown groups and members."""
    talk, topic = Talk(side, "unknown"), side.topic("topic")
    nobody = side.name("nobody")
    row = {"member_id": "strange", "group_instance_id": None, "reason": None}
    for version in range(6):
        talk(f"leave {version}", LEAVE, version, group_id=nobody, member_id="strange",
             members=[row, {**row, "member_id": "", "group_instance_id": "one"}, row])
        for name in ("protocol_type", "protocol_name"):
            for group in (nobody, ""):
                shown = "a group" if group else "none"
                talk(f"sync {version} of {shown} without {name}", SYNC, version, **{
                    "group_id": group, "generation_id": 1, "member_id": "strange",
                    "protocol_type": "consumer", "protocol_name": "range", "assignments": [],
                    name: None})
    for version in range(2, 10):
        for generation in (-1, 0, 7):
            talk(f"commit {version} of generation {generation}", COMMIT, version, **_commit_fields(
                f"{nobody}-{version}" if generation < 0 else nobody, topic, 1, "", generation))
    talk("commit to the group without a name", COMMIT, 8, **_commit_fields("", topic))
    for version in range(5):
        talk(f"heartbeat {version}", HEARTBEAT, version, group_id="", generation_id=1,
             member_id="strange")
    talk("leave the group without a name", LEAVE, 5, group_id="", members=[row])
    _without_a_name(talk, topic)


def _without_a_name(talk: Talk, topic: str) -> None:
    """Requests without membership may use the group ""."""
    for version in range(1, 11):
        for topics in ([{"name": topic, "partition_indexes": [0]}], None)[:1 + (version > 1)]:
            talk(f"fetch {version} of {'all' if topics is None else 'one'} without a name", FETCH,
                 version, **({"group_id": "", "topics": topics} if version < 8 else {
                     "groups": [{"group_id": "", "topics": topics}]}))
    for version in range(7):
        talk(f"describe {version} without a name", DESCRIBE, version, groups=[""])
    for version in range(3):
        talk(f"delete {version} without a name", DELETE, version, groups_names=[""])
    talk("forget offsets without a name", FORGET, 0, group_id="", topics=[
        {"name": topic, "partitions": [{"partition_index": 0}]}])


def test_missing_groups_and_members_match_kafka(kafka, target):
    compare(kafka, target, _unknown)


def _tied(side: Side, version: int) -> None:
    """Two static members prefer different protocols; one rejoins, and then the other."""
    walk = Walk(side, 0)
    ids = ["", ""]
    likes = (("range", "sticky"), ("sticky", "range"))

    def fields(at: int, member: str) -> dict:
        return _join_fields(walk.group, member, group_instance_id=f"instance {at}",
                            rebalance_timeout=60_000, session_timeout=60_000, protocols=[
                                {"name": name, "metadata": b"m"} for name in likes[at]])

    def joined(at: int, answer: dict) -> int:
        ids[at] = answer["member_id"]
        return answer["generation_id"]

    joined(0, ask(side.connection, JOIN, version, **fields(0, "")))
    first, second = walk.members[:2]
    second.send(JOIN, version, **fields(1, ""))
    time.sleep(PENDING_S)
    first.send(JOIN, version, **fields(0, ids[0]))
    answers = [first.answer(WAIT_S), second.answer(WAIT_S)]
    generation = [joined(at, answer) for at, answer in enumerate(answers)][0]
    chosen = answers[0]["protocol_name"]
    for member, at in ((second, 1), (first, 0)):
        member.send(SYNC, 5, group_id=walk.group, generation_id=generation, member_id=ids[at],
                    group_instance_id=f"instance {at}", protocol_type="consumer",
                    protocol_name=chosen, assignments=[
                        {"member_id": id_, "assignment": b"x"} for id_ in ids])
    for member in (first, second):
        assert member.answer(WAIT_S)["error_code"] == OK
    for at in (1, 0, 1):
        before = ids[at]
        back = ask(side.connection, JOIN, version, **fields(at, ""))
        joined(at, back)
        told = ask(side.connection, HEARTBEAT, 4, group_id=walk.group, member_id=ids[at],
                   generation_id=generation, group_instance_id=f"instance {at}")
        side.note(f"{at} is back", (
            back["error_code"], back["generation_id"], back["protocol_name"] == chosen,
            ids[at] != before, len(back["members"]), told))
        side.note("described", walk.side.describe(walk.group)["group_state"])
    walk.close()


@pytest.mark.parametrize("version", [5, 9])
def test_rejoining_static_member_does_not_rebalance_when_protocol_votes_tie(
        kafka, target, version):
    collected = []
    for broker in (kafka, target):
        side = WalkSide(broker)
        _tied(side, version)
        side.close()
        collected.append(side.answers)
    assert _first_difference(*collected) is None, collected
    assert {answer for label, answer in collected[1] if label == "described"} == {"Stable"}


def _walked(broker, seed: int) -> list:
    side = WalkSide(broker)
    try:
        walk = Walk(side, seed)
        try:
            walk.run()
        except Closed:
            side.note(walk.label, "closed")
        finally:
            walk.close()
    finally:
        side.close()
    return side.answers


def _first_difference(kafka: list, ours: list) -> str | None:
    """Return the first difference with preceding steps; after it the walks diverge."""
    for at, ((label, left), (other, right)) in enumerate(zip(kafka, ours)):
        found = [f"kafka goes on with {label!r}, ours with {other!r}"] if label != other \
            else differences(left, right, label)
        if found:
            before = [f"  {label}: {answer!r:.400}" for label, answer in kafka[max(0, at - 12):at]]
            return "\n".join([*before, *found])
    return None if len(kafka) == len(ours) else f"{len(kafka)} and {len(ours)} answers"


@pytest.mark.parametrize("turn", [0, 1, 2, pytest.param(20, marks=pytest.mark.slow)])
def test_random_group_requests_match_kafka(kafka, target, random_source, turn):
    for _ in range(max(1, turn)):
        seed = random_source.randrange(1 << 31)
        found = _first_difference(_walked(kafka, seed), _walked(target, seed))
        assert found is None, f"walk {seed}:\n{found}"
