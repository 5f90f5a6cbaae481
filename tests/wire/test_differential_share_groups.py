"""Share groups: the same requests to Apache Kafka and to brokerd, every response compared.

The time at which a correct broker initializes and assigns share partitions varies: the tests wait
for it without comparing.
"""

import time
import uuid

import pytest

from tests.wire import raw
from tests.wire.raw import Connection
from tests.wire.messages import ask
from tests.wire.sides import Side, compare

# Slow because of Kafka: on a busy machine it sometimes responds that it is not ready.
pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]
FIND, LIST, DESCRIBE_CONFIGS, ALTER = 10, 16, 32, 44
HEARTBEAT, DESCRIBE, FETCH, ACKNOWLEDGE = 76, 77, 78, 79
INITIALIZE, READ, WRITE, DELETE, SUMMARY = 83, 84, 85, 86, 87
DESCRIBE_OFFSETS, ALTER_OFFSETS, DELETE_OFFSETS, DELETE_GROUPS = 90, 91, 92, 42
INIT, ADD, END = 22, 24, 26
BROKER_SETTINGS = {"share.coordinator.state.topic.num.partitions": 5}
WAIT_S = 30.0
GROUP_RESOURCE = 32
NOT_YET = (14, 15, 16)
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


class Member:
    """A member of a share group on one side."""

    def __init__(self, side: Side, group: str, name: str, topic: str):
        self.side = side
        self.group = group
        self.id = name
        self.topic = topic
        self.epoch = 0
        self.session = 0
        self.assigned = 0
        self.connection = Connection(side.port, wait_s=20)

    def beat(self, epoch=None, topics=None):
        answer = ask(self.connection, HEARTBEAT, 1, group_id=self.group, member_id=self.id,
                     member_epoch=self.epoch if epoch is None else epoch, rack_id=None,
                     subscribed_topic_names=topics)
        if answer["error_code"] == 0:
            self.epoch = answer["member_epoch"]
            if answer["assignment"] is not None:
                self.assigned = sum(len(row["partitions"])
                                    for row in answer["assignment"]["topic_partitions"])
        return answer

    def join(self, partitions: int) -> None:
        """Wait until that many partitions are assigned."""
        coordinated(self.side, 0, self.group)
        end_s = time.monotonic() + WAIT_S
        while self.beat(0, [self.topic])["error_code"]:
            assert time.monotonic() < end_s
            time.sleep(0.2)
        while self.assigned < partitions:
            assert time.monotonic() < end_s, f"{self.assigned} of {partitions} partitions"
            time.sleep(0.2)
            self.beat()

    def fetch(self, label, acknowledgements=(), *, version=1, wait_ms=500, records=500, size=500,
              partitions=(0,), epoch=None, note=True, **fields):
        """Send a ShareFetch; the first of a session names `partitions`, later ones the partitions
        they acknowledge.
        """
        epoch = self.session if epoch is None else epoch
        named = {index: [] for index in partitions} if epoch == 0 else {}
        for index, first, last, types in acknowledgements:
            named.setdefault(index, []).append({
                "first_offset": first, "last_offset": last, "acknowledge_types": list(types)})
        if version > 1:
            fields = {"share_acquire_mode": 0, "is_renew_ack": False, **fields}
        answer = ask(self.connection, FETCH, version, **{
            "group_id": self.group, "member_id": self.id, "share_session_epoch": epoch,
            "max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": records,
            "batch_size": size, "forgotten_topics_data": [], "topics": self._topics(named),
            **fields})
        self.session = epoch + 1 if answer["error_code"] == 0 else self.session
        if note:
            self.side.note(label, answer)
        return answer

    def records(self, label, *arguments, **fields):
        """Repeat fetch() until there are records."""
        end_s = time.monotonic() + WAIT_S
        while True:
            answer = self.fetch(label, *arguments, note=False, **fields)
            cells = [cell for topic in answer["responses"] for cell in topic["partitions"]]
            if any(cell["acquired_records"] for cell in cells) or answer["error_code"]:
                self.side.note(label, sorted(
                    (cell["partition_index"], cell["error_code"], cell["acknowledge_error_code"],
                     [(row["first_offset"], row["last_offset"], row["delivery_count"])
                      for row in cell["acquired_records"]], len(cell["records"] or b""))
                    for cell in cells))
                return answer
            assert time.monotonic() < end_s, answer
            arguments = ()

    def acknowledge(self, label, *rows, version=1, epoch=None, **fields):
        """rows: (partition, first, last, types)."""
        epoch = self.session if epoch is None else epoch
        named = {}
        for index, first, last, types in rows:
            named.setdefault(index, []).append({
                "first_offset": first, "last_offset": last, "acknowledge_types": list(types)})
        if version > 1:
            fields = {"is_renew_ack": False, **fields}
        answer = ask(self.connection, ACKNOWLEDGE, version, group_id=self.group,
                     member_id=self.id, share_session_epoch=epoch, topics=self._topics(named),
                     **fields)
        if answer["error_code"] == 0 and epoch > 0:
            self.session = epoch + 1
        self.side.note(label, answer)
        return answer

    def _topics(self, named):
        return [{"topic_id": uuid.UUID(self.side.id_of(self.topic)), "partitions": [
            {"partition_index": index, "acknowledgement_batches": rows}
            for index, rows in named.items()]}] if named else []


