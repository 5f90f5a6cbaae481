"""Check a cluster from this machine: every advertised address, and the state of partitions.

Owns: its own connections during a check.
Invariants: an address is tested as a client would use it: resolve, connect, send a request, and
  compare the broker id with the advertised one.
Source: common mistakes in advertised.listeners.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
import time
from typing import Any

from pylog.client.network.connection import BufferPool, Connection
from pylog.client.errors import KafkaError
from pylog.client.config.settings import servers
from pylog.config import ConfigError, listeners
from pylog.config.listeners import is_loopback
from pylog.config.entries import DEFAULT
from pylog.protocol.counts import counted
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from pylog.protocol.reasons import reason_of
from pylog.security.tls import key_stores
from pylog.tools.cli import cluster_queries, metrics_endpoint
from pylog.tools.cluster import replica_state
from pylog.tools.cli.finding import FAIL, OK, SKIP, WARN, Finding
from pylog.tools.cli.output import size, span

ANSWER_WARN_S = 0.25
FREE_SHARE_WARN = 0.15
CERTIFICATE_DAYS_WARN = 30
EXPLAINED_MAX = 3  # The most severe partitions.
# Settings that decide if acks=all waits for a disk; the value is the component that owns the disk.
FLUSHES = {"replica.flush.before.fetch.enable": "every in-sync replica",
           "log.flush.acks.all.enable": "the broker, for a partition with one replica in sync"}
ADVERTISE = "set advertised.listeners of the broker to an address that this machine can reach"


async def check_cluster(cluster: Any, bootstrap: str) -> tuple[list[Finding], list[str]]:
    """Return (findings, log directories on this machine)."""
    metadata = await cluster_queries.all_topics(cluster)
    nodes = sorted(metadata.nodes.values())
    found = [Finding("bootstrap", bootstrap, OK,
                     f"cluster {metadata.cluster_id} with {counted(len(nodes), 'broker')}")]
    is_remote = not all(is_loopback(host) for host, _ in servers(bootstrap.split(",")))
    for rows in await asyncio.gather(*[_broker(cluster, node, is_remote) for node in nodes]):
        found += rows
    found += [await _controller(cluster, metadata),
              *_quorum(await metrics_endpoint.quorum(cluster))]
    found += [*await _missing(cluster, metadata), *_partitions(metadata),
              *await _explained(cluster, metadata)]
    dirs, local = await _log_dirs(cluster)
    return [*found, *dirs], local


async def _broker(cluster: Any, node: Any, is_remote: bool) -> list[Finding]:
    """Test one advertised address as a client would use it."""
    name = f"broker {node.id} at {node.host}:{node.port}"
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(
            node.host, node.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return [Finding("listener", name, FAIL, f"the name does not resolve: {reason_of(error)}",
                        f"{ADVERTISE}, or give the name an address (DNS, /etc/hosts)")]
    found = []
    if is_remote and is_loopback(node.host):
        found.append(Finding("listener", name, WARN, "loopback is advertised to the network",
                             ADVERTISE))
    begun = time.perf_counter()
    try:
        connection = await Connection.open(node.host, node.port, cluster.settings, BufferPool())
    except KafkaError as error:
        address = infos[0][4][0]
        return [*found, Finding("listener", name, FAIL, f"{address}: {error}",
                                f"{ADVERTISE}; check that the broker runs and that no firewall "
                                f"blocks it")]
    elapsed_s = time.perf_counter() - begun
    if connection.secure:
        shown = connection.transport.get_extra_info("ssl_object").getpeercert(True)
        found.append(certificate(name, key_stores.expiry(shown or b""),
                                 datetime.datetime.now(datetime.UTC).date()))
    try:
        found += await _settings(connection, node, name, elapsed_s)
    except KafkaError as error:
        found.append(Finding("listener", name, WARN, f"connected, then: {error}",
                             "check the broker's log"))
    finally:
        connection.close()
    return found


def certificate(name: str, expires: str, today: datetime.date) -> Finding:
    """Report how long a broker's certificate is valid. expires: expiry date, "" if unknown."""
    if not expires:
        return Finding("certificate", name, SKIP, "it does not show when it ends")
    days = (datetime.date.fromisoformat(expires) - today).days
    late = days < CERTIFICATE_DAYS_WARN
    return Finding("certificate", name, WARN if late else OK,
                   f"good until {expires}, {days} days from now",
                   "replace the file at ssl.keystore.location; brokerd loads it without a restart"
                   if late else "")


