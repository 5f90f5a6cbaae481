"""A broker as a child process: spawn, readiness, CPU seconds, memory, end.

Owns: the child's process handle and its output file.
Invariants: a child never outlives the thread that started it (parent-death signal).
Source: proc(5) for smaps_rollup and status, clock_getcpuclockid(3) for the CPU clock.
"""

import ctypes
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CPU_CLOCK_OF_PROCESS = 2
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class BrokerFailed(Exception):
    """The broker ended, or did not respond in time; the message contains the end of its output."""


def cpu_seconds(pid: int) -> float:
    """Return user plus system seconds of all threads of `pid`, running and ended, to the
    nanosecond.

    The process's CPU clock counts the same as utime + stime of /proc/PID/stat, with more precision.
    """
    return time.clock_gettime((~pid << 3) | CPU_CLOCK_OF_PROCESS)


def rss_bytes(pid: int) -> int:
    """Return the resident set of `pid` in bytes, file maps included."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def anonymous_bytes(pid: int) -> int:
    """Return the resident anonymous memory of `pid` in bytes, without the page cache."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def peak_rss_bytes(pid: int) -> int:
    """Return the largest resident set of `pid` since its start, or forget_peak_rss(), in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def forget_peak_rss(pid: int) -> None:
    """Reset the maximum that peak_rss_bytes() returns."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def die_with_parent() -> None:
    """Kill this child when its parent ends. Runs between fork and exec."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def api_versions_answered(port: int, wait_s: float = 1.0, host: str = "127.0.0.1") -> bool:
    """Return True if one ApiVersions v0 request to `host`:`port` gets a response within `wait_s`.
    """
    request = struct.pack(">hhih", 18, 0, 7, -1)
    try:
        with socket.create_connection((host, port), timeout=wait_s) as stream:
            stream.sendall(struct.pack(">i", len(request)) + request)
            head = stream.recv(10)
            return len(head) == 10 and struct.unpack(">iih", head)[1:] == (7, 0)
    except OSError:
        return False


@dataclass(frozen=True)
class Access:
    """Settings of clients that use TLS or a login.

    listener: its name. rdkafka, java: settings of these clients. environment: of our own programs
    (bench/csrc/secure.h).
    """

    listener: str
    rdkafka: Mapping[str, str] = field(default_factory=dict)
    java: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


class BrokerProcess:
    """Common to both brokers: a context manager around one child process.

    A subclass sets `name`, implements `_start()` and sets `process`, `port` and `output`.
    listeners: ports besides PLAINTEXT, by security protocol. access: settings of load clients; None
    for plain text.
    """

    name = "broker"
    host = "127.0.0.1"

    def __init__(self, data_dir, port: int = 0, overrides: dict | None = None):
        self.data_dir = Path(data_dir)
        self.wanted_port = port
        self.port = port
        self.overrides = dict(overrides or {})
        self.listeners: dict[str, int] = {}
        self.access: Access | None = None
        self.process: subprocess.Popen | None = None
        self.enter: Callable[[], None] | None = None  # Moves the child to its machine.
        self.output = self.data_dir.parent / f"{self.data_dir.name}.{self.name}.out"
        self.spawned_at_s = 0.0
        self.answered_at_s = 0.0

    def start(self) -> "BrokerProcess":
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._start()
        return self

    def _start(self) -> None:
        raise AssertionError(f"{type(self).__name__} does not start anything")

    def __enter__(self) -> "BrokerProcess":
        return self.start()

    def __exit__(self, *exception) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def load_port(self) -> int:
        return self.listeners[self.access.listener] if self.access else self.port

    @property
    def load_bootstrap(self) -> str:
        return f"{self.host}:{self.load_port}"

    @contextmanager
    def reached(self, access: Access):
        """Use this access for loads inside the block."""
        before, self.access = self.access, access
        try:
            yield self
        finally:
            self.access = before

    def listener_addresses(self) -> str:
        """Return the setting `listeners`."""
        return ",".join(f"{name}://{self.host}:{port}"
                        for name, port in {"PLAINTEXT": self.port, **self.listeners}.items())

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    @property
    def start_s(self) -> float:
        """Return seconds from spawn to the first ApiVersions response."""
        return self.answered_at_s - self.spawned_at_s

    def spawn(self, command: list[str], **options) -> None:
        """Start `command`, output appended to `self.output`."""
        with open(self.output, "ab") as sink:
            self.spawned_at_s = time.monotonic()
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
                preexec_fn=self._begin, **options,
            )

    def _begin(self) -> None:
        """Run in the child between fork and exec."""
        die_with_parent()
        if self.enter is not None:
            self.enter()

    def wait_answer(self, wait_s: float, pause_s: float = 0.005) -> None:
        """Block until the broker answers ApiVersions. Raises BrokerFailed after `wait_s` or if it
        ends.
        """
        assert self.process is not None, self.name
        end_s = time.monotonic() + wait_s
        while time.monotonic() < end_s:
            if self.process.poll() is not None:
                status = self.process.returncode
                raise BrokerFailed(f"{self.name} ended with {status}:\n{self.tail()}")
            if api_versions_answered(self.port, host=self.host):
                self.answered_at_s = time.monotonic()
                return
            time.sleep(pause_s)
        self.kill()
        raise BrokerFailed(f"{self.name} gave no answer in {wait_s} s:\n{self.tail()}")

    def tail(self, bytes_max: int = 4000) -> str:
        """Return the end of the broker's output."""
        data = self.output.read_bytes() if self.output.exists() else b""
        return data[-bytes_max:].decode(errors="replace")

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def rss_bytes(self) -> int:
        return rss_bytes(self.pid)

    def peak_rss_bytes(self) -> int:
        return peak_rss_bytes(self.pid)

    def stop(self, wait_s: float = 60.0) -> int | None:
        """Send SIGTERM and wait; SIGKILL after `wait_s`. Returns the exit status, None if not
        started.
        """
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(wait_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
