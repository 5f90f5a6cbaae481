"""Clients of the loads: an asyncio client that decodes, and native programs that do not.

Owns: its connections, the files of prepared frames while a program runs.
Invariants: every wait is bounded: a broker that does not respond fails the load, not the run;
  broker CPU is read around the program's run.
"""

import asyncio
import json
import os
import struct
import subprocess
import tempfile
import time

from bench.loads import LoadFailed
from bench.programs import load_client
from pylog.protocol import codec, messages

CLIENT = "bench"
ANSWER_WAIT_S = 60.0
PROGRAM_WAIT_S = 240.0
TOPICS_WAIT_S = 360.0
RETRIABLE = (14, 15, 16)
NO_CHECK = "NONE"


class Connection:
    """One connection; responses arrive in the order of the requests."""

    def __init__(self, reader, writer):
        self._reader = reader
        self._writer = writer
        self._number = 0

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))

    async def ask(self, key: int, version: int, message):
        """Send one request and return the decoded response."""
        body = await self.ask_bytes(frame(key, version, message))
        _, at = codec.decode_response_header(key, version, body)
        return codec.decode_response(key, version, body, at)

    async def ask_bytes(self, request: bytes) -> bytes:
        """Send a request frame and return the response without its size prefix."""
        self._writer.write(request)
        async with asyncio.timeout(ANSWER_WAIT_S):
            size, = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(size)

    def close(self) -> None:
        self._writer.close()


def frame(key: int, version: int, message) -> bytes:
    """Encode a request with its size prefix."""
    return codec.request_frame(key, version, 1, CLIENT, message)


def run(coroutine, seconds_max: float = TOPICS_WAIT_S):
    """Run a coroutine and return its result. Raises LoadFailed after `seconds_max`."""
    async def limited():
        try:
            return await asyncio.wait_for(coroutine, seconds_max)
        except TimeoutError as late:
            raise LoadFailed("no answer in time") from late
    return asyncio.run(limited())


def program(broker, name: str, *args, seconds_max: float = PROGRAM_WAIT_S) -> dict:
    """Run bench/csrc/`name`.c against a broker. Returns its JSON line and `cpu_s` of the broker,
    connection setup included.
    """
    before = broker.cpu_seconds()
    done = subprocess.run([load_client(name), *map(str, (broker.port, *args))],
                          capture_output=True, text=True, timeout=seconds_max,
                          env={**os.environ, "BROKER_PID": str(broker.pid)})
    used = broker.cpu_seconds() - before
    if done.returncode:
        raise LoadFailed(f"{name}: {(done.stderr + done.stdout).strip()[-400:]}")
    return {**json.loads(done.stdout), "cpu_s": used}


def replay(broker, frames: list, connections: int, in_flight: int, *, requests: int = 0,
           seconds: float = 0, rate: float = 0, error_at=NO_CHECK) -> dict:
    """Run csrc/replay.c with prepared frames."""
    with tempfile.NamedTemporaryFile() as file:
        file.writelines(frames)
        file.flush()
        return program(broker, "replay", connections, in_flight, requests, seconds, rate, error_at,
                       file.name)


async def found(connection: Connection, group: str = "g") -> None:
    """Wait until the coordinator of a group is available."""
    end_s = time.monotonic() + ANSWER_WAIT_S
    while time.monotonic() < end_s:
        answer = await connection.ask(10, 3, messages.FindCoordinatorRequest(key=group))
        if answer.error_code == 0:
            answer = await connection.ask(9, 5, messages.OffsetFetchRequest(group_id=group))
            if answer.error_code not in RETRIABLE:
                return
        await asyncio.sleep(0.002)
    raise LoadFailed("no coordinator")


async def create_topics(connection: Connection, names: list, partitions: int) -> None:
    """Create topics, a hundred at a time, and wait until their partitions have leaders."""
    new = messages.CreateTopicsRequest
    for first in range(0, len(names), 100):
        some = names[first:first + 100]
        answer = await connection.ask(19, 5, new(timeout_ms=50_000, topics=[new.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1) for name in some]))
        codes = {row.error_code for row in answer.topics}
        if not codes <= {0, 36}:
            raise LoadFailed(f"topics are refused with {codes}")
    ask = messages.MetadataRequest
    end_s = time.monotonic() + TOPICS_WAIT_S
    # Kafka lists a topic before its partitions have leaders.
    while time.monotonic() < end_s:
        answer = await connection.ask(3, 4, ask(topics=[
            ask.MetadataRequestTopic(name=name) for name in names]))
        if all(len(topic.partitions) == partitions and
               all(row.error_code == 0 for row in topic.partitions) for topic in answer.topics):
            return
        await asyncio.sleep(0.05)
    raise LoadFailed("partitions without leaders")
