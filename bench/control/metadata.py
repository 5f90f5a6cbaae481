"""Metadata requests: all topics, a few topics, unknown topics, and a storm beside producers.

Owns: nothing.
Invariants: the first response of each kind is decoded and counted; the storm sends requests at a
  fixed rate, regardless of the broker.
"""

import json
import subprocess
import tempfile
import time
from statistics import median

from bench.control.wire import Connection, create_topics, frame, program, replay, run
from bench.loads import LoadFailed
from bench.process import die_with_parent
from bench.programs import load_client
from pylog.protocol import codec, messages

TOPICS, PARTITIONS = 1000, 10
FEW = 10
CLIENTS = 1000
SECONDS = 5.0
UNKNOWN = 100_000
UNKNOWN_TURNS = 3
STORM_PER_S = 1000
STORM_WAIT_S = 60.0
LATENCY_PER_S = 500
LATENCY_SECONDS = 4.0
STORM_TURNS = 3
VERSION = 12


def _ask(names: list | None) -> bytes:
    new = messages.MetadataRequest
    topics = None if names is None else [new.MetadataRequestTopic(name=name) for name in names]
    return frame(3, VERSION, new(allow_auto_topic_creation=False, topics=topics))


def _names() -> list:
    return [f"metadata-{number:04}" for number in range(TOPICS)]


def _few() -> list:
    """Return one request for each of a hundred kinds of clients, each with ten different topics."""
    names = _names()
    return [_ask(names[first:first + FEW]) for first in range(0, TOPICS, FEW)]


def _decoded(body: bytes):
    _, at = codec.decode_response_header(3, VERSION, body)
    return codec.decode_response(3, VERSION, body, at)


async def _prepare(port: int) -> int:
    """Create the topics and return the size of a response that describes all of them."""
    connection = await Connection.open(port)
    await create_topics(connection, _names(), PARTITIONS)
    body = await connection.ask_bytes(_ask(None))
    counts = [len(topic.partitions) for topic in _decoded(body).topics]
    connection.close()
    if counts.count(PARTITIONS) < TOPICS:
        raise LoadFailed(f"{len(counts)} topics, {sum(counts)} partitions are listed")
    return len(body)


def clients(broker) -> dict:
    """Run 1,000 clients in a closed loop that request all topics, or ten topics each. Then run a
    storm.
    """
    begin_s, before = time.perf_counter(), broker.cpu_seconds()
    answer_bytes = run(_prepare(broker.port))
    figures = {"create_s": time.perf_counter() - begin_s,
               "create_cpu_s": broker.cpu_seconds() - before, "answer_bytes": answer_bytes}
    for name, frames in (("all", [_ask(None)]), ("few", _few())):
        # Run the same untimed load first, to compile code and grow buffers.
        replay(broker, frames, CLIENTS, 1, seconds=SECONDS)
        done = replay(broker, frames, CLIENTS, 1, seconds=SECONDS)
        figures[f"{name}_per_s"] = done["requests_s"]
        figures[f"{name}_cpu_us"] = done["cpu_s"] / done["requests"] * 1e6
        figures[f"{name}_p99_ms"] = done["p99_us"] / 1000
    figures["rss_mb"] = broker.peak_rss_bytes() / 1e6
    figures.update(storm(broker))
    return figures


def unknown(broker) -> dict:
    """Request 100,000 topics that do not exist three times, and return the last result."""
    async def ask():
        connection = await Connection.open(broker.port)
        body = await connection.ask_bytes(_ask([f"no-such-topic-{n}" for n in range(UNKNOWN)]))
        connection.close()
        return body

    for _ in range(UNKNOWN_TURNS):
        begin_s, before = time.perf_counter(), broker.cpu_seconds()
        body = run(ask())
        took_s, used = time.perf_counter() - begin_s, broker.cpu_seconds() - before
    codes = [topic.error_code for topic in _decoded(body).topics]
    if codes != [3] * UNKNOWN:
        raise LoadFailed(f"{len(codes)} answers with {set(codes)}")
    return {"s": took_s, "cpu_s": used}


def storm(broker) -> dict:
    """Produce at a fixed rate, with and without 1,000 Metadata requests a second.

    The variants alternate and the median counts, so interference affects all of them equally.
    """
    run(_prepare(broker.port))
    stem = f"storm-{time.monotonic_ns()}"
    run(_storm_topics(broker.port, stem))
    # Untimed: compiles the code of producing and fetching.
    _latency(broker, f"{stem}-warm", 2 * LATENCY_SECONDS)
    samples, failures = {}, []
    for turn in range(STORM_TURNS):
        for name, frames in STORMS.items():
            try:
                found = _turn(broker, f"{stem}-{name}-{turn}", frames and frames())
            except (LoadFailed, subprocess.TimeoutExpired) as failure:
                # A storm that overloads the broker is a valid result: keep the other values.
                failures.append(f"storm of {name}: {failure}")
                continue
            for key, value in found.items():
                samples.setdefault(f"{name}_{key}", []).append(value)
    return {**{key: median(values) for key, values in samples.items()}, "failures": failures}


STORMS = {"alone": None, "few": _few, "all": lambda: [_ask(None)]}


def _latency(broker, topic: str, seconds: float) -> dict:
    return program(broker, "latency", topic, LATENCY_PER_S, seconds, 100, -1,
                   seconds_max=STORM_WAIT_S)


def _turn(broker, topic: str, frames: list | None) -> dict:
    """Return one producer's percentiles, during a storm of `frames` if there are any."""
    beside = None if frames is None else _Storm(broker, frames)
    try:
        done = _latency(broker, topic, LATENCY_SECONDS)
        figures = {"p50_us": done["p50_us"], "p99_us": done["p99_us"]}
        if beside is not None:
            latency = beside.end()
            figures.update(storm_per_s=latency["requests_s"], storm_p99_ms=latency["p99_us"] / 1000)
        return figures
    finally:
        if beside is not None:
            beside.close()


async def _storm_topics(port: int, stem: str) -> None:
    connection = await Connection.open(port)
    await create_topics(connection, [f"{stem}-warm", *[
        f"{stem}-{name}-{turn}" for name in STORMS for turn in range(STORM_TURNS)]], 1)
    connection.close()


class _Storm:
    """Runs the storm in a separate process, a little longer than the producer runs."""

    def __init__(self, broker, frames: list):
        self._file = tempfile.NamedTemporaryFile()
        self._file.writelines(frames)
        self._file.flush()
        self._process = subprocess.Popen(
            [load_client("replay"), *map(str, (
                broker.port, CLIENTS, 1, 0, LATENCY_SECONDS + 2, STORM_PER_S, "NONE",
                self._file.name))],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        time.sleep(0.5)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        self._file.close()

    def end(self) -> dict:
        out, err = self._process.communicate(timeout=STORM_WAIT_S)
        if self._process.returncode:
            raise LoadFailed(f"storm: {err.strip()[-400:]}")
        return json.loads(out)