def group_of(side: Side, stem: str, **configs) -> str:
    """Return a group with specific settings, which starts at the earliest record."""
    name = side.name(stem)
    rows = {"share.auto.offset.reset": "earliest",
            **{key.replace("_", "."): value for key, value in configs.items()}}
    answer = ask(side.connection, ALTER, 1, validate_only=False, resources=[{
        "resource_type": GROUP_RESOURCE, "resource_name": name, "configs": [
            {"name": key, "config_operation": 0, "value": str(value)}
            for key, value in rows.items()]}])
    assert answer["responses"][0]["error_code"] == 0, answer
    end_s = time.monotonic() + WAIT_S
    while not _has(side, name, rows):
        # Kafka's broker receives it from its controller.
        assert time.monotonic() < end_s
        time.sleep(0.1)
    time.sleep(0.5)
    return name


def _has(side: Side, group: str, rows: dict) -> bool:
    answer = ask(side.connection, DESCRIBE_CONFIGS, 4, include_synonyms=False,
                 include_documentation=False, resources=[{
                     "resource_type": GROUP_RESOURCE, "resource_name": group,
                     "configuration_keys": list(rows)}])
    found = {row["name"]: row["value"] for row in answer["results"][0]["configs"]}
    return found == {key: str(value) for key, value in rows.items()}


def coordinated(side: Side, kind: int, key: str) -> None:
    """Wait until the key has a coordinator."""
    end_s = time.monotonic() + WAIT_S
    while ask(side.connection, FIND, 6, key_type=kind, coordinator_keys=[key])[
            "coordinators"][0]["error_code"]:
        assert time.monotonic() < end_s
        time.sleep(0.2)
    while kind == 0 and ask(side.connection, HEARTBEAT, 1, group_id=key, member_id="nobody",
                            member_epoch=7, rack_id=None, subscribed_topic_names=None)[
                                "error_code"] in NOT_YET:
        # Kafka returns a coordinator before it has loaded the partition.
        assert time.monotonic() < end_s
        time.sleep(0.2)


def append_batches(side, topic, count, each):
    """Append `count` batches of `each` records."""
    from pylog._native.records import batch

    for number in range(count):
        side.append(topic, batch.build([
            (None, b"value %d" % (number * each + at), 1_700_000_000_000, ())
            for at in range(each)]))


