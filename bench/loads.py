"""The load clients as functions: each runs one program against one broker and returns its results.

Invariants: a client that lost or failed a request raises LoadFailed, it never returns a result;
broker CPU is read around the client's run, so the client's own time does not count.
"""

import json
import os
import re
import socket
import struct
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from bench import kafka
from bench.process import BrokerProcess
from bench.programs import load_client, rdkafka_performance

GB = 1e9
CLIENT_WAIT_S = 900.0
FLOOR_RUNS = 3
TOPIC_WAIT_S = 60.0
COLD_LEAD_S = 0.5
# Milliseconds, and acknowledged messages.
PRODUCED = re.compile(r"^\|\s+(\d+) \|\s+\d+ \|\s+\d+ \|\s+\d+ \|\s+(\d+)", re.M)
CONSUMED = re.compile(r"(\d+) messages \((\d+) bytes\) consumed in (\d+)ms")
JAVA_TOTAL = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\).* ([\d.]+) ms 50th, "
    r"([\d.]+) ms 95th, ([\d.]+) ms 99th, ([\d.]+) ms 99.9th")
JAVA_REQUEST = re.compile(
    r"producer-node-metrics:request-size-avg:\{[^}]*node-id=node-\d[^}]*\}\s*:\s*([\d.]+)")


class LoadFailed(Exception):
    """The client ended with an error or lost requests; the message is the client's."""


def _finish(done: subprocess.CompletedProcess, status_max: int = 0) -> str:
    if not 0 <= done.returncode <= status_max:
        text = (done.stderr + done.stdout).strip()
        raise LoadFailed(f"{Path(done.args[0]).name}: {text[-400:]}")
    return done.stdout


def _run(command: list, broker: BrokerProcess | None = None, status_max: int = 0) -> str:
    return _finish(subprocess.run(
        [str(part) for part in command], text=True, capture_output=True, timeout=CLIENT_WAIT_S,
        env=_environment(broker)), status_max)


def _environment(broker: BrokerProcess | None) -> dict:
    own = broker.access.environment if broker and broker.access else {}
    return {**os.environ, **({"BROKER_PID": str(broker.pid)} if broker else {}), **own}


def native(name: str, broker: BrokerProcess, *args, nice: int = 0) -> dict:
    """Run bench/csrc/`name`.c against `broker` and return its JSON line as a dict."""
    return json.loads(_run(["nice", "-n", nice, load_client(name), broker.load_port, *args],
                           broker))


def _options(broker: BrokerProcess, option: str, of: str) -> list[str]:
    """Return `option name=value` for each setting that the client `of` needs to access the broker.
    """
    settings = getattr(broker.access, of) if broker.access else {}
    return [word for name, value in settings.items() for word in (option, f"{name}={value}")]


def _admin_call(broker: BrokerProcess, call) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    try:
        for future in call(admin).values():
            future.result(TOPIC_WAIT_S)
    except KafkaException as refused:
        raise LoadFailed(f"{broker.name}: {refused}") from refused


def create_topic(broker: BrokerProcess, topic: str, partitions: int,
                 config: dict | None = None) -> None:
    """Create `topic` and wait until each partition's leader accepts requests.

    Its files are removed soon after its deletion: full memory would slow down all later loads.
    """
    new = NewTopic(topic, partitions, 1, config={
        "file.delete.delay.ms": "1000", **(config or {})})
    _admin_call(broker, lambda admin: admin.create_topics([new], operation_timeout=TOPIC_WAIT_S))
    wait_leaders(broker, topic, partitions)


def wait_leaders(broker: BrokerProcess, topic: str, partitions: int) -> None:
    """Block until every partition of `topic` can be read."""
    end_s = time.monotonic() + TOPIC_WAIT_S
    while not _leaders_serve(broker, topic, partitions):
        if time.monotonic() > end_s:
            raise LoadFailed(f"{broker.name}: no leaders for {topic} in {TOPIC_WAIT_S} s")
        time.sleep(0.01)


