"""Measure the web console: `python -m bench.console [--records 1000000] [--groups 15000]
[--topics 5000] [--users 50] [--tail-seconds 10] [--soak-seconds 0] [--kafka]`.

A count of 0 omits its loads. --kafka measures the same with an Apache Kafka broker, as the control.

Owns: one broker and one console, as child processes, with their directories.
Invariants: each figure is printed beside its goal; time and CPU are measured from the request until
  the last byte; every search verifies the number of its matches.
"""

import argparse
import asyncio
import http.client
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from bench.brokers import PylogBroker, command_line
from bench.kafka import KafkaBroker
from bench.machine import commit_line, machine_line
from bench.process import cpu_seconds, peak_rss_bytes, rss_bytes
from pylog.client import Admin, NewTopic, Producer, TopicPartition
from pylog.client.admin.admin import Admin as AsyncAdmin
from pylog.testing.ports import free_port

VALUE_BYTES, STEP = 1024, 10_000
BATCH_BYTES = 256 << 10
START_WAIT_S, WAIT_S = 60.0, 600.0
PAD_POOL_BYTES = 1 << 20
MIB = 1 << 20
# Row -> (goal as text, is it met by (seconds, bytes)?), for 1,000,000 records of 1 KiB.
GOALS: dict[str, tuple[str, Callable[[float, int], bool]]] = {
    "search, plain": ("at most 1.5 s", lambda seconds, _: seconds <= 1.5),
    "search, zstd": ("at most 3 s", lambda seconds, _: seconds <= 3),
    "JSON field": ("at most 4 s", lambda seconds, _: seconds <= 4),
    "newest first": ("first match in 200 ms", lambda seconds, _: seconds <= 0.2),
    "download": ("at least 100 MB/s", lambda seconds, size: size / 1e6 / seconds >= 100),
    "copy": ("at least 200 MB/s", lambda seconds, size: size / 1e6 / seconds >= 200),
    "start": ("first page in 1 s", lambda seconds, _: seconds <= 1),
}
# Page -> (path, seconds at most), for 15,000 groups that read one topic.
GROUP_GOALS = {
    "no match": ("/groups?q=no-such-group", 0.3),
    "first page, lags": ("/groups", 0.3),
    "ordered by lag": ("/groups?sort=-lag_records", 5.0),
    "groups of topic": ("/topics/groups/groups", 2.0),
    "one group": ("/groups/group-000001", 0.3),
}
ROUNDS, COMMITS_AT_ONCE = 3, 100
MEMORY_GOAL_BYTES, IDLE_GOAL_BYTES, USERS_GOAL_BYTES = 250 * 10**6, 60 * 10**6, 120 * 10**6
# Page -> (path, seconds at most), for 5,000 topics.
TOPIC_GOALS = {
    "first page": ("/topics", 0.8),  # 0.3 for the list, 0.5 for the sizes of its 50 rows.
    "no match": ("/topics?q=no-such-topic", 0.3),
    "by partitions": ("/topics?sort=-partitions", 0.8),
    "overview": ("/", 0.8),
}
TOPICS_AT_ONCE = 500
USER_SECONDS = 10.0
USER_PAGES = ("/", "/topics", "/topics/busy", "/topics/busy/records", "/groups", "/groups/busy",
              "/brokers", "/topics/busy/settings")
TAIL_RATE, TAIL_BATCHES_PER_S, TAIL_CPU_SHARE = 100_000, 10, 0.05
TAIL_PROBES = 10
SOAK_PAUSE_S, SOAK_WARM_SHARE = 0.05, 0.25
# A session may need another kind of connection late; a leak grows with the pages.
SOAK_GROWTH_BYTES, SOAK_GROWTH_FDS_PER_USER = 20 * 10**6, 2