async def _settings(connection: Connection, node: Any, name: str,
                    elapsed_s: float) -> list[Finding]:
    """Check that the advertised broker responds, and that it accepts this client."""
    resource = messages.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=4, resource_name=str(node.id),
        configuration_keys=["node.id", "listeners", "listener.security.protocol.map",
                            "controller.listener.names", "metrics.listener", "metrics.token",
                            *FLUSHES])
    response = await connection.send(messages.DescribeConfigsRequest(resources=[resource]))
    result = response.results[0]
    if result.error_code == ErrorCode.INVALID_REQUEST:
        # A broker does not report the settings of another broker.
        return [Finding("listener", name, FAIL, "another broker responds there: "
                        f"{result.error_message or result.error_code}", ADVERTISE)]
    slow = elapsed_s > ANSWER_WARN_S
    reached = Finding("listener", name, WARN if slow else OK, f"reached in {span(elapsed_s)}",
                      "check DNS and the network's latency" if slow else "")
    if result.error_code:
        return [reached, Finding("settings", name, SKIP, cluster_queries.error_code_text(
            result.error_code, result.error_message, "they are not reported"))]
    return [reached,
            _check_authentication(name, {row.name: row.value or "" for row in result.configs}),
            *_metrics(name, {row.name: row for row in result.configs}),
            *_acknowledgements(name, {row.name: row.value for row in result.configs})]


def _acknowledgements(name: str, values: dict[str, str | None]) -> list[Finding]:
    """Report what acks=all guarantees on this broker. Empty if the broker lacks these settings."""
    if not any(setting in values for setting in FLUSHES):
        return []
    cached = [f"{setting}=false: acks=all means in the page cache of {where}"
              for setting, where in FLUSHES.items() if values.get(setting) == "false"]
    if not cached:
        return [Finding("acknowledgements", name, OK,
                        "acks=all means flushed on every in-sync replica")]
    return [Finding("acknowledgements", name, WARN,
                    "; ".join([*cached, "a power loss can lose acknowledged records"]),
                    "set it to true and restart the broker, unless you accept that loss")]


def _metrics(name: str, rows: dict[str, Any]) -> list[Finding]:
    """Check if the metrics endpoint is open to every client that can reach it."""
    listener = rows.get("metrics.listener")
    if listener is None or not listener.value:
        return []
    host = listener.value.rpartition(":")[0].strip("[]")
    token = rows.get("metrics.token")
    if is_loopback(host) or token is not None and token.config_source != DEFAULT:
        return [Finding("metrics endpoint", name, OK, "asks for a token" if token is not None and
                        token.config_source != DEFAULT else "on loopback only")]
    return [Finding("metrics endpoint", name, WARN,
                    f"{listener.value}: every client that can reach it can read all metrics",
                    "set metrics.token, or bind it to loopback")]


def _check_authentication(name: str, values: dict[str, str]) -> Finding:
    """Check if listeners that other machines can reach lack authentication."""
    try:
        protocols = listeners.parse_protocol_map(
            values.get("listener.security.protocol.map", ""),
            tuple(values.get("controller.listener.names", "").split(",")))
        bound = listeners.parse("listeners", tuple(
            entry for entry in values.get("listeners", "").split(",") if entry), protocols)
    except ConfigError as error:
        return Finding("open listeners", name, SKIP, str(error))
    found = [repr(entry) for entry in bound
             if not entry.is_loopback and entry.protocol == "PLAINTEXT"]
    if not found:
        return Finding("open listeners", name, OK, "none")
    return Finding("open listeners", name, WARN,
                   f"{', '.join(found)}: every client that can reach it may connect without "
                   f"authentication", "bind it to loopback or to a network of trusted hosts, or "
                                      "give "
                   "it SSL or SASL")


async def _controller(cluster: Any, metadata: Any) -> Finding:
    silence = await replica_state.controller_silence(cluster)
    if silence:
        return Finding("controller", "", FAIL, f"it does not respond: {silence}. The state of "
                       "the partitions may be outdated", "connect to another broker, or check the "
                       "controllers' logs for a missing majority")
    if metadata.controller in metadata.nodes:
        return Finding("controller", "", OK, f"broker {metadata.controller}")
    return Finding("controller", "", FAIL, "there is none: metadata cannot change",
                   "check the controllers' logs for a missing majority")


