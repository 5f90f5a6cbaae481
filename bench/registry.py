"""Measure the schema registry: `python -m bench.registry [--schemas 1000] [--seconds 4]`.

Owns: one broker and one registry, as child processes, with their directories.
Invariants: each figure is printed beside its goal; the client runs in this process; every response
  to a registration is checked.
"""

import argparse
import asyncio
import json
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.brokers import PylogBroker, command_line
from bench.machine import commit_line, machine_line
from bench.process import cpu_seconds, rss_bytes
from pylog.testing.ports import free_port

START_WAIT_S, CONNECTIONS, FIELDS = 60.0, 100, 10
REGISTRATION_CONNECTIONS = (1, 20, 100)
GETS_GOAL, P99_MS_GOAL, REGISTRATIONS_GOAL, IDLE_MB_GOAL = 25_000, 3.0, 1500, 45
END_OF_HEADER = b"\r\n\r\n"
# What a Java client sends.
GET = (b"GET /schemas/ids/%d HTTP/1.1\r\nHost: localhost:8081\r\nUser-Agent: Java\r\nAccept: "
       b"application/vnd.schemaregistry.v1+json, application/vnd.schemaregistry+json, "
       b"application/json\r\nConnection: keep-alive\r\n\r\n")


@contextmanager
def started(bootstrap: str, folder: Path) -> Iterator[tuple[subprocess.Popen, int]]:
    """Yield (process, port) of a registry."""
    port = free_port()
    with command_line(
            ["registry", "serve", "-b", bootstrap, "-l", f"127.0.0.1:{port}"],
            folder / "registry.txt",
            lambda: socket.create_connection(("127.0.0.1", port)).close(),
            START_WAIT_S) as (process, _):
        yield process, port


def _registration(name: str) -> bytes:
    schema = json.dumps({"type": "record", "name": name, "fields": [
        {"name": f"field{number}", "type": "string"} for number in range(FIELDS)]})
    body = json.dumps({"schema": schema}).encode()
    return (b"POST /subjects/%s/versions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
            b"application/json\r\nContent-Length: %d\r\n\r\n" % (name.encode(), len(body))) + body


async def register(port: int, names: list[str], connections: int) -> float:
    """Register one new schema for each name. Return the schemas per second."""
    left = iter(names)

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for name in left:
            writer.write(_registration(name))
            header = (await reader.readuntil(END_OF_HEADER)).lower()
            assert b" 200 " in header, header
            await reader.readexactly(int(header.split(b"content-length: ")[1].split(b"\r")[0]))
        writer.close()

    began_s = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(connections)))
    return len(names) / (time.perf_counter() - began_s)


def get(port: int, ids: int, seconds: float) -> tuple[float, list[float]]:
    """Read schemas by id over CONNECTIONS connections, with one request at a time on each. Return
    (responses per second, sorted latencies in seconds).
    """
    poll, pending, latencies, number = select.epoll(), {}, [], 0
    for _ in range(CONNECTIONS):
        connection = socket.create_connection(("127.0.0.1", port))
        poll.register(connection, select.EPOLLIN)
        connection.send(GET % (number % ids + 1))
        pending[connection.fileno()] = connection, time.perf_counter()
        number += 1
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        for descriptor, _ in poll.poll(1):
            connection, sent_s = pending[descriptor]
            connection.recv(65_536)
            now_s = time.perf_counter()
            latencies.append(now_s - sent_s)
            connection.send(GET % (number * 7 % ids + 1))
            pending[descriptor] = connection, now_s
            number += 1
    for connection, _ in pending.values():
        connection.close()
    return len(latencies) / seconds, sorted(latencies)


def _row(name: str, result: str, goal: str, is_met: bool) -> None:
    print(f"{name:32}{result:46}{goal}: {'met' if is_met else 'MISSED'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.registry",
                                     description=__doc__.partition("\n")[0])
    parser.add_argument("--schemas", type=int, default=1000, help="registered in each round")
    parser.add_argument("--seconds", type=float, default=4.0, help="of reads")
    options = parser.parse_args()
    print(machine_line(), commit_line(), sep="\n")
    with tempfile.TemporaryDirectory() as folder, \
            PylogBroker(Path(folder) / "broker") as broker, \
            started(f"127.0.0.1:{broker.port}", Path(folder)) as (process, port):
        idle_mb = rss_bytes(process.pid) / 1e6
        _row("memory, idle", f"{idle_mb:.0f} MB", f"at most {IDLE_MB_GOAL} MB",
             idle_mb <= IDLE_MB_GOAL)
        for connections in REGISTRATION_CONNECTIONS:
            names = [f"R{connections}_{number}" for number in range(options.schemas)]
            before_s = cpu_seconds(process.pid)
            rate = asyncio.run(register(port, names, connections))
            cpu_ms = (cpu_seconds(process.pid) - before_s) / len(names) * 1e3
            _row(f"register, {connections} connections",
                 f"{rate:,.0f}/s, {cpu_ms:.2f} ms CPU each",
                 f"at least {REGISTRATIONS_GOAL:,}/s", rate >= REGISTRATIONS_GOAL)
        before_s = cpu_seconds(process.pid)
        rate, latencies = get(port, options.schemas, options.seconds)
        used_s = cpu_seconds(process.pid) - before_s
        p99_ms = latencies[len(latencies) * 99 // 100] * 1e3
        _row(f"get by id, {CONNECTIONS} connections",
             f"{rate:,.0f}/s, {rate * options.seconds / used_s:,.0f} per CPU s",
             f"at least {GETS_GOAL:,}/s", rate >= GETS_GOAL)
        _row("", f"p99 {p99_ms:.2f} ms", f"at most {P99_MS_GOAL:g} ms", p99_ms <= P99_MS_GOAL)
        print(f"memory, {len(REGISTRATION_CONNECTIONS) * options.schemas:,} schemas: "
              f"{rss_bytes(process.pid) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
