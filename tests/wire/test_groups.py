"""Groups at the wire: the same requests to Apache Kafka and to brokerd, and hostile ones.

The expected codes of the rows are those of Apache Kafka 4.4 unless a row states a difference.
"""

import time
import uuid

import pytest

from tests.wire import raw
from tests.wire.messages import ask, decode, encode
from tests.wire.raw import Connection
from tests.wire.sides import Side, compare
from tests.wire.talk import create_topic, unique

BROKER_SETTINGS = {"group.initial.rebalance.delay.ms": 0}
COMMIT, FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE, FORGET = \
    8, 9, 10, 11, 12, 13, 14, 15, 16, 42, 47
OK, UNKNOWN_TOPIC, TOO_LARGE, METADATA_TOO_LARGE, ILLEGAL_GENERATION = 0, 3, 10, 12, 22
INCONSISTENT, INVALID_GROUP, UNKNOWN_MEMBER, BAD_SESSION, ID_REQUIRED = 23, 24, 25, 26, 79
RETRIABLE = (14, 15, 16)
BOTH = pytest.mark.kafka


def _settled(call, /, *arguments, **fields):
    """Retry until the coordinator is available: Kafka needs a moment after its start."""
    end_s = time.monotonic() + 20
    while True:
        answer = call(*arguments, **fields)
        codes = [answer.get("error_code")] + [
            row.get("error_code") for row in answer.get("coordinators", [])]
        if not set(codes) & set(RETRIABLE) or time.monotonic() > end_s:
            return answer
        time.sleep(0.1)


def _join_fields(group: str, member: str = "", **more) -> dict:
    fields = {"group_id": group, "session_timeout": 10000, "rebalance_timeout": 3000,
              "member_id": member, "group_instance_id": None, "protocol_type": "consumer",
              "protocols": [{"name": "range", "metadata": b"m"}], "reason": None}
    return {**fields, **more}


def _commit_fields(group: str, topic: str, offset: int = 7, member: str = "",
                   generation: int = -1, **cell) -> dict:
    return {"group_id": group, "generation_id_or_member_epoch": generation, "member_id": member,
            "group_instance_id": None, "retention_time": -1, "topics": [{
                "name": topic, "partitions": [{
                    "partition_index": 0, "committed_offset": offset, "committed_leader_epoch": 0,
                    "committed_metadata": "note", **cell}]}]}


def _ready(port: int, group: str) -> None:
    """Wait until the group's coordinator responds."""
    with Connection(port) as connection:
        _settled(ask, connection, FIND, 3, key=group, key_type=0)
        end_s = time.monotonic() + 20
        while time.monotonic() < end_s:
            # A heartbeat would be answered while the group is still being loaded.
            answer = ask(connection, FETCH, 5, group_id=group, topics=[])
            if answer["error_code"] not in RETRIABLE:
                return
            time.sleep(0.1)


class Talk:
    """A side's group: `ask` replaces member ids in responses by their order of appearance."""

    def __init__(self, side: Side, stem: str):
        self.side = side
        self.group = side.name(stem)
        _ready(side.port, self.group)

    def __call__(self, label: str, key: int, version: int, /, **fields) -> dict:
        answer = ask(self.side.connection, key, version, **fields)
        self.note(label, answer)
        return answer

    def note(self, label: str, answer: dict) -> None:
        """Members are in any order: sort them by their first appearance."""
        self.learn(answer.get("member_id"))
        for row in [answer, *(answer.get("groups") or [])]:
            if isinstance(row.get("members"), list):
                row["members"].sort(key=lambda one: self.side.ids.get(one["member_id"], ""))
        self.side.note(label, answer)

    def learn(self, member: str | None) -> None:
        if member and member not in self.side.ids:
            known = sum(1 for shown in self.side.ids.values() if shown.startswith("member "))
            self.side.ids[member] = f"member {known}"

    def joined(self, version: int, **more) -> tuple[str, dict]:
        """Join, with a second step if the version requires it."""
        answer = self(f"join {version}", JOIN, version, **_join_fields(self.group, **more))
        if answer["error_code"] == ID_REQUIRED:
            answer = self(f"join {version} again", JOIN, version,
                          **_join_fields(self.group, answer["member_id"], **more))
        return answer["member_id"], answer


