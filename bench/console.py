"""Measure the web console: `python -m bench.console [--records 1000000] [--groups 15000]`.

A count of 0 omits its loads.

Owns: one broker and one console, as child processes, with their directories.
Invariants: each figure is printed beside its goal; time and CPU are measured from the request until
  the last byte; every search verifies the number of its matches.
"""

import argparse
import asyncio
import http.client
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from bench.brokers import CHECKOUT, PylogBroker
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
MEMORY_GOAL_BYTES, IDLE_GOAL_BYTES = 250 * 10**6, 60 * 10**6


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
    command = [sys.executable, "-c", "from pylog.cli import pylog; pylog()", "console",
               "--bootstrap-server", bootstrap, "--listener", f"127.0.0.1:{port}",
               "--set", f"console.search.seconds.max={WAIT_S:.0f}"]
    began_s = time.monotonic()
    with open(folder / "console.txt", "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=CHECKOUT,
                                   env={**os.environ, "PYTHONPATH": str(CHECKOUT)})
    try:
        while True:
            try:
                Session(port).get("/about")
                break
            except OSError:
                if process.poll() is not None or time.monotonic() - began_s > START_WAIT_S:
                    sys.exit((folder / "console.txt").read_text())
                time.sleep(0.01)
        yield process, port, time.monotonic() - began_s
    finally:
        process.terminate()
        process.wait(START_WAIT_S)


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
    given = parser.parse_args()
    print(machine_line(), commit_line(), sep="\n")
    with tempfile.TemporaryDirectory(prefix="bench-console-", dir="/var/tmp") as folder:
        broker = PylogBroker(Path(folder, "broker")).start()
        try:
            if given.records:
                measure(f"127.0.0.1:{broker.port}", Path(folder), given.records)
            if given.groups:
                measure_groups(f"127.0.0.1:{broker.port}", Path(folder), given.groups)
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
        session = Session(port)
        for name, (path, goal_s) in GROUP_GOALS.items():
            rounds = []
            for _ in range(ROUNDS):
                cpu_s, began_s = cpu_seconds(process.pid), time.monotonic()
                session.get(path)
                rounds.append((time.monotonic() - began_s, cpu_seconds(process.pid) - cpu_s))
            seconds, cpu_s = min(rounds)
            print(f"{name:<18}{seconds:>9.3f}{cpu_s:>9.2f}"
                  f"{peak_rss_bytes(process.pid) / 1e6:>9.0f}  at most {goal_s:g} s: "
                  f"{'met' if seconds <= goal_s else 'MISSED'}", flush=True)


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
