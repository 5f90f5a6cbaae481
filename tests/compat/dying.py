"""Scenarios in which a member of a group, a static member or the broker dies.

Owns: the member processes, each the leader of its process group.
Invariants: no partition is reassigned before the dead owner's session times out; a member process
  prints `share 0 1` when its partitions change and `key K` for each record.
"""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from bench.process import die_with_parent
from tests.compat.flows import PARTITIONS, wait_for
from tests.wire import raw
from tests.wire.messages import ask
from tests.wire.raw import Connection
from tests.wire.talk import append

SESSION_S = 6.0
# Members send heartbeats every second, so the last one is at most that old.
TAKEOVER_S_MIN = SESSION_S - 2.0
TAKEOVER_S_MAX = SESSION_S + 15.0


class Member:
    """A member process. instance: its static member id (KIP-345), or none."""

    def __init__(self, command: list[str], bootstrap: str, topic: str, log: Path,
                 instance: str = ""):
        self.share: set[int] = set()
        self.shares = 0
        self.keys: set[str] = set()
        environment = {**os.environ, "COMPAT_INSTANCE": instance} if instance else None
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                [*command, bootstrap, "member", topic], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
                env=environment, preexec_fn=die_with_parent,
                cwd=Path(__file__).resolve().parent.parent.parent)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stdout:
            word, *rest = line.split() or [""]
            if word == "share":
                self.share = set(map(int, rest))
                self.shares += 1
            elif word == "key":
                self.keys.add(rest[0])

    def alive(self) -> bool:
        assert self.process.poll() is None, f"a member ended with {self.process.poll()}"
        return True

    def holds(self, count: int) -> bool:
        return self.alive() and len(self.share) == count

    def saw(self, keys: set[str]) -> bool:
        return self.alive() and keys <= self.keys

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> "Member":
        return self

    def __exit__(self, *exception) -> None:
        self.kill()


def _send(broker, topic: str, stem: str) -> set[str]:
    """Send ten records to each partition and return their keys in hexadecimal, as kcat prints them.
    """
    sent = set()
    for partition in range(PARTITIONS):
        keys = [f"{stem}{partition:02x}{number:02x}" for number in range(10)]
        append(broker.port, topic, raw.batch([
            raw.record(key.encode(), b"v", offset_delta=number)
            for number, key in enumerate(keys)]), partition)
        sent.update(keys)
    return sent


def _leads(broker, topic: str) -> bool:
    """Return True if every partition has a leader that responds: a new Kafka takes a moment."""
    with Connection(broker.port) as connection:
        row = ask(connection, raw.LIST_OFFSETS, 6, replica_id=-1, topics=[{
            "name": topic, "partitions": [{"partition_index": index, "timestamp": -1}
                                          for index in range(PARTITIONS)]}])["topics"][0]
    return all(cell["error_code"] == 0 for cell in row["partitions"])


def _halves(first: Member, second: Member) -> bool:
    half = PARTITIONS // 2
    return first.holds(half) and second.holds(half) and not first.share & second.share


def dying(command: list[str], broker, topic: str, log: Path) -> str:
    """Kill one of two members; the other takes over; a third joins. Raises AssertionError."""
    def member() -> Member:
        return Member(command, broker.bootstrap, topic, log)

    with member() as first:
        wait_for("one member with all partitions", lambda: first.holds(PARTITIONS))
        with member() as second:
            wait_for("two members with half each", lambda: _halves(first, second))
            sent = _send(broker, topic, "a11e")
            wait_for("every record at one of two members",
                     lambda: sent <= first.keys | second.keys)
            second.kill()
            killed_s = time.monotonic()
        sent = _send(broker, topic, "dead")
        wait_for("all partitions at the survivor", lambda: first.holds(PARTITIONS),
                 TAKEOVER_S_MAX)
        took_s = time.monotonic() - killed_s
        assert took_s > TAKEOVER_S_MIN, f"taken over after {took_s:.1f} s"
        wait_for("the records of the time between", lambda: first.saw(sent))
        with member() as third:
            wait_for("a third member with half", lambda: _halves(first, third))
    return "killed, taken over when its session ends; a third joins"


def static(command: list[str], broker, topic: str, log: Path) -> str:
    """Restart a static member within its session: no partition moves. Raises AssertionError."""
    def member(instance: str) -> Member:
        return Member(command, broker.bootstrap, topic, log, f"{topic}-{instance}")

    with member("a") as first:
        wait_for("one member with all partitions", lambda: first.holds(PARTITIONS))
        with member("b") as second:
            wait_for("two members with half each", lambda: _halves(first, second))
            share = set(second.share)
            second.kill()
            killed_s = time.monotonic()
        told = first.shares
        with member("b") as back:
            wait_for("its share", lambda: back.share == share)
            took_s = time.monotonic() - killed_s
            assert took_s < SESSION_S, f"it has its share again after {took_s:.1f} s"
            sent = _send(broker, topic, "5afe")
            wait_for("every record at one of two members", lambda: sent <= first.keys | back.keys)
            time.sleep(max(0.0, killed_s + SESSION_S + 2.0 - time.monotonic()))
            assert _halves(first, back) and first.shares == told, \
                "partitions moved when the dead member's session would have ended"
    return "back within its session with its share"


def restart(command: list[str], broker, topic: str, log: Path) -> str:
    """Kill the broker of a member, which must recover. Raises AssertionError."""
    with Member(command, broker.bootstrap, topic, log) as one:
        wait_for("one member with all partitions", lambda: one.holds(PARTITIONS))
        sent = _send(broker, topic, "a11e")
        wait_for("every record", lambda: one.saw(sent))
        broker.kill()
        time.sleep(0.5)
        broker.start()
        wait_for("leaders", lambda: _leads(broker, topic))
        sent = _send(broker, topic, "dead")
        wait_for("the records after the restart", lambda: one.saw(sent))
        wait_for("all partitions", lambda: one.holds(PARTITIONS))
    return "kill -9 and start: the member reads on"