def _life(side: Side, version: int) -> None:
    """Join, sync, heartbeat, commit, fetch, leave, in the versions of one period."""
    talk = Talk(side, "life")
    topic = side.topic("topic", 2)
    pick = {key: min(version, high) for key, high in (
        (SYNC, 5), (HEARTBEAT, 4), (LEAVE, 5), (DESCRIBE, 6))}
    member, answer = talk.joined(version)
    generation = answer["generation_id"]
    talk("sync", SYNC, pick[SYNC], group_id=talk.group, generation_id=generation,
         member_id=member, protocol_type="consumer", protocol_name="range",
         assignments=[{"member_id": member, "assignment": b"all"}])
    talk("sync again", SYNC, pick[SYNC], group_id=talk.group, generation_id=generation,
         member_id=member, protocol_type="consumer", protocol_name="range", assignments=[])
    for label, told, who in (("heartbeat", generation, member), ("other", generation, "x"),
                             ("old", generation - 1, member), ("new", generation + 1, member)):
        talk(f"heartbeat {label}", HEARTBEAT, pick[HEARTBEAT], group_id=talk.group,
             generation_id=told, member_id=who)
    commit = min(9, max(2, version))
    for label, told, who in (("own", generation, member), ("other", generation, "x"),
                             ("old", generation - 1, member), ("simple", -1, "")):
        talk(f"commit {label}", COMMIT, commit,
             **_commit_fields(talk.group, topic, 11, who, told))
    talk("fetch", FETCH, min(7, max(1, version)), group_id=talk.group,
         topics=[{"name": topic, "partition_indexes": [0, 1]}])
    described = ask(side.connection, DESCRIBE, pick[DESCRIBE], groups=[talk.group],
                    include_authorized_operations=True)
    side.note("described", described)
    talk("forget while subscribed", FORGET, 0, group_id=talk.group, topics=[
        {"name": topic, "partitions": [{"partition_index": 0}]}])
    talk("delete while alive", DELETE, min(version, 2), groups_names=[talk.group])
    talk("leave", LEAVE, pick[LEAVE], group_id=talk.group, member_id=member,
         members=[{"member_id": member, "group_instance_id": None, "reason": None}])
    talk("leave again", LEAVE, pick[LEAVE], group_id=talk.group, member_id=member,
         members=[{"member_id": member, "group_instance_id": None, "reason": None}])
    talk("described empty", DESCRIBE, pick[DESCRIBE], groups=[talk.group])
    talk("commit when empty", COMMIT, commit, **_commit_fields(talk.group, topic, 5))
    talk("delete", DELETE, min(version, 2), groups_names=[talk.group])
    talk("delete again", DELETE, min(version, 2), groups_names=[talk.group])
    talk("delete nothing", DELETE, min(version, 2), groups_names=[""])
    talk("describe nothing", DESCRIBE, pick[DESCRIBE], groups=[""])
    talk("described dead", DESCRIBE, pick[DESCRIBE], groups=[talk.group])
    talk("fetch dead", FETCH, 7, group_id=talk.group, topics=None)


@BOTH
@pytest.mark.parametrize("version", range(10))
def test_group_lifecycle_matches_kafka(kafka, target, version):
    compare(kafka, target, _life, version)