def fill(bootstrap: str, topic: str, records: int, codec: str) -> None:
    """Write JSON values of VALUE_BYTES with ascending ids to one partition."""
    pool = random.Random(1).randbytes(PAD_POOL_BYTES // 2).hex()
    with Producer(bootstrap_servers=bootstrap, compression_type=codec, batch_size=BATCH_BYTES,
                  buffer_memory=64 * MIB) as producer:
        for first in range(0, records, STEP):
            values = []
            for number in range(first, min(first + STEP, records)):
                head = f'{{"id": {number}, "customer": {{"id": {number % 1000}}}, "pad": "'
                at = number * 131 % (PAD_POOL_BYTES - VALUE_BYTES)
                values.append((head + pool[at:at + VALUE_BYTES - len(head) - 2] + '"}').encode())
            count = len(values)
            table = pa.table({"value": pa.array(values, pa.binary()),
                              "key": pa.array([b"%d" % i for i in range(first, first + count)]),
                              "partition": pa.array([0] * count, pa.int32())})
            producer.send_arrow(table, topic).result()


@contextmanager
def console_of(bootstrap: str, folder: Path):
    """Yield (process, port, seconds until the first page)."""
    port = free_port()
    words = ["console", "--bootstrap-server", bootstrap, "--listener", f"127.0.0.1:{port}",
             "--set", f"console.search.seconds.max={WAIT_S:.0f}"]
    with command_line(words, folder / "console.txt", lambda: Session(port).get("/about"),
                      START_WAIT_S) as (process, seconds):
        yield process, port, seconds


class Session:
    """A browser's session."""

    def __init__(self, port: int):
        self.port = port
        self.cookie = ""

    @contextmanager
    def opened(self, method: str, path: str, form: dict | None = None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        body = urllib.parse.urlencode(form) if form is not None else None
        headers = {"Cookie": self.cookie}
        if body:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            for line in response.headers.get_all("Set-Cookie") or ():
                if line.startswith("pylog="):
                    self.cookie = line.partition(";")[0]
            yield response
            response.close()
        finally:
            connection.close()

    def get(self, path: str) -> str:
        with self.opened("GET", path) as response:
            text = response.read().decode()
            if response.status >= 400:
                sys.exit(f"{path}: {response.status}\n{text}")
            return text


def searched(session: Session, topic: str, first_only: bool = False, **query: str) -> int:
    """Run a search as a stream. Returns the number of matches; with first_only until the first."""
    matches = 0
    path = f"/topics/{topic}/records/stream?{urllib.parse.urlencode(query)}"
    with session.opened("GET", path) as response:
        name = b""
        while line := response.readline():
            if line.startswith(b"event: "):
                name = line[7:].strip()
            elif line.startswith(b"data: ") and name == b"match":
                matches += len(json.loads(line[6:])["rows"])
                if first_only:
                    return matches
            elif line.startswith(b"data: ") and name == b"done":
                if not json.loads(line[6:])["complete"]:
                    sys.exit(f"the search is not complete: {line.decode()}")
                return matches
            elif line.startswith(b"data: ") and name == b"error":
                sys.exit(line.decode())
    sys.exit("the stream ended early")


def downloaded(session: Session, topic: str) -> int:
    """Return the bytes of a download as JSON lines."""
    total = 0
    with session.opened("GET", f"/topics/{topic}/download?format=jsonl") as response:
        while part := response.read(MIB):
            total += len(part)
    return total


def copied(session: Session, topic: str, target: str, records: int) -> None:
    """Copy a topic and wait for the job."""
    page = session.get(f"/topics/{topic}/copy")
    token = page.partition('name="csrf" value="')[2].partition('"')[0]
    form = {"csrf": token, "step": "start", "target": target, "left": f"0:0-{records}"}
    with session.opened("POST", f"/topics/{topic}/copy", form) as response:
        location = response.headers["Location"]
        if response.status != 303:
            sys.exit(response.read().decode())
    with session.opened("GET", f"{location}/stream") as response:
        for line in response:
            if line.startswith(b"event: done"):
                break
    text = session.get(location)
    if f"{records} records were written, 0 failed." not in text:
        sys.exit(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=15_000)
    parser.add_argument("--topics", type=int, default=5000)
    parser.add_argument("--partitions", type=int, default=10, help="of each of these topics")
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--tail-seconds", type=float, default=10)
    parser.add_argument("--soak-seconds", type=float, default=0)
    parser.add_argument("--kafka", action="store_true")
    given = parser.parse_args()
    print(machine_line(), commit_line(), sep="\n")
    with tempfile.TemporaryDirectory(prefix="bench-console-", dir="/var/tmp") as folder:
        kind = KafkaBroker if given.kafka else PylogBroker
        broker = kind(Path(folder, "broker")).start()
        bootstrap = f"127.0.0.1:{broker.port}"
        print(f"cluster: {'Apache Kafka' if given.kafka else 'brokerd'}")
        try:
            if given.records:
                measure(bootstrap, Path(folder), given.records)
            if given.tail_seconds:
                measure_tail(bootstrap, Path(folder), given.tail_seconds)
            if given.users or given.soak_seconds:
                fill_busy(bootstrap)
            if given.users:
                measure_users(bootstrap, Path(folder), given.users)
            if given.soak_seconds:
                soak(bootstrap, Path(folder), given.soak_seconds, given.users or 50)
            if given.groups:
                measure_groups(bootstrap, Path(folder), given.groups)
            if given.topics:
                measure_topics(bootstrap, Path(folder), given.topics, given.partitions)
        finally:
            broker.stop()


def measure(bootstrap: str, folder: Path, records: int) -> None:
    """Print a line for each load."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, 1) for name in ("plain", "zstd", "target")])
    fill(bootstrap, "plain", records, "none")
    fill(bootstrap, "zstd", records, "zstd")
    scale, size = records / 1_000_000, records * VALUE_BYTES
    with console_of(bootstrap, folder) as (process, port, start_s):
        session = Session(port)
        session.get("/topics/plain/records")
        print(f"{'load':<16}{'seconds':>9}{'CPU s':>9}{'MB/s':>9}{'peak MB':>9}  goal")
        line("start", start_s, 0.0, 0, process.pid, 1.0)
        print(f"{'idle':<16}{'':>27}{rss_bytes(process.pid) / 1e6:>9.0f}  "
              f"at most {IDLE_GOAL_BYTES / 1e6:.0f} MB")

        def run(name: str, work: Callable[[], int | None], wanted: int | None = None,
                moved: int = size) -> None:
            cpu_s, began_s = cpu_seconds(process.pid), time.monotonic()
            found = work()
            seconds = time.monotonic() - began_s
            if wanted is not None and found != wanted:
                sys.exit(f"{name}: {found} matches, not {wanted}")
            line(name, seconds, cpu_seconds(process.pid) - cpu_s,
                 found or moved if name == "download" else moved, process.pid, scale)

        run("search, plain", lambda: searched(session, "plain", value="not there",
                                              order="oldest"), 0)
        run("search, zstd", lambda: searched(session, "zstd", value="not there",
                                             order="oldest"), 0)
        run("JSON field", lambda: searched(session, "plain", json="$.customer.id == 1000",
                                           order="oldest"), 0)
        run("newest first", lambda: searched(
            session, "plain", first_only=True, json=f"$.id == {records - records // 100}"), 1,
            size // 100)
        run("download", lambda: downloaded(session, "plain"))
        run("copy", lambda: copied(session, "plain", "target", records))
    memory = max(PEAKS)
    print(f"peak memory {memory / 1e6:.0f} MB, goal at most {MEMORY_GOAL_BYTES / 1e6:.0f} MB: "
          f"{'met' if memory <= MEMORY_GOAL_BYTES else 'MISSED'}")


def measure_groups(bootstrap: str, folder: Path, count: int) -> None:
    """Print the shortest time of ROUNDS for each page of groups."""
    asyncio.run(commit(bootstrap, count))
    print(f"{f'{count:,} groups':<18}{'seconds':>9}{'CPU s':>9}{'peak MB':>9}  goal")
    with console_of(bootstrap, folder) as (process, port, _):
        print_pages(process.pid, port, GROUP_GOALS)


def print_pages(pid: int, port: int, goals: dict[str, tuple[str, float]]) -> None:
    """Print the shortest time of ROUNDS for each page. goals: {name: (path, seconds at most)}."""
    session = Session(port)
    for name, (path, goal_s) in goals.items():
        rounds = []
        for _ in range(ROUNDS):
            cpu_s, began_s = cpu_seconds(pid), time.monotonic()
            session.get(path)
            rounds.append((time.monotonic() - began_s, cpu_seconds(pid) - cpu_s))
        seconds, cpu_s = min(rounds)
        print(f"{name:<18}{seconds:>9.3f}{cpu_s:>9.2f}{peak_rss_bytes(pid) / 1e6:>9.0f}  "
              f"at most {goal_s:g} s: {met(seconds <= goal_s)}", flush=True)


def met(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def measure_topics(bootstrap: str, folder: Path, count: int, partitions: int) -> None:
    """Create topics and print the shortest time of ROUNDS for each page of topics."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        for first in range(0, count, TOPICS_AT_ONCE):
            admin.create_topics([NewTopic(f"topic-{number:05}", partitions)
                                 for number in range(first, min(first + TOPICS_AT_ONCE, count))],
                                timeout=WAIT_S)
    print(f"{f'{count:,} topics × {partitions}':<18}{'seconds':>9}{'CPU s':>9}{'peak MB':>9}  goal")
    with console_of(bootstrap, folder) as (process, port, _):
        print_pages(process.pid, port, TOPIC_GOALS)


def measure_tail(bootstrap: str, folder: Path, seconds: float) -> None:
    """Follow a topic: print the time until a new record is shown, and the console's CPU while
    TAIL_RATE records a second arrive.
    """
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic("followed", 1)])
    print(f"{'follow':<18}{'p50 s':>9}{'p99 s':>9}{'CPU share':>11}  goal")
    with console_of(bootstrap, folder) as (process, port, _), \
            Producer(bootstrap_servers=bootstrap, linger_ms=0, batch_size=BATCH_BYTES) as producer:
        session = Session(port)
        with session.opened("GET", "/topics/followed/records/stream?tail=1") as response:
            response.readline()  # The first event: the stream has read the end offsets.
            waits = []
            for number in range(TAIL_PROBES):
                sent_s = time.monotonic()
                producer.send("followed", b"probe-%d" % number)
                while f"probe-{number}".encode() not in response.readline():
                    pass
                waits.append(time.monotonic() - sent_s)
            reader = threading.Thread(target=_drain, args=(response,), daemon=True)
            reader.start()
            share = _flooded(producer, process.pid, seconds)
    print(f"{'new record':<18}{statistics.median(waits):>9.2f}{max(waits):>9.2f}{'':>11}  "
          "not set: the page is updated each second")
    print(f"{f'{TAIL_RATE:,} records/s':<18}{'':>18}{share:>11.1%}  "
          f"at most {TAIL_CPU_SHARE:.0%} of a core: {met(share <= TAIL_CPU_SHARE)}", flush=True)


