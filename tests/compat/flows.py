"""The steps of each scenario, written once for all clients that Python can drive.

Owns: nothing.
Invariants: a program's last line is the JSON object {"ok", "note"}, and it exits with 0 only if ok;
  this module imports no Kafka library.
"""

import json
import os
import sys
import threading
import time
import traceback

BASE_MS = 1_760_000_000_000
ROWS = 51
BIG_BYTES = 390_000
PARTITIONS = 4
# The static member id (KIP-345) that the driver assigns to a member program, if any.
INSTANCE = os.environ.get("COMPAT_INSTANCE")
# The authentication that the driver requests; tests.compat.security describes it.
SECURITY = json.loads(os.environ.get("COMPAT_SECURITY", "{}"))
WAIT_S = 45.0
# The driver prepares the topic of the scenario "reset" with offsets 3 to 19.
RESET_START, RESET_END = 3, 20
# The records of each transaction and whether it commits: every record is moved once.
MOVES = ((10, False), (10, True), (15, False), (30, True))
MOVED = sum(count for count, is_committed in MOVES if is_committed)


def rows(stem: str, count: int = ROWS, start: int = 0) -> list[tuple[bytes, bytes, int]]:
    """Return rows of (key, value, timestamp in ms).

    Values cover every byte value, timestamps increase by one second. The last row of a full set is
    longer than any codec's block.
    """
    return [(b"%s-%d" % (stem.encode(), number),
             bytes((number * 7 + place) % 256
                   for place in range(number * 13 if number < ROWS - 1 else BIG_BYTES)),
             BASE_MS + 1000 * number) for number in range(start, start + count)]


def wait_for(what: str, condition, wait_s: float = WAIT_S) -> None:
    end_s = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < end_s, f"waited {wait_s:.0f} s for: {what}"
        time.sleep(0.05)


class Member(threading.Thread):
    """A member of a group in its own thread.

    A subclass sets `share` (its assigned partitions) and appends to `keys` in `work`, which leaves
    the group and returns when `ending` is set.
    """

    def __init__(self, bootstrap: str, topic: str, group: str):
        super().__init__(daemon=True)
        self.bootstrap, self.topic, self.group = bootstrap, topic, group
        self.share: set[int] = set()
        self.keys: list[bytes] = []
        self.ending = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            self.work()
        except Exception as failure:  # `healthy` reports it to the main thread
            self.failure = failure

    def work(self) -> None:
        raise AssertionError("a subclass says how")

    def text(self, key: bytes) -> str:
        return key.decode()

    def healthy(self) -> bool:
        if self.failure is not None:
            raise self.failure
        return True

    def leave(self) -> None:
        self.ending.set()
        self.join(WAIT_S)
        assert not self.is_alive(), "a member did not leave"
        self.healthy()


def codecs(client, topic: str) -> str:
    offset = 0
    for codec in client.codecs:
        sent = rows(codec)
        client.produce(topic, sent, codec)
        got = client.read(topic, offset, len(sent))
        assert got == sent, f"{codec}: read back other records than written"
        offset += len(sent)
    return " ".join(client.codecs)


def group(client, topic: str) -> str:
    """One member, then a second joins, then the second leaves; every record arrives."""
    first = client.member(topic, f"{topic}-group")
    first.start()
    wait_for("one member with all partitions",
             lambda: first.healthy() and len(first.share) == PARTITIONS)
    second = client.member(topic, f"{topic}-group")
    second.start()
    wait_for("two members with half each", lambda: first.healthy() and second.healthy()
             and len(first.share) == len(second.share) == PARTITIONS // 2
             and not first.share & second.share)
    sent = set()
    for partition in range(PARTITIONS):
        batch = rows(f"two{partition}", 10)
        client.produce(topic, batch, "none", partition)
        sent |= {key for key, _, _ in batch}
    wait_for("every record at one of two members",
             lambda: sent <= set(first.keys) | set(second.keys))
    assert second.keys, "the second member got no record"
    second.leave()
    wait_for("all partitions back", lambda: first.healthy() and len(first.share) == PARTITIONS)
    late = rows("one", 10)
    client.produce(topic, late, "none", PARTITIONS - 1)
    wait_for("the records after the leave", lambda: {key for key, _, _ in late} <= set(first.keys))
    first.leave()
    return "1 > 2 > 1 members"


def member(client, topic: str) -> str:
    """Run one member until it is killed. It prints its partitions and the keys it reads."""
    one = client.member(topic, f"{topic}-group")
    one.start()
    share, told = None, 0
    while one.healthy():
        if one.share != share:
            share = set(one.share)
            print("share", *sorted(share), flush=True)
        for key in one.keys[told:]:
            print("key", one.text(key), flush=True)
            told += 1
        time.sleep(0.05)
    return ""


def create(client, topic: str) -> str:
    """Send a first record, which creates its topic."""
    name, sent = f"{topic}-new", rows("new", 5)
    client.produce(name, sent, "none")
    assert client.read(name, 0, 5) == sent, "read back other records than written"
    return ""