def _offsets(side: Side) -> None:
    talk = Talk(side, "offsets")
    topic, other, missing = side.topic("one", 3), side.topic("two"), side.name("missing")
    for version in (2, 5, 8, 9):
        talk(f"commit {version}", COMMIT, version, **_commit_fields(talk.group, topic, version))
    talk("leader epoch", COMMIT, 8, **_commit_fields(talk.group, topic, 9,
                                                     committed_leader_epoch=3))
    talk("null metadata", COMMIT, 8, **_commit_fields(talk.group, other, 4,
                                                      committed_metadata=None))
    talk("long metadata", COMMIT, 8, **_commit_fields(talk.group, other, 5,
                                                      committed_metadata="x" * 4097))
    talk("longest metadata", COMMIT, 8, **_commit_fields(talk.group, topic, 6, partition_index=1,
                                                         committed_metadata="x" * 4096))
    talk("unknown topic", COMMIT, 8, **_commit_fields(talk.group, missing))
    talk("unknown partition", COMMIT, 8, **_commit_fields(talk.group, topic,
                                                          partition_index=999))
    talk("negative offset", COMMIT, 8, **_commit_fields(talk.group, topic, -5,
                                                        partition_index=2))
    talk("no topics", COMMIT, 8, **{**_commit_fields(talk.group, topic), "topics": []})
    talk("id", COMMIT, 10, **{**_commit_fields(talk.group, topic), "topics": [{
        "topic_id": uuid.UUID(side.id_of(topic)), "partitions": [{
            "partition_index": 0, "committed_offset": 12, "committed_leader_epoch": 1,
            "committed_metadata": ""}]}, {
        "topic_id": uuid.UUID(int=5), "partitions": [{
            "partition_index": 0, "committed_offset": 12, "committed_leader_epoch": 1,
            "committed_metadata": ""}]}]})
    wanted = [{"name": topic, "partition_indexes": [0, 1, 2, 7]},
              {"name": missing, "partition_indexes": [0]}]
    for version in range(1, 8):
        talk(f"fetch {version}", FETCH, version, group_id=talk.group, topics=wanted,
             require_stable=True)
    for version in range(2, 8):
        talk(f"fetch all {version}", FETCH, version, group_id=talk.group, topics=None)
    nobody = side.name("nobody")
    for version in (8, 9):
        talk(f"fetch {version}", FETCH, version, require_stable=False, groups=[
            {"group_id": talk.group, "topics": wanted, "member_id": None, "member_epoch": -1},
            {"group_id": nobody, "topics": wanted, "member_id": None, "member_epoch": -1},
            {"group_id": talk.group, "topics": None, "member_id": None, "member_epoch": -1}])
    talk("fetch by id", FETCH, 10, groups=[{
        "group_id": talk.group, "member_id": None, "member_epoch": -1, "topics": [
            {"topic_id": uuid.UUID(side.id_of(topic)), "partition_indexes": [0, 2]},
            {"topic_id": uuid.UUID(int=5), "partition_indexes": [0]}]}])
    talk("fetch all by id", FETCH, 10, groups=[{
        "group_id": talk.group, "member_id": None, "member_epoch": -1, "topics": None}])
    talk("forget", FORGET, 0, group_id=talk.group, topics=[
        {"name": topic, "partitions": [{"partition_index": 0}, {"partition_index": 99}]},
        {"name": missing, "partitions": [{"partition_index": 0}]}])
    talk("forget nobody's", FORGET, 0, group_id=nobody, topics=[
        {"name": topic, "partitions": [{"partition_index": 0}]}])
    talk("fetch after", FETCH, 5, group_id=talk.group, topics=wanted)
    listed = ask(side.connection, LIST, 5, states_filter=["empty"], types_filter=["Classic"])
    side.note("listed", [row for row in listed["groups"] if row["group_id"] == talk.group])


@BOTH
def test_committed_offsets_match_kafka(kafka, target):
    compare(kafka, target, _offsets)