def heartbeats(side):
    topic, group = side.topic("t"), side.name("g")
    coordinated(side, 0, group)

    def beat(label, **fields):
        side.ask(label, HEARTBEAT, 1, **{
            "group_id": group, "member_id": "m", "member_epoch": 0, "rack_id": None,
            "subscribed_topic_names": [topic], **fields})

    beat("no group", member_epoch=1)
    beat("leaves no group", member_epoch=-1)
    beat("no member id", member_id="")
    beat("a long member id", member_id="m" * 37)
    beat("no group id", group_id="")
    beat("an empty rack", rack_id="")
    beat("no topics", subscribed_topic_names=None)
    beat("empty topics", subscribed_topic_names=[])
    beat("an epoch that cannot be", member_epoch=-2)
    beat("joins")
    beat("another member's epoch", member_id="n", member_epoch=1)
    beat("an epoch that is too high", member_epoch=9)
    beat("leaves as somebody else", member_id="n", member_epoch=-1)
    beat("leaves", member_epoch=-1)
    beat("leaves again", member_epoch=-1)
    side.ask("described", DESCRIBE, 1, group_ids=["no such group"],
             include_authorized_operations=False)
    side.ask("no id", DESCRIBE, 1, group_ids=[""], include_authorized_operations=False)
    side.ask("classic description", 15, 6, groups=[group], include_authorized_operations=False)
    side.ask("coordinator of no key", FIND, 6, key_type=2, coordinator_keys=["g:x:0"])
    found = ask(side.connection, LIST, 5, states_filter=[], types_filter=["share"])
    side.note("listed", [row for row in found["groups"] if row["group_id"] == group])


def members(side):
    topic, group = side.topic("t", 4), side.name("g")
    first, second = (Member(side, group, name, topic) for name in ("first", "second"))
    first.join(4)
    second.join(2)
    end_s = time.monotonic() + WAIT_S
    while first.assigned != 2:
        assert time.monotonic() < end_s
        time.sleep(0.2)
        first.beat()
    answer = ask(side.connection, DESCRIBE, 1, group_ids=[group],
                 include_authorized_operations=True)
    row, = answer["groups"]
    for member in row["members"]:
        cells = member["assignment"]["topic_partitions"]
        member["assignment"] = [len(cell["partitions"]) for cell in cells]
        member["member_epoch"] -= row["group_epoch"]
    row["members"].sort(key=lambda member: member["member_id"])
    row["assignment_epoch"] -= row.pop("group_epoch")
    side.note("described", answer)
    side.note("fenced", first.beat(first.epoch + 5)["error_code"])
    side.note("joined as classic", ask(
        side.connection, 11, 9, group_id=group, session_timeout=10_000,
        rebalance_timeout=10_000, member_id="", group_instance_id=None, protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}], reason=None)["error_code"])


def deliveries(side):
    topic, group = side.topic("t"), group_of(side, "g")
    append_batches(side, topic, 3, 10)
    member, other = (Member(side, group, name, topic) for name in ("m", "n"))
    member.join(1)
    member.records("first")
    member.acknowledge("accepted", (0, 0, 4, [ACCEPT]))
    member.acknowledge("twice", (0, 0, 4, [ACCEPT]))
    member.acknowledge("twice amid others", (0, 3, 6, [ACCEPT]))
    member.acknowledge("released", (0, 5, 7, [RELEASE]))
    member.acknowledge("rejected and a gap", (0, 8, 9, [REJECT, 0]))
    member.acknowledge("several", (0, 10, 12, [ACCEPT, RELEASE, REJECT]),
                       (0, 13, 14, [ACCEPT]))
    member.acknowledge("what was released", (0, 5, 7, [ACCEPT]))
    member.records("again")
    member.acknowledge("accepted again", (0, 5, 7, [ACCEPT]), (0, 11, 11, [RELEASE]))
    member.fetch("piggybacked", [(0, 15, 19, [ACCEPT])], wait_ms=0, records=1)
    member.acknowledge("the end", epoch=-1)
    other.join(0)
    other.records("given back")