def _drain(response: http.client.HTTPResponse) -> None:
    try:
        while response.readline():
            pass
    except (OSError, ValueError, AttributeError):
        pass  # The stream was closed at the end of the load.


def _flooded(producer: Producer, pid: int, seconds: float) -> float:
    """Produce TAIL_RATE records a second. Returns the CPU time of a process, as a share of a core.
    """
    count = TAIL_RATE // TAIL_BATCHES_PER_S
    table = pa.table({"value": pa.array([b"x" * 100] * count, pa.binary()),
                      "partition": pa.array([0] * count, pa.int32())})
    cpu_s, began_s = cpu_seconds(pid), time.monotonic()
    for number in range(int(seconds * TAIL_BATCHES_PER_S)):
        time.sleep(max(0.0, began_s + number / TAIL_BATCHES_PER_S - time.monotonic()))
        producer.send_arrow(table, "followed").result()
    return (cpu_seconds(pid) - cpu_s) / (time.monotonic() - began_s)


def fill_busy(bootstrap: str) -> None:
    """Create the topic and the group that users look at."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic("busy", 4)])
        with Producer(bootstrap_servers=bootstrap) as producer:
            for number in range(STEP):
                producer.send("busy", b'{"id": %d}' % number)
        admin.alter_consumer_group_offsets("busy", {TopicPartition("busy", 0): 0})


def visited(sessions: list[Session], end_s: float) -> list[float]:
    """Let users open USER_PAGES in turn until a time. Returns the seconds of all pages."""
    times: list[float] = []

    def one(number: int) -> None:
        # Each user starts with another page, and opens all of them.
        for place in itertools.count(number):
            if time.monotonic() >= end_s:
                return
            began_s = time.monotonic()
            sessions[number].get(USER_PAGES[place % len(USER_PAGES)])
            times.append(time.monotonic() - began_s)
            time.sleep(SOAK_PAUSE_S)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(sessions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times


def measure_users(bootstrap: str, folder: Path, users: int) -> None:
    """Print the times of pages that many users open at the same time."""
    with console_of(bootstrap, folder) as (process, port, _):
        cpu_s, began_s = cpu_seconds(process.pid), time.monotonic()
        times = visited([Session(port) for _ in range(users)], began_s + USER_SECONDS)
        share = (cpu_seconds(process.pid) - cpu_s) / (time.monotonic() - began_s)
        peak = peak_rss_bytes(process.pid)
    cuts = statistics.quantiles(times, n=100)
    print(f"{f'{users} users':<18}{'p50 s':>9}{'p99 s':>9}{'pages/s':>9}{'CPU share':>11}"
          f"{'peak MB':>9}  goal")
    print(f"{'all pages':<18}{cuts[49]:>9.3f}{cuts[98]:>9.3f}{len(times) / USER_SECONDS:>9.0f}"
          f"{share:>11.0%}{peak / 1e6:>9.0f}  at most {USERS_GOAL_BYTES / 1e6:.0f} MB: "
          f"{met(peak <= USERS_GOAL_BYTES)}", flush=True)


def soak(bootstrap: str, folder: Path, seconds: float, users: int) -> None:
    """Let users open pages for a long time. Exits with an error if memory or descriptors grow."""
    with console_of(bootstrap, folder) as (process, port, _):
        began_s = time.monotonic()
        sessions = [Session(port) for _ in range(users)]
        visited(sessions, began_s + seconds * SOAK_WARM_SHARE)
        before = rss_bytes(process.pid), _descriptors(process.pid)
        times = visited(sessions, began_s + seconds)
        after = rss_bytes(process.pid), _descriptors(process.pid)
    grown = after[0] - before[0], after[1] - before[1]
    is_met = grown[0] <= SOAK_GROWTH_BYTES and grown[1] <= SOAK_GROWTH_FDS_PER_USER * users
    print(f"soak of {seconds:.0f} s, {users} users, {len(times):,} pages: memory "
          f"{before[0] / 1e6:.0f} to {after[0] / 1e6:.0f} MB, "
          f"descriptors {before[1]} to {after[1]}: {met(is_met)}")
    if not is_met:
        sys.exit(1)


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def commit(bootstrap: str, count: int) -> None:
    """Create groups with a committed offset of one topic."""
    room = asyncio.Semaphore(COMMITS_AT_ONCE)
    async with AsyncAdmin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic("groups", 4)])

        async def one(number: int) -> None:
            async with room:
                await admin.alter_consumer_group_offsets(
                    f"group-{number:06}", {TopicPartition("groups", number % 4): 0},
                    timeout=WAIT_S)

        await asyncio.gather(*map(one, range(count)))


PEAKS: list[int] = []


def line(name: str, seconds: float, cpu_s: float, size: int, pid: int, scale: float) -> None:
    """Print one figure beside its goal, which is for 1,000,000 records."""
    text, is_met = GOALS[name]
    PEAKS.append(peak_rss_bytes(pid))
    if name in ("start", "newest first"):
        scale = 1.0
    verdict = "met" if is_met(seconds / scale, round(size / scale)) else "MISSED"
    rate = f"{size / 1e6 / seconds:.0f}" if size else ""
    print(f"{name:<16}{seconds:>9.3f}{cpu_s:>9.2f}{rate:>9}{PEAKS[-1] / 1e6:>9.0f}  "
          f"{text}: {verdict}", flush=True)


if __name__ == "__main__":
    main()