def _static(side: Side, version: int) -> None:
    talk = Talk(side, "static")
    member, answer = talk.joined(version, group_instance_id="one")
    generation = answer["generation_id"]
    fields = {"group_id": talk.group, "generation_id": generation, "group_instance_id": "one"}
    talk("sync", SYNC, 5, **fields, member_id=member, protocol_type="consumer",
         protocol_name="range", assignments=[{"member_id": member, "assignment": b"all"}])
    back, answer = talk.joined(version, group_instance_id="one")
    talk("sync of the one before", SYNC, 5, **fields, member_id=member, protocol_type="consumer",
         protocol_name="range", assignments=[])
    talk("heartbeat of the one before", HEARTBEAT, 4, **fields, member_id=member)
    talk("sync of the new", SYNC, 5, **fields, member_id=back, protocol_type="consumer",
         protocol_name="range", assignments=[])
    talk("heartbeat of the new", HEARTBEAT, 4, **fields, member_id=back)
    talk("unknown instance", HEARTBEAT, 4, **{**fields, "group_instance_id": "two"},
         member_id=back)
    talk("sync of another protocol", SYNC, 5, **fields, member_id=back,
         protocol_type="consumer", protocol_name="roundrobin", assignments=[])
    talk("leave by instance", LEAVE, 5, group_id=talk.group, members=[
        {"member_id": "", "group_instance_id": "two", "reason": None},
        {"member_id": member, "group_instance_id": "one", "reason": None},
        {"member_id": "", "group_instance_id": "one", "reason": None}])
    talk("described", DESCRIBE, 5, groups=[talk.group])


@BOTH
@pytest.mark.parametrize("version", [5, 8, 9])
def test_static_members_match_kafka(kafka, target, version):
    compare(kafka, target, _static, version)


class Second:
    """Another member on a separate connection, whose responses are received later."""

    def __init__(self, talk: Talk):
        self.talk = talk
        self.connection = Connection(talk.side.port, wait_s=20)

    def send(self, key: int, version: int, /, **fields) -> None:
        self.connection.correlation_id += 1
        self.connection.send(raw.frame(
            raw.header(key, version, self.connection.correlation_id)
            + encode(key, version, **fields)))
        # Both requests must have arrived before the other member continues.
        time.sleep(0.2)

    def take(self, label: str, key: int, version: int) -> dict:
        answer = decode(key, version, self.connection.answer(key, version))
        self.talk.note(label, answer)
        return answer


def _pair(side: Side, version: int) -> None:
    talk, topic = Talk(side, "pair"), side.topic("topic")
    member, answer = talk.joined(version)
    asked = {"group_id": talk.group, "protocol_type": "consumer", "protocol_name": "range"}

    def beat(label, generation):
        talk(label, HEARTBEAT, 3, group_id=talk.group, generation_id=generation, member_id=member)

    talk("sync", SYNC, 5, **asked, generation_id=1, member_id=member,
         assignments=[{"member_id": member, "assignment": b"all"}])
    second = Second(talk)
    other = ask(second.connection, JOIN, 5, **_join_fields(talk.group))["member_id"]
    talk.learn(other)
    second.send(JOIN, 5, **_join_fields(talk.group, other))
    beat("heartbeat while preparing", 1)
    talk("commit while preparing", COMMIT, 8, **_commit_fields(talk.group, topic, 3, member, 1))
    talk("sync while preparing", SYNC, 5, **asked, generation_id=1, member_id=member,
         assignments=[])
    talk("described while preparing", DESCRIBE, 5, groups=[talk.group])
    talk("join", JOIN, version, **_join_fields(talk.group, member))
    second.take("second joined", JOIN, 5)
    second.send(SYNC, 3, group_id=talk.group, generation_id=2, member_id=other, assignments=[])
    beat("heartbeat while completing", 2)
    beat("heartbeat of the generation before", 1)
    talk("commit while completing", COMMIT, 8, **_commit_fields(talk.group, topic, 4, member, 2))
    talk("join again, the same", JOIN, version, **_join_fields(talk.group, member))
    talk("sync", SYNC, 5, **asked, generation_id=2, member_id=member, assignments=[
        {"member_id": member, "assignment": b"x"}, {"member_id": other, "assignment": b"y"},
        {"member_id": "stranger", "assignment": b"z"}])
    second.take("second synced", SYNC, 3)
    talk("described when stable", DESCRIBE, 5, groups=[talk.group])
    second.send(LEAVE, 4, group_id=talk.group, members=[
        {"member_id": other, "group_instance_id": None}])
    second.take("second left", LEAVE, 4)
    beat("heartbeat after that", 2)
    talk("delete while preparing", DELETE, 2, groups_names=[talk.group])
    talk("join of another kind", JOIN, version,
         **_join_fields(talk.group, member, protocol_type="connect"))
    talk("join alone", JOIN, version, **_join_fields(talk.group, member, reason="why not"))