def wrong(side):
    topic, group = side.topic("t"), group_of(side, "g")
    append_batches(side, topic, 1, 10)
    member = Member(side, group, "m", topic)
    member.join(1)
    member.fetch("no session", epoch=3)
    member.acknowledge("no session to acknowledge in", (0, 0, 1, [ACCEPT]), epoch=1)
    member.fetch("ends no session", epoch=-1)
    member.fetch("acknowledges at first", [(0, 0, 0, [ACCEPT])], epoch=0)
    member.fetch("no member", member_id="")
    member.fetch("no group", group_id=None)
    member.records("records")
    member.fetch("an old epoch", epoch=1 if member.session != 1 else 7)
    member.acknowledge("an initial epoch", (0, 0, 1, [ACCEPT]), epoch=0)
    member.acknowledge("backwards", (0, 5, 3, [ACCEPT]))
    member.acknowledge("no types", (0, 5, 6, []))
    member.acknowledge("too many types", (0, 5, 6, [1, 1, 1]))
    member.acknowledge("an unknown type", (0, 5, 6, [5]))
    member.acknowledge("a type of later versions", (0, 5, 6, [RENEW]))
    member.acknowledge("negative", (0, 5, 6, [-1]))
    member.acknowledge("overlapping", (0, 5, 6, [ACCEPT]), (0, 4, 7, [ACCEPT]))
    member.acknowledge("past the end", (0, 8, 12, [ACCEPT]))
    member.acknowledge("far past the end", (0, 80, 82, [ACCEPT]))
    member.acknowledge("another partition", (7, 0, 2, [ACCEPT]))
    member.acknowledge("renewed unasked", (0, 0, 1, [RENEW]), version=2)
    member.acknowledge("renewed", (0, 0, 1, [RENEW]), version=2, is_renew_ack=True)
    member.fetch("renews and fetches", version=2, is_renew_ack=True)
    member.fetch("renews", [(0, 0, 1, [RENEW])], version=2, is_renew_ack=True, wait_ms=0,
                 min_bytes=0, max_bytes=0, records=0)
    member.acknowledge("some are fine", (0, 0, 1, [ACCEPT]), (0, 9, 10, [ACCEPT]))
    member.acknowledge("and were not taken", (0, 0, 1, [ACCEPT]))


def limits(side):
    topic = side.topic("t")
    append_batches(side, topic, 12, 25)
    group = group_of(side, "g", share_partition_max_record_locks=100)
    one, two = (Member(side, group, name, topic) for name in ("one", "two"))
    one.join(1)
    one.records("at most what may be locked", records=500, size=30)
    one.fetch("no more", wait_ms=0)
    one.acknowledge("some in the middle", (0, 40, 44, [RELEASE]))
    two.join(0)
    two.records("what is free again", records=100)
    one.acknowledge("the first ones", (0, 0, 39, [ACCEPT]))
    two.records("and what follows", records=10)
    exact = group_of(side, "exact")
    three = Member(side, exact, "three", topic)
    three.join(1)
    three.records("exactly", version=2, records=10, share_acquire_mode=1)
    three.records("and exactly", version=2, records=20, share_acquire_mode=1)
    three.acknowledge("none is kept", (0, 0, 9, [RELEASE]))
    three.records("from the first on", version=2, records=15, share_acquire_mode=1)


def often(side):
    """A record that no consumer can process."""
    topic = side.topic("t")
    append_batches(side, topic, 1, 8)
    member = Member(side, group_of(side, "g"), "m", topic)
    member.join(1)
    for number in range(8):
        answer = member.records(f"delivery {number}", wait_ms=1000)
        rows = [row for part in answer["responses"] for cell in part["partitions"]
                for row in cell["acquired_records"]]
        for row in rows:
            member.acknowledge(f"released {number}", (
                0, row["first_offset"], row["last_offset"], [RELEASE]))