def _quorum(members: list[dict[str, Any]] | None) -> list[Finding]:
    """Check the quorum members."""
    if members is None:
        return [Finding("quorum", "", SKIP, "no controller with a metrics endpoint reports one")]
    return [Finding("quorum", row["address"], OK, "it leads" if row["leads"] else "it follows")
            if row["answers"] else Finding(
                "quorum", row["address"], FAIL, row["reason"],
                "start it and check its log; without a majority, metadata cannot change")
            for row in members]


async def _missing(cluster: Any, metadata: Any) -> list[Finding]:
    """Report brokers that are offline."""
    absent = await cluster_queries.absent_brokers(cluster, metadata)
    return [Finding("broker", str(node), FAIL,
                    f"it is not running, and has replicas of {count} partitions",
                    "start it, or move its replicas to other brokers: "
                    f"pylog cluster drain {node}") if count else
            Finding("broker", str(node), WARN, "it is not running; it has no replicas",
                    f"start it, or if it will not return: pylog cluster forget {node}")
            for node, count in absent.items()]


async def _explained(cluster: Any, metadata: Any) -> list[Finding]:
    """Explain the state of the most severe partitions."""
    bad = sorted((part.leader >= 0, part.topic, part.partition)
                 for topic in metadata.topics.values() for part in topic.partitions.values()
                 if part.leader < 0 or len(part.isr) < len(part.replicas))[:EXPLAINED_MAX]
    responses = await asyncio.gather(*[replica_state.facts_of(cluster, topic, partition)
                                       for _, topic, partition in bad], return_exceptions=True)
    found = []
    for (has_leader, _, _), facts in zip(bad, responses, strict=True):
        if not isinstance(facts, replica_state.Facts):
            # The topic was deleted, or no broker responds; other findings report that.
            continue
        state, *why = replica_state.sentences(facts)
        found.append(Finding("partition", facts.name, WARN if has_leader else FAIL, state,
                             " ".join(why) or "check the log of its leader"))
    return found


def _partitions(metadata: Any) -> list[Finding]:
    parts = [part for topic in metadata.topics.values() for part in topic.partitions.values()]
    offline = [part for part in parts if part.leader < 0]
    under = [part for part in parts if len(part.isr) < len(part.replicas)]
    elsewhere = [part for part in parts if part.leader >= 0 and part.replicas
                 and part.leader != part.replicas[0]]
    rows = (
        ("offline", offline, FAIL, "start the brokers that have them: pylog topics partitions "
         "--offline"),
        ("under-replicated", under, WARN,
         "start the brokers that lag, or reduce their load: pylog topics "
         "partitions --under-replicated"),
        ("led by another replica", elsewhere, WARN, "elect preferred leaders: the load is "
         "uneven until then"),
    )
    return [Finding("partitions", what, bad if some else OK,
                    f"{len(some)} of {len(parts)}{_names(some)}", advice if some else "")
            for what, some, bad, advice in rows]


def _names(parts: list[Any]) -> str:
    if not parts:
        return ""
    shown = ", ".join(f"{part.topic}-{part.partition}" for part in parts[:3])
    return f" ({shown}{', ...' if len(parts) > 3 else ''})"


async def _log_dirs(cluster: Any) -> tuple[list[Finding], list[str]]:
    local: list[str] = []
    rows, failed = await cluster_queries.log_dirs(cluster)
    found = [Finding("log directory", f"broker {broker}", SKIP, f"it is not reported: {reason}")
             for broker, reason in failed.items()]
    for row in rows:
        subject = f"broker {row['broker']} {row['path']}"
        if row["error"]:
            found.append(Finding("log directory", subject, FAIL, row["error"],
                                 "check the disk and the broker's log, then restart it"))
            continue
        if os.path.isdir(row["path"]) and await _is_here(cluster, row["broker"]):
            local.append(row["path"])
        total, free = row["total_bytes"], row["usable_bytes"]
        if total > 0:
            low = free < FREE_SHARE_WARN * total
            found.append(Finding("log directory", subject, WARN if low else OK,
                                 f"{counted(len(row['partitions']), 'partition')}, {size(free)} "
                                 f"of {size(total)} free",
                                 "shorten retention, or add a disk" if low else ""))
    return found, local


async def _is_here(cluster: Any, broker: int) -> bool:
    """Return True if the broker's address belongs to this machine. An equal path proves nothing."""
    node = cluster.metadata.nodes[broker]
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(
            node.host, node.port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in infos:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind((address[0], 0))
                return True
            except OSError:
                continue
    return False