def resume(client, topic: str) -> str:
    sent = rows("resume", 30)
    client.produce(topic, sent, "none", 0)
    keys = [key for key, _, _ in sent]
    read = client.take(topic, f"{topic}-group", 10)
    assert read == keys[:10], read
    read = client.take(topic, f"{topic}-group", 20)
    assert read == keys[10:], read
    return ""


def seek(client, topic: str) -> str:
    sent = rows("seek", 20)
    client.produce(topic, sent, "none", 0)
    offset = client.offset_at(topic, BASE_MS + 6_500)
    assert offset == 7, offset
    assert client.read(topic, offset, 3) == sent[7:10]
    return ""


def first(poll, nudge=None) -> int:
    """Return the first offset from `poll`, calling `nudge` between polls."""
    end_s = time.monotonic() + WAIT_S
    while (offset := poll()) is None:
        assert time.monotonic() < end_s, f"no record in {WAIT_S:.0f} s"
        if nudge is not None:
            nudge()
    return offset


def reset(client, topic: str) -> str:
    """Test the start position of a consumer without a position, and with a deleted one."""
    note, start = "", RESET_START
    if hasattr(client, "trim"):
        note, start = ", delete records", RESET_START + 2
        client.trim(topic, start)
    offset = client.first(topic, f"{topic}-early", "earliest")
    assert offset == start, f"earliest is {offset}, not {start}"
    offset = client.lost(topic, 0)
    assert offset == start, f"out of range goes to {offset}, not {start}"
    offset = client.first(topic, f"{topic}-late", "latest",
                          lambda: client.produce(topic, rows("late", 1), "none"))
    assert offset >= RESET_END, f"latest is {offset}, below {RESET_END}"
    return f"earliest, latest, out of range{note}"


def topics(client, topic: str) -> str:
    name = f"{topic}-made"
    client.create(name, 3)
    wait_for("the topic to be described", lambda: client.partition_count(name) == 3, 10)
    note = "create, describe, delete"
    if hasattr(client, "grow"):
        client.grow(name, 5)
        wait_for("the added partitions", lambda: client.partition_count(name) == 5, 10)
        note += ", add partitions"
    client.delete(name)
    wait_for("the topic to be gone", lambda: client.partition_count(name) == 0, 10)
    return note


def configs(client, topic: str) -> str:
    client.set_config(topic, "retention.ms", "4711000")
    value = client.config(topic, "retention.ms")
    assert value == "4711000", f"retention.ms is {value}"
    value = client.broker_config("node.id")
    assert value == "1", f"the broker's node.id is {value}"
    return "describe, alter"


def groups(client, topic: str) -> str:
    """List and describe a group with a commit; read, set and delete its offset."""
    group = f"{topic}-group"
    client.produce(topic, rows("groups", 30), "none")
    client.take(topic, group, 10)
    assert group in client.groups(), "the group is not listed"
    wait_for("the group to be empty", lambda: client.group_state(group).lower() == "empty", 20)
    offset = client.committed(topic, group)
    assert offset == 10, f"committed is {offset}, not 10"
    note = "list, describe, offsets"
    if hasattr(client, "set_committed"):
        client.set_committed(topic, group, 4)
        offset = client.committed(topic, group)
        assert offset == 4, f"committed is {offset}, not 4"
        note += ", alter"
    if hasattr(client, "delete_group"):
        client.delete_group(group)
        assert group not in client.groups(), "a deleted group is listed"
        note += ", delete"
    return note


def transactions(client, topic: str) -> str:
    """Move records and positions between topics in transactions, and abort some.

    Before that, a producer is fenced by another one with the same id.
    """
    goal, group = f"{topic}-goal", f"{topic}-group"
    sent = rows("moved", MOVED)
    client.produce(topic, sent, "none")
    client.create(goal, 1)
    client.overtaken(goal, f"{group}-id")
    for count, is_committed in MOVES:
        client.move(topic, goal, group, count, is_committed)
    assert client.read(goal, 0, MOVED, committed=True) == sent, "other records than moved"
    everything = 1 + sum(count for count, _ in MOVES)
    assert len(client.read(goal, 0, everything, committed=False)) == everything
    offset = client.committed(topic, group)
    assert offset == MOVED, f"committed is {offset}, not {MOVED}"
    return "positions with the records, aborted ones unseen, a second producer of the same id"


FLOWS = {"codecs": codecs, "create": create, "group": group, "member": member,
         "resume": resume, "seek": seek, "reset": reset, "topics": topics, "configs": configs,
         "groups": groups, "transactions": transactions}


def main(make) -> None:
    """Run one scenario. `make(bootstrap)` returns the client; arguments: bootstrap, scenario,
    topic.
    """
    bootstrap, scenario, topic = sys.argv[1:4]
    try:
        answer = {"ok": True, "note": FLOWS[scenario](make(bootstrap), topic)}
    except Exception as failure:  # any library error becomes a row of the table
        traceback.print_exc()
        answer = {"ok": False, "note": f"{type(failure).__name__}: {failure}"[:300]}
    print(json.dumps(answer), flush=True)
    sys.exit(0 if answer["ok"] else 1)