@BOTH
@pytest.mark.parametrize("version", [4, 9])
def test_rebalance_of_two_members_matches_kafka(kafka, target, version):
    compare(kafka, target, _pair, version)


def _find(side: Side) -> None:
    group = side.name("find")
    _ready(side.port, group)
    for version in range(4):
        side.ask(f"find {version}", FIND, version, key=group, key_type=0)
    for version in range(4, 7):
        side.ask(f"find {version}", FIND, version, key_type=0, coordinator_keys=[group, "", "x"])


@BOTH
def test_coordinators_are_found_as_in_kafka(kafka, target):
    compare(kafka, target, _find)


def test_unknown_coordinator_key_type_is_an_invalid_request(target):
    with Connection(target.port) as connection:
        for version in (1, 3):
            assert ask(connection, FIND, version, key="x", key_type=7)["error_code"] == 42


# ---- hostile requests --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def port(target) -> int:
    _ready(target.port, "")
    return target.port


def _ask(port: int, key: int, version: int, /, **fields) -> dict:
    with Connection(port, wait_s=20) as connection:
        return ask(connection, key, version, **fields)


def _group(port: int) -> str:
    group = unique("group")
    _ready(port, group)
    return group


def _member(port: int, group: str) -> tuple[str, int]:
    answer = _ask(port, JOIN, 3, **_join_fields(group))
    assert answer["error_code"] == OK, answer
    done = _ask(port, SYNC, 3, group_id=group, generation_id=answer["generation_id"],
                member_id=answer["member_id"],
                assignments=[{"member_id": answer["member_id"], "assignment": b"a"}])
    assert done["error_code"] == OK, done
    return answer["member_id"], answer["generation_id"]


def test_164_an_empty_group_id_is_invalid_for_members_but_not_for_commits(port):
    assert _ask(port, JOIN, 5, **_join_fields(""))["error_code"] == INVALID_GROUP
    assert _ask(port, HEARTBEAT, 3, group_id="", generation_id=1,
                member_id="x")["error_code"] == INVALID_GROUP
    assert _ask(port, SYNC, 3, group_id="", generation_id=1,
                member_id="x", assignments=[])["error_code"] == INVALID_GROUP
    topic = unique("empty")
    create_topic(port, topic)
    answer = _ask(port, COMMIT, 8, **_commit_fields("", topic))
    assert answer["topics"][0]["partitions"][0]["error_code"] == OK
    assert _ask(port, DELETE, 2, groups_names=[""])["results"][0]["error_code"] == OK


@pytest.mark.parametrize("session_ms", [1, 2**31 - 1])
def test_165_a_session_beyond_the_limits_is_error_26(port, session_ms):
    answer = _ask(port, JOIN, 5, **_join_fields(_group(port), session_timeout=session_ms))
    assert answer["error_code"] == BAD_SESSION


def test_166_an_unknown_member_is_error_25(port):
    group = _group(port)
    _member(port, group)
    assert _ask(port, JOIN, 5, **_join_fields(group, "nobody"))["error_code"] == UNKNOWN_MEMBER
    for key in (SYNC, HEARTBEAT):
        assert _ask(port, key, 3, group_id=group, generation_id=1,
                    member_id="nobody")["error_code"] == UNKNOWN_MEMBER
    assert _ask(port, LEAVE, 2, group_id=group, member_id="x")["error_code"] == UNKNOWN_MEMBER


