"""The scenario "exactly-once": a transactional worker and its broker are killed repeatedly.

In the end, the output contains everything exactly once.

Owns: the worker's process, which leads its process group; its folder.
Invariants: mid-round kills: processes die by SIGKILL when part of a round's input is processed;
  another client reads the output, with read_committed.
"""

import functools
import json
import os
import random
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections import defaultdict
from pathlib import Path

from bench.kafka import java_command
from bench.process import die_with_parent
from pylog.testing.ports import free_port
from tests.client.reading import read_topic
from tests.compat.flows import wait_for
from tests.wire import raw
from tests.wire.talk import append, create_topic

ROUNDS = ("worker", "broker", "worker", "worker and broker")
WAIT_S = 150.0
COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
CONNECT = "org.apache.kafka.connect.cli.ConnectDistributed"
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
            # Detect dead members of Streams groups as fast as those of classic groups.
            "group.streams.min.session.timeout.ms": "6000",
            "group.streams.session.timeout.ms": "6000",
            "group.streams.min.heartbeat.interval.ms": "1000",
            "group.streams.heartbeat.interval.ms": "1000"}


class Worker:
    """Copies its input to the topic `goal` until it is killed. Subclasses define the program."""

    def __init__(self, command: list[str], broker, topic: str, folder: Path):
        self.program = command
        self.broker, self.topic, self.folder = broker, topic, folder
        self.goal = f"{topic}-goal"
        self.fed = 0
        self.process: subprocess.Popen | None = None
        create_topic(broker.port, self.goal, 1)

    def feed(self, count: int) -> None:
        """Add the next numbers to the input."""
        numbers = range(self.fed, self.fed + count)
        append(self.broker.port, self.topic, raw.batch([
            raw.record(b"", str(number).encode(), offset_delta=delta)
            for delta, number in enumerate(numbers)]))
        self.fed += count

    def command(self) -> list[str]:
        raise AssertionError("each worker has its own")

    def run(self) -> None:
        """Start the worker unless it is running."""
        if self.process is not None and self.process.poll() is None:
            return
        with open(self.folder / "worker.log", "ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self.folder, start_new_session=True, preexec_fn=die_with_parent)

    def kill(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def through(self) -> int:
        """Return how much of the input is committed; a larger number means duplicates."""
        return len(self._rows())

    def is_past(self, count: int) -> bool:
        return self.through() > count

    def _rows(self) -> list:
        return read_topic(self.broker.bootstrap, self.goal, 1)[0]

    def check(self) -> None:
        found = [int(value) for _, _, value, _, _ in self._rows()]
        assert found == list(range(self.fed)), _difference(found, self.fed)


def _difference(found: list[int], count: int) -> str:
    missing = sorted(set(range(count)) - set(found))
    twice = sorted({number for number in found if found.count(number) > 1})
    return f"{len(found)} of {count}: missing {missing[:5]}, twice {twice[:5]}, or out of order"


class Copier(Worker):
    """Kafka's own program for its system tests. It exits at the end of its input."""

    def command(self) -> list[str]:
        return java_command(
            COPIER, "--input-topic", self.topic, "--input-partition", 0,
            "--output-topic", self.goal, "--broker-list", self.broker.bootstrap,
            "--consumer-group", f"{self.topic}-group", "--transaction-size", 40,
            "--transaction-timeout", 10_000, "--transactional-id", f"{self.topic}-id",
            "--enable-random-aborts", "--use-group-metadata", heap="128m")


class Words(Worker):
    """Kafka Streams counts words and writes each count of each word once."""

    LINE = b"all words are words"
    PER_LINE = 4

    def feed(self, count: int) -> None:
        for partition in range(2):
            append(self.broker.port, self.topic, raw.batch([
                raw.record(b"", self.LINE, offset_delta=number)
                for number in range(count // 2)]), partition)
        self.fed += count // 2 * 2

    def command(self) -> list[str]:
        return [*self.program, self.broker.bootstrap, "exactly-once", self.topic]

    def through(self) -> int:
        return len(self._rows()) // self.PER_LINE

    def check(self) -> None:
        counts = defaultdict(list)
        for _, key, value, _, _ in self._rows():
            counts[key].append(int.from_bytes(value, "big"))
        for word, times in ((b"all", 1), (b"words", 2), (b"are", 1)):
            assert counts[word] == list(range(1, self.fed * times + 1)), \
                f"{word!r}: {_difference([one - 1 for one in counts[word]], self.fed * times)}"


class Lines(Worker):
    """Kafka Connect's file source, on one distributed worker."""

    def __init__(self, command: list[str], broker, topic: str, folder: Path):
        super().__init__(command, broker, topic, folder)
        self.lines = folder / "lines.txt"
        self.lines.touch()
        self.port = free_port()
        self.has_connector = False
        settings = {
            "bootstrap.servers": broker.bootstrap, "group.id": f"{topic}-connect",
            "exactly.once.source.support": "enabled", "offset.flush.interval.ms": 200,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "listeners": f"http://127.0.0.1:{self.port}", "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 1000, "plugin.discovery": "service_load",
            "offset.storage.partitions": 1, "status.storage.partitions": 1}
        for name in ("config", "offset", "status"):
            settings[f"{name}.storage.topic"] = f"{topic}-{name}"
            settings[f"{name}.storage.replication.factor"] = 1
        self.settings = folder / "connect.properties"
        self.settings.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def feed(self, count: int) -> None:
        with open(self.lines, "a") as lines:
            lines.writelines(f"{number}\n" for number in range(self.fed, self.fed + count))
        self.fed += count

    def command(self) -> list[str]:
        given = java_command(CONNECT, self.settings, heap="256m")
        given[given.index("-cp") + 1] += f":{self.program[-1]}/*"
        return given

    def run(self) -> None:
        """Start the worker and create its connector once; later starts find it."""
        super().run()
        if not self.has_connector:
            wait_for("the connector", self._connected, WAIT_S)
            self.has_connector = True

    def _connected(self) -> bool:
        connector = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": "1", "file": str(self.lines), "topic": self.goal, "batch.size": "100",
            "exactly.once.support": "required"}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/connectors/lines/config", method="PUT",
            data=json.dumps(connector).encode(), headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=20):
                return True
        except urllib.error.HTTPError as refusal:
            told = refusal.read().decode()
            assert refusal.code in (404, 409, 500, 503), told
            return False
        except OSError:
            return False


WORKERS = {"Kafka Streams": Words, "Kafka Streams, streams groups": Words,
           "Kafka Connect": Lines, "Java, message copier": Copier}


def exactly_once(worker: Worker, chance: random.Random, count: int = 600,
                 rounds: tuple[str, ...] = ROUNDS) -> str:
    """Feed `count` records in each round, whose name gives the process to kill. Raises
    AssertionError.
    """
    broker = worker.broker
    try:
        for dying in rounds:
            before = worker.through()
            worker.feed(count)
            worker.run()
            # Keeps mid-round kills: part of the output exists.
            wait_for("results", functools.partial(worker.is_past, before), WAIT_S)
            time.sleep(chance.uniform(0, 0.5))
            if "broker" in dying:
                broker.kill()
            if "worker" in dying:
                worker.kill()
            if "broker" in dying:
                broker.start()

        def through() -> bool:
            worker.run()
            return worker.through() >= worker.fed

        wait_for("all results", through, WAIT_S)
        worker.check()
    finally:
        worker.kill()
    return f"killed {len(rounds)} times, {worker.fed} records through"