def _leaders_serve(broker: BrokerProcess, topic: str, partitions: int) -> bool:
    done = subprocess.run(
        [load_client("fetch"), str(broker.port), topic, str(partitions), "1024", "0"],
        capture_output=True, text=True, timeout=TOPIC_WAIT_S)
    return done.returncode == 0


def delete_topic(broker: BrokerProcess, topic: str) -> None:
    _admin_call(broker, lambda admin: admin.delete_topics([topic]))


@contextmanager
def measured(broker: BrokerProcess, figures: dict, key: str, units: str):
    """Add the broker's CPU seconds during the block, per `figures[units]`, as `figures[key]`."""
    before = broker.cpu_seconds()
    yield
    used = broker.cpu_seconds() - before
    figures[key] = used / figures[units]
    del figures[units]


def rdkafka_produce(broker: BrokerProcess, topic: str, size: int, count: int, codec: str) -> dict:
    """Run rdkafka_performance -P with records spread evenly over all partitions.

    Returns mb_s, cpu_s_per_gb (of record values), request_bytes (mean Produce request on the wire).
    """
    figures: dict = {}
    with tempfile.NamedTemporaryFile("r") as stats:
        with measured(broker, figures, "cpu_s_per_gb", "gb"):
            # If statistics are enabled, the program exits with status 1 for unserved messages.
            text = _run([
                rdkafka_performance(), "-P", "-t", topic, "-b", broker.load_bootstrap, "-s", size,
                "-c", count, "-a", -1, "-z", codec, "-u", "-i", 100000, "-T", 200,
                "-Y", f"cat > {stats.name}", "-X", "sticky.partitioning.linger.ms=0",
                "-X", "message.timeout.ms=120000", *_options(broker, "-X", "rdkafka"),
            ], broker, status_max=1)
            totals = PRODUCED.findall(text)
            if not totals or int(totals[-1][1]) != count:
                raise LoadFailed(f"rdkafka_performance: {text[-400:]}")
            figures["gb"] = size * count / GB
        figures["mb_s"] = size * count / 1e6 / (int(totals[-1][0]) / 1e3)
        figures["request_bytes"] = _rdkafka_mean(stats.read(), "txbytes", "Produce")
    return figures


def _rdkafka_mean(text: str, total: str, request: str) -> float:
    """Return mean bytes per request from the last complete line of librdkafka's statistics, 0 if
    none.
    """
    for line in reversed(text.splitlines()):
        try:
            brokers = json.loads(line)["brokers"].values()
        except ValueError:
            continue
        count = sum(broker["req"].get(request, 0) for broker in brokers)
        if count:
            return sum(broker[total] for broker in brokers) / count
    return 0.0


def rdkafka_consume(broker: BrokerProcess, topic: str, partitions: int, size: int,
                    count: int) -> dict:
    """Run rdkafka_performance -C from the beginning of all partitions. Returns fetch_mb_s,
    fetch_cpu_s_per_gb, reply_bytes (mean Fetch response).
    """
    figures: dict = {}
    numbers = [part for number in range(partitions) for part in ("-p", number)]
    with tempfile.NamedTemporaryFile("r") as stats:
        with measured(broker, figures, "fetch_cpu_s_per_gb", "gb"):
            text = _run([
                rdkafka_performance(), "-C", "-t", topic, "-b", broker.load_bootstrap, *numbers,
                "-o", "beginning", "-c", count, "-B", 1000, "-i", 100000, "-T", 200,
                "-Y", f"cat > {stats.name}", *_options(broker, "-X", "rdkafka"),
            ])
            totals = CONSUMED.findall(text)
            if not totals or int(totals[-1][0]) < count:
                raise LoadFailed(f"rdkafka_performance: {text[-400:]}")
            figures["gb"] = size * count / GB
        figures["fetch_mb_s"] = size * count / 1e6 / max(int(totals[-1][2]) / 1e3, 1e-3)
        figures["reply_bytes"] = _rdkafka_mean(stats.read(), "rxbytes", "Fetch")
    return figures