class Transactions:
    """A transactional producer of one topic, on one side."""

    def __init__(self, side: Side, topic: str):
        self.side, self.topic, self.id = side, topic, side.name("id")
        self.sequence = 0
        coordinated(side, 1, self.id)
        end_s = time.monotonic() + WAIT_S
        while True:
            answer = ask(side.connection, INIT, 4, transactional_id=self.id,
                         transaction_timeout=60_000, producer_id=-1, producer_epoch=-1)
            if not answer["error_code"]:
                break
            assert time.monotonic() < end_s, answer
            time.sleep(0.2)
        self.producer = {"producer_id": answer["producer_id"],
                         "producer_epoch": answer["producer_epoch"]}

    def append(self, count: int) -> None:
        """Begin a transaction, or continue the open one, with a batch of `count` records."""
        self._settled(ADD, 3, v3_and_below_transactional_id=self.id,
                      v3_and_below_producer_id=self.producer["producer_id"],
                      v3_and_below_producer_epoch=self.producer["producer_epoch"],
                      v3_and_below_topics=[{"name": self.topic, "partitions": [0]}])
        data = raw.batch([raw.record(offset_delta=at) for at in range(count)], **self.producer,
                         base_sequence=self.sequence, attributes=raw.TRANSACTIONAL)
        self.sequence += count
        self._settled(raw.PRODUCE, 9, transactional_id=self.id, acks=-1, timeout=5000,
                      topic_data=[{"name": self.topic, "partition_data": [
                          {"index": 0, "records": data}]}])

    def end(self, committed: bool) -> None:
        self._settled(END, 4, transactional_id=self.id, committed=committed, **self.producer)

    def _settled(self, key, version, **fields) -> None:
        """Retry until the previous transaction has ended and the request succeeds."""
        end_s = time.monotonic() + WAIT_S
        while True:
            codes = _codes(ask(self.side.connection, key, version, **fields))
            if codes <= {0}:
                return
            assert codes <= {0, 51} and time.monotonic() < end_s, codes
            time.sleep(0.05)


def transactions(side):
    """Open, committed and aborted transactions for groups of both isolation levels."""
    topic = side.topic("t")
    committed = group_of(side, "committed", share_isolation_level="read_committed")
    all_of_them = group_of(side, "all")
    append_batches(side, topic, 1, 2)
    one, two = Transactions(side, topic), Transactions(side, topic)
    one.append(3)
    append_batches(side, topic, 1, 2)
    member, other = Member(side, committed, "m", topic), Member(side, all_of_them, "n", topic)
    member.join(1)
    other.join(1)
    member.records("before the open transaction")
    member.fetch("nothing of the open transaction", wait_ms=300)
    other.records("uncommitted records")
    one.end(True)
    member.records("committed records", [(0, 0, 1, [ACCEPT])])
    two.append(2)
    one.append(1)
    append_batches(side, topic, 1, 1)
    member.fetch("nothing of two open transactions", wait_ms=300)
    two.end(False)
    member.fetch("nothing while one is open", wait_ms=300)
    one.end(True)
    member.records("without aborted records")
    member.acknowledge("all of them", *((0, first, last, [ACCEPT]) for first, last in (
        (2, 7), (10, 13))))
    member.acknowledge("an aborted record", (0, 8, 8, [ACCEPT]))


def renewed_sessions(side):
    """A member that begins a session while it has one, on the same and on another connection."""
    topic, group = side.topic("t"), group_of(side, "g")
    append_batches(side, topic, 1, 10)
    member, other = Member(side, group, "m", topic), Member(side, group, "n", topic)
    member.join(1)
    other.join(1)
    member.records("of the first session")
    append_batches(side, topic, 1, 10)
    member.session = 0
    member.records("of the second session")
    other.fetch("nothing is free", wait_ms=300)
    member.acknowledge("acquired in the second session", (0, 10, 14, [ACCEPT]))
    member.acknowledge("acquired in the first session", (0, 0, 4, [ACCEPT]))
    former, member.connection = member.connection, Connection(side.port, wait_s=20)
    append_batches(side, topic, 1, 10)
    member.session = 0
    member.records("of a third session on a new connection")
    former.close()
    other.fetch("nothing is free yet", wait_ms=300)
    member.acknowledge("acquired in the third session", (0, 20, 24, [ACCEPT]))
    member.acknowledge("acquired in an earlier session", (0, 5, 6, [ACCEPT]),
                       (0, 15, 16, [ACCEPT]))
    member.connection.close()
    other.records("released with the last connection")


