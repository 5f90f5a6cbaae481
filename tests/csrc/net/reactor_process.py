"""The reactor with a stub of serve (reactor_server.c), as a separate process with any sanitizer."""

import os
import resource
import struct
import subprocess
from pathlib import Path

from tests.csrc import programs
from tests.csrc.programs import SANITIZED
from tests.wire import raw

PARTS = ["input", "events", "ip_connections", "quotas", "slab", "timers", "mailbox", "time_slice"]
SOURCES = {
    "reactor_units": [*PARTS, "io_pool"],
    "fetch_session_units": ["fetch_sessions", "offset_map"],
    "reactor_server": [*PARTS, "reactor", "handshake", "reactor_pool", "listener", "accept",
                       "connection", "connection_list", "eviction", "auth_gate", "requests",
                       "receive", "output", "plain_transport", "frames", "heartbeat_cache",
                       "response", "io_pool", "request_timing"],
}


def built(sanitizer: str, name: str = "reactor_server") -> Path:
    """Build a program of this folder, linked with the reactor's sources."""
    return programs.built(name, sanitizer, tuple(f"*/{source}.c" for source in SOURCES[name]))


def do(letter: str, amount: int = 0, rest: bytes = b"") -> bytes:
    """Return the body that triggers an action of the stub; see reactor_server.c."""
    return letter.encode() + struct.pack(">I", amount) + rest


class Connection(raw.Connection):
    """A connection. `ask` sends one of the stub's requests and returns its response."""

    def ask(self, key: int, letter: str, amount: int = 0, rest: bytes = b"") -> bytes:
        self.correlation_id += 1
        self.post(key, self.correlation_id, letter, amount, rest)
        return self.take(self.correlation_id)

    def post(self, key: int, correlation_id: int, letter: str, amount: int = 0,
             rest: bytes = b"") -> None:
        self.send(request(key, correlation_id, letter, amount, rest))

    def take(self, correlation_id: int) -> bytes:
        payload = self.receive()
        got = struct.unpack_from(">i", payload)[0]
        assert got == correlation_id, (got, correlation_id)
        return payload[4:]


VERSIONS = {raw.PRODUCE: 9, raw.FETCH: 12, raw.METADATA: 9}


def request(key: int, correlation_id: int, letter: str, amount: int = 0,
            rest: bytes = b"") -> bytes:
    return raw.frame(raw.header(key, VERSIONS[key], correlation_id) + do(letter, amount, rest))


class ReactorServer:
    """A context manager. At its end the process must exit cleanly without leaks."""

    def __init__(self, sanitizer: str = "address,undefined", port: str = "0",
                 descriptors_max: int = 4096, **options: int):
        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, descriptors_max))

        named = [f"{name}={value}" for name, value in options.items()]
        self.process = subprocess.Popen(
            [str(built(sanitizer)), port, *named], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, preexec_fn=limit, env=SANITIZED)
        self.port = int(self.process.stdout.readline())

    def command(self, letter: str) -> int:
        """Make the stub act on its reactors (reactor_server.c); return the number of reactors."""
        self.process.stdin.write(letter)
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def connect(self, wait_s: float = 10.0) -> Connection:
        return Connection(self.port, wait_s)

    def stats(self) -> dict[str, int]:
        with self.connect() as connection:
            return parsed(connection.ask(raw.METADATA, "s").decode())

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> dict[str, int]:
        """Stop the process, which checks itself for leaks; return its last statistics."""
        out, err = self.process.communicate(timeout=60)
        assert (self.process.returncode, err) == (0, ""), err
        first, _, rest = out.partition("\n")
        assert first == "clean", out
        return parsed(rest)

    def __enter__(self) -> "ReactorServer":
        return self

    def __exit__(self, kind, *rest) -> None:
        if self.process.returncode is not None:
            return
        if kind is not None:
            self.process.kill()
            self.process.communicate()
            return
        last = self.stop()
        assert last["connections"] == last["requests_in_flight"] == last["input_bytes"] == 0, last


def parsed(text: str) -> dict[str, int]:
    return {name: int(value) for name, _, value in (line.partition("=") for line in text.split())}
