"""The loads of bench.vs under TLS, logins and ACLs.

Owns: SECURED, the table of these loads by name.
Invariants: as in bench.scenarios: a load treats both brokers the same.
"""

import json
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench import credentials, loads
from bench.control.wire import Connection, found
from bench.control.wire import run
from bench.placement import pin, unpinned
from bench.process import Access, BrokerProcess
from bench.programs import load_client
from bench.scenarios import JAVA_BATCH_BYTES, PARTITIONS, RATE_PER_S, SETUPS, Scenario, Side

RECORD_BYTES = 1024
ACLS, ACLS_MANY = 1_000, 10_000
ACL_TURNS = 4
AT_ONCE = 32
STORM, STORM_PAUSE_S, STORM_NICE = 1_000, 0.5, 19
LOGINS_S, LOGIN_THREADS = 1_000, 64
MEMBERS, HEARTBEAT_MS, GROUP_WAIT_S = 500, 1_000, 90
SETTLE_S = 3.0


def secured_broker(side: Side, name: str, acls: int | None = None) -> BrokerProcess:
    """Return the long-lived secured broker `name`, started and warmed up at first use."""
    broker = side.running.get(name)
    if broker is None or not broker.alive():
        with unpinned():
            broker = credentials.start(side.fresh(dict(SETUPS["cached"][side.name])), side.folder,
                                       acls)
            side.running[name] = broker
            side.warm_up(broker)
            with broker.reached(credentials.tls(side.folder)):
                _there_and_back(side, broker, "none")
                loads.native("handshakes", broker, side.scale.handshakes, AT_ONCE, "full")
    pin(broker.pid, side.placement.broker)
    return broker


def _there_and_back(side: Side, broker: BrokerProcess, codec: str) -> None:
    count = side.scale.native_bytes[100] // 200
    topic = side.topic()
    loads.create_topic(broker, topic, PARTITIONS)
    loads.rdkafka_produce(broker, topic, 100, count, codec)
    loads.raw_fetch(broker, topic, PARTITIONS, count, 100)
    loads.delete_topic(broker, topic)


def _bulk(client: str) -> Callable[[Side], dict]:
    def run(side: Side) -> dict:
        broker = secured_broker(side, "tls")
        java = client == "java"
        sizes = side.scale.java_bytes if java else side.scale.native_bytes
        count = sizes[RECORD_BYTES] // RECORD_BYTES
        topic = side.topic()
        loads.create_topic(broker, topic, PARTITIONS)
        with broker.reached(credentials.tls(side.folder)):
            produce = loads.java_produce if java else loads.rdkafka_produce
            figures = produce(broker, topic, RECORD_BYTES, count, "none")
            if java:
                figures |= loads.java_consume(broker, topic, RECORD_BYTES, count)
            else:
                figures |= loads.rdkafka_consume(broker, topic, PARTITIONS, RECORD_BYTES, count)
            figures |= loads.raw_fetch(broker, topic, PARTITIONS, count, RECORD_BYTES)
        loads.delete_topic(broker, topic)
        return figures
    return run


def _latency_of(side: Side, broker: BrokerProcess, access: Access | None) -> dict:
    topic = side.topic()
    loads.create_topic(broker, topic, 1)
    if access is None:
        figures = loads.latency(broker, topic, RATE_PER_S, side.scale.latency_s)
    else:
        with broker.reached(access):
            figures = loads.latency(broker, topic, RATE_PER_S, side.scale.latency_s)
    loads.delete_topic(broker, topic)
    return figures


def _latency(side: Side) -> dict:
    """Measure end to end in plain text without an authorizer, then with TLS, SCRAM and ACLs."""
    plain = _latency_of(side, secured_broker(side, "tls"), None)
    secured = _latency_of(side, secured_broker(side, "acls", ACLS),
                          credentials.tls_login(side.folder))
    return secured | {f"plain_{key}": value for key, value in plain.items()}


def _acls(side: Side) -> dict:
    """Send one-record requests as an authenticated user: without an authorizer, and with many ACLs.
    """
    brokers = {"none": secured_broker(side, "tls"),
               "acls": secured_broker(side, "acls-many", ACLS_MANY)}
    topics = {name: side.topic() for name in brokers}
    taken: dict[str, list[float]] = {name: [] for name in brokers}
    for name, broker in brokers.items():
        loads.create_topic(broker, topics[name], PARTITIONS)
    for turn in range(2 * ACL_TURNS):
        name = ("none", "acls", "acls", "none")[turn % 4]
        with brokers[name].reached(credentials.login()):
            figures = loads.raw_produce(
                brokers[name], topics[name], PARTITIONS, 8, 1, 1, 100,
                requests=side.scale.one_record_requests)
        taken[name].append(figures["cpu_s_per_million_requests"])
    for name, broker in brokers.items():
        loads.delete_topic(broker, topics[name])
    return {f"{name}_cpu_s": median(values) for name, values in taken.items()}


@contextmanager
def _storms(broker: BrokerProcess):
    """Run storms of simultaneous handshakes, one after the other, during the block.

    Their client runs at low priority: other clients must wait for the broker, not for a client that
    verifies a thousand certificates.
    """
    ending, failures = threading.Event(), []

    def storm() -> None:
        while not ending.is_set():
            try:
                loads.native("handshakes", broker, STORM, STORM, "full", nice=STORM_NICE)
            except loads.LoadFailed as failure:
                failures.append(failure)
                return
            ending.wait(STORM_PAUSE_S)

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
    if failures:
        raise failures[0]