def states(side):
    topic, group = side.topic("t", 2), side.name("g")
    topic_id = uuid.UUID(side.id_of(topic))
    coordinated(side, 2, f"{group}:{_text(topic_id)}:1")

    def call(label, key, version, array=True, **fields):
        end_s = time.monotonic() + WAIT_S
        while True:
            answer = ask(side.connection, key, version, group_id=group, topics=[{
                "topic_id": topic_id, "partitions": [{"partition": 1, **fields}]}])
            codes = {cell["error_code"] for row in answer["results"] for cell in row["partitions"]}
            if not codes & {14, 15, 16} or time.monotonic() > end_s:
                break
            time.sleep(0.1)
        side.note(label, answer)

    batch = {"first_offset": 5, "last_offset": 9, "delivery_state": 2, "delivery_count": 1}
    call("read of nothing", READ, 0, leader_epoch=0)
    call("summary of nothing", SUMMARY, 1, leader_epoch=0)
    call("written to nothing", WRITE, 1, state_epoch=0, leader_epoch=0, start_offset=5,
         delivery_complete_count=0, state_batches=[batch])
    call("deleted nothing", DELETE, 0)
    call("initialized", INITIALIZE, 0, state_epoch=1, start_offset=5)
    call("read", READ, 0, leader_epoch=2)
    call("summary", SUMMARY, 1, leader_epoch=2)
    call("written", WRITE, 1, state_epoch=1, leader_epoch=2, start_offset=5,
         delivery_complete_count=5, state_batches=[batch])
    call("by an older leader", WRITE, 1, state_epoch=1, leader_epoch=1, start_offset=5,
         delivery_complete_count=5, state_batches=[batch])
    call("of an older state", WRITE, 1, state_epoch=0, leader_epoch=2, start_offset=5,
         delivery_complete_count=5, state_batches=[batch])
    call("overlapping", WRITE, 0, state_epoch=1, leader_epoch=2, start_offset=7, state_batches=[
        {**batch, "first_offset": 8, "last_offset": 12, "delivery_state": 0,
         "delivery_count": 2}])
    call("read again", READ, 0, leader_epoch=2)
    call("read by an older leader", READ, 0, leader_epoch=1)
    call("summary again", SUMMARY, 0, leader_epoch=-1)
    call("initialized with an older epoch", INITIALIZE, 0, state_epoch=0, start_offset=0)
    call("initialized again", INITIALIZE, 0, state_epoch=2, start_offset=-1)
    call("read as new", READ, 0, leader_epoch=3)
    call("deleted", DELETE, 0)
    call("gone", READ, 0, leader_epoch=3)
    side.ask("no topics", READ, 0, group_id=group, topics=[])
    side.ask("an unknown topic", INITIALIZE, 0, group_id=group, topics=[{
        "topic_id": uuid.UUID(int=99), "partitions": [
            {"partition": 0, "state_epoch": 0, "start_offset": 0}]}])
    side.ask("a negative partition", INITIALIZE, 0, group_id=group, topics=[{
        "topic_id": topic_id, "partitions": [
            {"partition": -1, "state_epoch": 0, "start_offset": 0}]}])