def test_167_no_protocols_or_no_protocol_type_is_error_23(port):
    for fields in ({"protocols": []}, {"protocol_type": ""}):
        group = _group(port)
        answer = _ask(port, JOIN, 5, **_join_fields(group, **fields))
        assert answer["error_code"] == INCONSISTENT
        described, = _ask(port, DESCRIBE, 5, groups=[group])["groups"]
        assert described["group_state"] == "Empty"


def test_167_a_member_without_a_shared_protocol_is_error_23(port):
    group = _group(port)
    _member(port, group)
    for fields in ({"protocols": [{"name": "other", "metadata": b""}]},
                   {"protocol_type": "connect"}):
        assert _ask(port, JOIN, 5, **_join_fields(group, **fields))["error_code"] == INCONSISTENT


def test_168_member_without_an_id_is_assigned_one(port):
    answer = _ask(port, JOIN, 5, **_join_fields(_group(port)))
    assert answer["error_code"] == ID_REQUIRED
    assert answer["member_id"].startswith("raw-")


def test_169_metadata_beyond_512_kib_is_rejected_immediately(brokerd):
    # Kafka does not respond within 8 seconds.
    group = _group(brokerd.port)
    answer = _ask(brokerd.port, JOIN, 5, **_join_fields(
        group, protocols=[{"name": "range", "metadata": bytes(2 << 20)}]))
    assert answer["error_code"] == TOO_LARGE


def test_170_ten_thousand_protocols_are_rejected(brokerd):
    # Kafka accepts them.
    answer = _ask(brokerd.port, JOIN, 5, **_join_fields(_group(brokerd.port), protocols=[
        {"name": f"p{number}", "metadata": b""} for number in range(10_000)]))
    assert answer["error_code"] == 42


def test_171_a_commit_of_a_wrong_generation_is_rejected(port):
    group, topic = _group(port), unique("generation")
    create_topic(port, topic)
    member, generation = _member(port, group)
    for who, told, code in (("nobody", generation, UNKNOWN_MEMBER),
                            (member, generation + 1, ILLEGAL_GENERATION),
                            ("", -1, UNKNOWN_MEMBER)):
        answer = _ask(port, COMMIT, 8, **_commit_fields(group, topic, 1, who, told))
        assert answer["topics"][0]["partitions"][0]["error_code"] == code


def test_173_metadata_of_4097_bytes_is_error_12(port):
    topic = unique("note")
    create_topic(port, topic)
    answer = _ask(port, COMMIT, 8, **_commit_fields(_group(port), topic,
                                                    committed_metadata="x" * 4097))
    assert answer["topics"][0]["partitions"][0]["error_code"] == METADATA_TOO_LARGE


def test_174_a_commit_for_an_unknown_topic_or_partition_is_error_3(port):
    topic = unique("known")
    create_topic(port, topic)
    group = _group(port)
    for name, index in ((unique("unknown"), 0), (topic, 999), (topic, -1)):
        answer = _ask(port, COMMIT, 8, **_commit_fields(group, name, partition_index=index))
        assert answer["topics"][0]["partitions"][0]["error_code"] == UNKNOWN_TOPIC


def test_175_the_last_of_two_commits_in_one_request_wins(port):
    topic, group = unique("twice"), _group(port)
    create_topic(port, topic)
    fields = _commit_fields(group, topic, 1)
    fields["topics"][0]["partitions"].append(
        {**fields["topics"][0]["partitions"][0], "committed_offset": 2})
    answer = _ask(port, COMMIT, 8, **fields)
    assert [row["error_code"] for row in answer["topics"][0]["partitions"]] == [OK, OK]
    found = _ask(port, FETCH, 5, group_id=group, topics=[
        {"name": topic, "partition_indexes": [0]}])
    assert found["topics"][0]["partitions"][0]["committed_offset"] == 2


def test_a_client_cannot_produce_to_the_offsets_topic(port):
    _group(port)
    with Connection(port) as connection:
        listed = ask(connection, raw.METADATA, 12, topics=[{"name": "__consumer_offsets"}],
                     allow_auto_topic_creation=False)["topics"][0]
    assert listed["is_internal"] and len(listed["partitions"]) == 50