def raw_fetch(broker: BrokerProcess, topic: str, partitions: int, count: int, size: int) -> dict:
    """Run our own reader at full speed, ranges of at most 1 MiB. Returns raw_fetch_mb_s,
    raw_fetch_cpu_s_per_gb, range_bytes, answer_bytes (mean), wire_share (bytes read per byte of
    record values).
    """
    figures: dict = {}
    with measured(broker, figures, "raw_fetch_cpu_s_per_gb", "gb"):
        line = native("fetch", broker, topic, partitions, 1 << 20, 0)
        figures["gb"] = size * count / GB
    figures["raw_fetch_mb_s"] = size * count / 1e6 / max(line["seconds"], 1e-3)
    figures["range_bytes"] = line["range_bytes"]
    figures["answer_bytes"] = line["record_bytes"] / max(1, line["requests"])
    figures["wire_share"] = line["record_bytes"] / (size * count)
    return figures


def java_produce(broker: BrokerProcess, topic: str, size: int, count: int, codec: str) -> dict:
    """Run Kafka's ProducerPerformance with its defaults (idempotent, 16 KiB batches) and acks=all.
    """
    figures: dict = {}
    with measured(broker, figures, "cpu_s_per_gb", "gb"):
        text = _finish(kafka.run_tool(
            "org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server",
            broker.load_bootstrap, "--topic", topic, "--num-records", count, "--record-size", size,
            "--throughput", -1, "--print-metrics", "--command-property", "acks=all",
            f"compression.type={codec}",  # The tool uses only the last of several options.
            *(word for word in _options(broker, "", "java") if word)))
        total = JAVA_TOTAL.search(text)
        if total is None or int(total[1]) != count:
            raise LoadFailed(f"ProducerPerformance: {text[:400]}")
        figures["gb"] = size * count / GB
    figures["mb_s"] = float(total[2]) * size / 1e6
    figures["client_p99_ms"] = float(total[6])
    sizes = [float(found) for found in JAVA_REQUEST.findall(text)]
    figures["request_bytes"] = max(sizes, default=0.0)
    return figures


def java_consume(broker: BrokerProcess, topic: str, size: int, count: int) -> dict:
    """Run Kafka's ConsumerPerformance in a separate group. Returns fetch_mb_s, fetch_cpu_s_per_gb.
    """
    figures: dict = {}
    with measured(broker, figures, "fetch_cpu_s_per_gb", "gb"):
        text = _finish(kafka.run_tool(
            "org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server",
            broker.load_bootstrap, "--topic", topic, "--num-records", count,
            "--group", f"{topic}-readers", "--timeout", 60000, "--hide-header",
            *_options(broker, "--command-property", "java")))
        fields = [field.strip() for field in text.strip().splitlines()[-1].split(",")]
        if len(fields) < 6 or int(fields[4]) < count:
            raise LoadFailed(f"ConsumerPerformance: {text[-400:]}")
        figures["gb"] = size * count / GB
    figures["fetch_mb_s"] = float(fields[3])
    return figures


def raw_produce(broker: BrokerProcess, topic: str, partitions: int, connections: int,
                in_flight: int, batch: int, size: int, seconds: float = 0,
                requests: int = 0, idempotent: bool = False, topics: int = 0) -> dict:
    """Run our own producer. idempotent: one producer per connection, on one partition. topics: if
    set, the number of topics, named `topic` and four digits from 0000.

    Returns cpu_s_per_million_requests, cpu_s_per_gb, requests_s, records_s, p50_us to p999_us of
    the responses, request_bytes; connected_cpu_us (per request, without connection setup),
    connection_cpu_us (per connection).
    """
    before = broker.cpu_seconds()
    more = ["idempotent"] if idempotent else [topics] if topics else []
    line = native("produce", broker, topic, partitions, connections, in_flight, batch, size, -1,
                  seconds, requests, *more)
    used = broker.cpu_seconds() - before
    return {
        **{key: line[key] for key in ("p50_us", "p99_us", "p999_us", "request_bytes")},
        "cpu_s_per_million_requests": used / (line["requests"] / 1e6),
        "connected_cpu_us": line["broker_cpu_s"] / line["requests"] * 1e6,
        "connection_cpu_us": (used - line["broker_cpu_s"]) / connections * 1e6,
        "cpu_s_per_gb": used / (line["record_bytes"] / GB),
        "wire_share": line["request_bytes"] * line["requests"] / line["record_bytes"],
        "requests_s": line["requests"] / line["seconds"],
        "records_s": line["records"] / line["seconds"],
        "mb_s": line["record_bytes"] / 1e6 / line["seconds"],
    }