class Offsets:
    """Describes and changes a group's offsets, on one side."""

    def __init__(self, side: Side, group: str):
        self.side = side
        self.group = group
        coordinated(side, 0, group)

    def describe(self, label, topics=None, version=1):
        """topics: {name: partitions}; None: all."""
        self.side.note(label, self._settled(DESCRIBE_OFFSETS, version, groups=[{
            "group_id": self.group, "topics": None if topics is None else [
                {"topic_name": name, "partitions": list(indexes)}
                for name, indexes in topics.items()]}]))

    def alter(self, label, topics):
        """topics: {name: {partition: offset}}."""
        self.side.note(label, self._settled(ALTER_OFFSETS, 0, group_id=self.group, topics=[
            {"topic_name": name, "partitions": [
                {"partition_index": index, "start_offset": offset}
                for index, offset in starts.items()]} for name, starts in topics.items()]))

    def delete(self, label, *names):
        self.side.note(label, self._settled(DELETE_OFFSETS, 0, group_id=self.group, topics=[
            {"topic_name": name} for name in names]))

    def delete_group(self, label):
        self.side.note(label, self._settled(DELETE_GROUPS, 2, groups_names=[self.group]))

    def _settled(self, key, version, **fields):
        """Return the response, after coordinators have loaded their state."""
        end_s = time.monotonic() + WAIT_S
        while True:
            answer = ask(self.side.connection, key, version, **fields)
            if not _codes(answer) & set(NOT_YET) or time.monotonic() > end_s:
                return answer
            time.sleep(0.2)


def _codes(answer) -> set[int]:
    """Return all error codes of a response."""
    if isinstance(answer, list):
        return set().union(*map(_codes, answer)) if answer else set()
    if not isinstance(answer, dict):
        return set()
    own = {value for name, value in answer.items() if name.endswith("error_code")}
    return own.union(*map(_codes, answer.values()))


def offsets(side):
    """Offsets described, altered and deleted, for a group with and without members."""
    topic, other = side.topic("t", 2), side.topic("other")
    append_batches(side, topic, 2, 10)
    group = Offsets(side, side.name("g"))
    # Kafka never responds for partitions that do not exist, nor before it has the share state
    # topic.
    coordinated(side, 2, f"{group.group}:{_text(uuid.UUID(side.id_of(topic)))}:0")
    group.describe("no group")
    group.describe("no group's topics", {topic: [0], "none": [1]})
    group.describe("no topics", {})
    group.delete("no group's", topic)
    group.alter("of a group that is made by it", {
        topic: {0: 4, 7: 1}, "none": {0: 1}})
    group.describe("altered")
    group.describe("of version 0", version=0)
    group.describe("some", {topic: [0, 1], other: [0]})
    found = ask(side.connection, LIST, 5, states_filter=[], types_filter=["share"])
    side.note("listed", [row for row in found["groups"] if row["group_id"] == group.group])
    group.alter("nothing", {})
    group.alter("once more", {topic: {0: 6, 1: 0}})
    group.describe("altered again")
    member = Member(side, group.group, "m", topic)
    member.join(2)
    group.alter("with a member", {topic: {0: 1}})
    group.delete("with a member", topic)
    group.delete_group("with a member")
    member.records("from where it was moved to")
    member.acknowledge("some are done", (0, 6, 8, [ACCEPT]))
    member.acknowledge("and one behind", (0, 12, 12, [REJECT]))
    group.describe("under way", {topic: [0]})
    member.acknowledge("the end", epoch=-1)
    member.beat(-1)
    group.delete("none of it", other, "none")
    group.delete("and forgotten", topic)
    group.delete("once more", topic)
    group.describe("nothing left")
    group.alter("begun anew", {topic: {0: 2}})
    group.delete_group("gone")
    group.delete_group("gone already")
    group.describe("gone", {topic: [0]})
    empty = Offsets(side, "")
    empty.alter("no group id", {topic: {0: 1}})
    empty.delete("no group id", topic)


def _text(topic_id: uuid.UUID) -> str:
    import base64

    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


@pytest.mark.parametrize("scenario", [
    heartbeats, members, deliveries, wrong, limits, often, transactions, renewed_sessions,
    states, offsets])
def test_share_groups_are_served_as_by_kafka(kafka, brokerd, scenario):
    compare(kafka, brokerd, scenario)
