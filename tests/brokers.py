"""Brokers as child processes for tests: ours, and Apache Kafka through bench.kafka.

Owns: the child process and the files of its output.
Invariants: a child never outlives the test process (parent-death signal).
"""

import ctypes
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from pylog.testing.ports import free_port

READY = re.compile(r"brokerd ready address=(\S+):(\d+) .*ms=(\d+)")
START_WAIT_S = 30.0
STOP_WAIT_S = 30.0
ALARMS = ("Traceback (most recent call last)", "AddressSanitizer", "ThreadSanitizer",
          "runtime error:", "Assertion `", "assertion failed", "Fatal Python error")
ALARM_LEVEL = re.compile(r"level=(error|critical)|\b(ERROR|FATAL)\b")
REPOSITORY = Path(__file__).resolve().parent.parent
# `make tsan-brokerd`: run brokers from a tree that was built with a sanitizer.
BROKERD_TREE = os.environ.get("BROKERD_TREE", str(REPOSITORY))
BROKERD_PRELOAD = os.environ.get("BROKERD_PRELOAD", "")
_LIBC = ctypes.CDLL(None)


class BrokerDied(Exception):
    """The broker ended or never became ready; the message contains the end of its output."""


def _die_with_parent() -> None:
    """Kill this child when its parent ends. Runs between fork and exec."""
    _LIBC.prctl(1, signal.SIGKILL)


def rss_bytes(pid: int) -> int:
    """Return the resident set of a process in bytes."""
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Return user and system seconds of a process, which do not depend on other load."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Brokerd:
    """One brokerd with a separate data directory below `root`.

    overrides: settings by Kafka's names. environment: added to ours. preexec: runs in the child
    before exec (limits). The port is chosen at the first start and reused by later ones, so that
    clients find a restarted broker.
    """

    name = "pylog"

    def __init__(self, root, overrides: dict | None = None, environment: dict | None = None,
                 data_dir=None, preexec=None):
        self.root = Path(root)
        self.root.mkdir(parents=True, exist_ok=True)
        self.data_dir = Path(data_dir) if data_dir else self.root / "data"
        self.overrides = dict(overrides or {})
        self.environment = dict(environment or {})
        self.preexec = preexec
        self.arguments: list[str] = []  # in addition to the settings
        self.port = 0
        self.ready_ms = 0
        self.output = self.root / "brokerd.out"
        self.log = self.root / "brokerd.log"
        self.process: subprocess.Popen | None = None

    def _command(self) -> list[str]:
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}", "log.dirs": str(self.data_dir),
            **self.overrides,
        }
        command = [sys.executable, "-m", "pylog"]
        for key, value in settings.items():
            command += ["--override", f"{key}={value}"]
        return command + self.arguments

    def _before_exec(self) -> None:
        _die_with_parent()
        if self.preexec is not None:
            self.preexec()

    def spawn(self) -> None:
        """Start the process without waiting for it."""
        self.port = self.port or free_port()
        self.output.write_bytes(b"")
        environment = {**os.environ, "PYTHONPATH": BROKERD_TREE, **self.environment}
        if BROKERD_PRELOAD:
            own = environment.get("LD_PRELOAD", "")
            environment["LD_PRELOAD"] = f"{BROKERD_PRELOAD} {own}".strip()
        with open(self.output, "ab") as out, open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=out, stderr=log,
                cwd=self.root, env=environment, preexec_fn=self._before_exec,
            )

    def start(self, wait_s: float = START_WAIT_S) -> "Brokerd":
        """Spawn and block until the ready line. Raises BrokerDied."""
        self.spawn()
        end_s = time.monotonic() + wait_s
        while time.monotonic() < end_s:
            found = READY.search(self.output.read_text(errors="replace"))
            if found:
                self.port = int(found[2])
                self.ready_ms = int(found[3])
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.005)
        status = self.process.poll()
        self.kill()
        raise BrokerDied(f"not ready (exit status {status}):\n{self.tail()}")

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def rss_bytes(self) -> int:
        return rss_bytes(self.pid)

    def tail(self, bytes_max: int = 4000) -> str:
        text = self.output.read_text(errors="replace")
        if self.log.exists():
            text += self.log.read_text(errors="replace")
        return text[-bytes_max:]

    def alarms(self) -> list[str]:
        """Return lines of its log that a broker must never write, regardless of client input."""
        text = self.output.read_text(errors="replace") + self.log.read_text(errors="replace")
        return [line for line in text.splitlines()
                if any(mark in line for mark in ALARMS) or ALARM_LEVEL.search(line)]

    def stop(self) -> int:
        """Send SIGTERM and wait; return the exit status. A broker that does not stop is a failure.
        """
        assert self.process is not None, "not started"
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerDied(f"did not stop within {STOP_WAIT_S} s:\n{self.tail()}") from None

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            # A change within a clock tick of the last append may get the same ctime, by which a
            # start detects foreign writes.
            time.sleep(0.01)

    def __enter__(self) -> "Brokerd":
        return self.start()

    def __exit__(self, *exception) -> None:
        self.kill()


class Kafka:
    """Apache Kafka with the same interface as Brokerd."""

    name = "kafka"

    def __init__(self, root, overrides: dict | None = None):
        from bench.kafka import KafkaBroker

        self.broker = KafkaBroker(Path(root) / "kafka", 0, overrides)
        self.data_dir = Path(root) / "kafka"

    def start(self) -> "Kafka":
        self.broker.start()
        return self

    port = property(lambda self: self.broker.port)
    pid = property(lambda self: self.broker.pid)
    bootstrap = property(lambda self: self.broker.bootstrap)

    def alive(self) -> bool:
        return self.broker.process.poll() is None

    def rss_bytes(self) -> int:
        return rss_bytes(self.pid)

    def alarms(self) -> list[str]:
        return []

    def stop(self) -> int:
        return self.broker.stop()

    def kill(self) -> None:
        self.broker.kill()

    def __enter__(self) -> "Kafka":
        return self.start()

    def __exit__(self, *exception) -> None:
        self.kill()


def answers(port: int, wait_s: float = 2.0) -> bool:
    """Return True if a new connection gets an ApiVersions response within `wait_s`."""
    request = struct.pack(">ihhih", 10, 18, 0, 7, -1)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=wait_s) as stream:
            stream.sendall(request)
            head = stream.recv(10)
            return len(head) == 10 and struct.unpack(">iih", head)[1:] == (7, 0)
    except OSError:
        return False