def latency(broker: BrokerProcess, topic: str, rate: int, seconds: float) -> dict:
    """Measure end to end at `rate` records/s of 100 bytes, acks=all: p50_us, p99_us, p999_us,
    max_us.
    """
    line = native("latency", broker, topic, rate, seconds, 100, -1)
    return {key: line[key] for key in ("p50_us", "p99_us", "p999_us", "max_us")}


def segments(data_dir: Path, topic: str) -> list[Path]:
    """Return the topic's segments after writing them to disk."""
    folders = [entry for entry in data_dir.iterdir() if entry.name.startswith(topic)]
    paths = [path for folder in folders for path in folder.glob("*.log")]
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.close(descriptor)
    return paths


@contextmanager
def cold_reader(source: str | int, topic: str, partitions: int, seconds: float, figures: dict,
                files: list[Path]):
    """Run csrc/cold.c during the block, against the broker on port `source` or the "bare"
    server, for `seconds`. Sets figures["mb_s"] afterwards.
    """
    command = [load_client("cold"), str(source), topic, str(partitions), str(seconds),
               *(str(path) for path in files)]
    reader = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        time.sleep(COLD_LEAD_S)
        yield
        out, err = reader.communicate(timeout=CLIENT_WAIT_S)
    finally:
        reader.kill()
        reader.wait()
    if reader.returncode:
        raise LoadFailed(f"cold reader: {err.strip()}")
    line = json.loads(out)
    figures["mb_s"] = line["record_bytes"] / 1e6 / line["seconds"]


def open_idle_connections(port: int, count: int, tls=None) -> list[socket.socket]:
    """Open connections that have each received one ApiVersions response. tls: an optional
    ssl.SSLContext.
    """
    request = struct.pack(">ihhih", 10, 18, 0, 1, -1)
    streams = []
    for _ in range(count):
        stream = socket.create_connection(("127.0.0.1", port), timeout=10)
        if tls is not None:
            stream = tls.wrap_socket(stream, server_hostname="127.0.0.1")
        stream.sendall(request)
        streams.append(stream)
    for stream in streams:
        size = struct.unpack(">i", _received(stream, 4))[0]
        _received(stream, size)
    return streams


def _received(stream: socket.socket, count: int) -> bytes:
    parts, left = [], count
    while left:
        part = stream.recv(left)
        if not part:
            raise LoadFailed("an idle connection was closed before its first answer")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def floor(kind: str, unit_bytes: float, piece_bytes: int, total_bytes: float,
          folder: Path, certificate: str = "") -> float:
    """Return CPU seconds of a bare loop: per GB for recv and sendfile, per million units for
    answer.

    piece_bytes: length of one write to the file, 0 for the loop's default. certificate: for
    tls-recv and tls-send (PEM, with its key).
    """
    unit = max(1, int(unit_bytes))
    total = total_bytes / 10_000 if kind == "answer" else total_bytes
    program, verb = ("floor_tls", kind.removeprefix("tls-")) if certificate else ("floor", kind)
    command = [load_client(program), verb, unit, int(total), folder / f"floor.{kind}",
               *filter(None, [certificate]), piece_bytes]
    key = "cpu_s_per_million" if kind == "answer" else "cpu_s_per_gb"
    return median(json.loads(_run(command))[key] for _ in range(FLOOR_RUNS))