def _handshakes_of(side: Side, broker: BrokerProcess, kind: str) -> dict:
    before = broker.cpu_seconds()
    line = loads.native("handshakes", broker, side.scale.handshakes, AT_ONCE, kind)
    if line["resumed"] != (line["handshakes"] if kind == "resumed" else 0):
        raise loads.LoadFailed(f"{line['resumed']} of {line['handshakes']} resumed")
    return {f"{kind}_per_core": line["handshakes"] / (broker.cpu_seconds() - before),
            f"{kind}_s": line["handshakes"] / line["seconds"]}


def _handshakes(side: Side) -> dict:
    """Measure handshakes per core, full and resumed, and latency during storms of them."""
    broker, access = secured_broker(side, "tls"), credentials.tls(side.folder)
    figures = {}
    with broker.reached(access):
        figures |= _handshakes_of(side, broker, "full")
        try:
            figures |= _handshakes_of(side, broker, "resumed")
        except loads.LoadFailed:
            # Kafka issues tickets irregularly and accepts only some of them.
            if side.name == "pylog":
                raise
    figures |= {f"alone_{key}": value
                for key, value in _latency_of(side, broker, access).items()}
    with broker.reached(access), _storms(broker):
        figures |= _latency_of(side, broker, access)
    return figures


def _idle(side: Side) -> dict:
    """Measure memory of a TLS connection that has received one response."""
    broker = credentials.start(side.fresh(), side.folder)
    try:
        warm = loads.open_idle_connections(broker.listeners["SSL"], 10,
                                           credentials.client_context(side.folder))
        time.sleep(SETTLE_S)
        idle = broker.rss_bytes()
        streams = loads.open_idle_connections(broker.listeners["SSL"], side.scale.connections,
                                              credentials.client_context(side.folder))
        time.sleep(SETTLE_S)
        grown = broker.rss_bytes() - idle
        for stream in warm + streams:
            stream.close()
    finally:
        broker.stop()
    return {"connection_kib": grown / 1024 / len(streams)}


async def _coordinated(port: int) -> None:
    connection = await Connection.open(port)
    await found(connection)
    connection.close()


def _held_group(broker: BrokerProcess, seconds: float, meanwhile: Callable[[], dict]) -> dict:
    """Return heartbeat percentiles of a large group, and the result of `meanwhile`."""
    command = [load_client("group"), broker.port, MEMBERS, HEARTBEAT_MS, GROUP_WAIT_S,
               f"held-{time.monotonic_ns()}", seconds]
    held = subprocess.Popen([str(part) for part in command], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)
    try:
        assert held.stderr is not None
        if held.stderr.readline() != "stable\n":
            raise loads.LoadFailed("group: not stable")
        beside = meanwhile()
        out, err = held.communicate(timeout=GROUP_WAIT_S)
    finally:
        held.kill()
        held.wait()
    if held.returncode:
        raise loads.LoadFailed(f"group: {err.strip()}")
    line = json.loads(out)
    return {key: line[key] for key in ("p50_us", "p99_us", "p999_us")} | beside


def _logins(side: Side) -> dict:
    """Run SCRAM logins beside a large group, and measure its heartbeats with and without them."""
    broker, seconds = secured_broker(side, "tls"), side.scale.hold_s

    def storm() -> dict:
        before = broker.cpu_seconds()
        with broker.reached(credentials.login()):
            line = loads.native("logins", broker, LOGINS_S, seconds - 1, LOGIN_THREADS)
        return {"logins_s": line["logins"] / line["seconds"], "login_p50_us": line["p50_us"],
                "login_p99_us": line["p99_us"],
                "login_cpu_us": (broker.cpu_seconds() - before) / line["logins"] * 1e6}

    run(_coordinated(broker.port))
    alone = _held_group(broker, seconds, dict)
    return _held_group(broker, seconds, storm) | {
        f"alone_{key}": value for key, value in alone.items()}


def _floors(piece: int, fetch_unit: str) -> tuple[tuple[str, str, str, int], ...]:
    return (("cpu_s_per_gb", "tls-recv", "request_bytes", piece),
            ("raw_fetch_cpu_s_per_gb", "tls-send", "answer_bytes", 0),
            ("fetch_cpu_s_per_gb", "tls-send", fetch_unit, 0))


SECURED: dict[str, Scenario] = {
    "tls-1k-rdkafka": Scenario(_bulk("rdkafka"), _floors(0, "reply_bytes"), writes=True),
    "tls-1k-java": Scenario(_bulk("java"), _floors(JAVA_BATCH_BYTES, "answer_bytes"), writes=True),
    "tls-e2e": Scenario(_latency),
    "tls-acls": Scenario(_acls),
    "tls-handshakes": Scenario(_handshakes),
    "tls-logins": Scenario(_logins),
    "tls-idle": Scenario(_idle, pinned=False),
}


def certificate(kind: str, folder: Path) -> str:
    """Return the certificate of the bare loop `kind`, "" if it needs none."""
    return credentials.files(folder).server if kind.startswith("tls-") else ""
