"""Checks of `pylog cluster status`: reachability and health of every component.

Owns: connections to controllers during a check.
Invariants: an unreachable component becomes a sentence with its name and the reason; a fact that no
  API reports is listed as not checked and never counts as good.
Source: Kafka's DescribeQuorum, DescribeCluster (KIP-919) and DescribeConfigs; /cluster of
  monitor.server for members of etcd or ZooKeeper and for clocks.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pylog.client.network.cluster import Cluster
from pylog.client.network.connection import BufferPool, Connection
from pylog.client.errors import AuthenticationError, KafkaError
from pylog.config import internal_topics
from pylog.config.listeners import TLS_PROTOCOLS
from pylog.peer.controllers import Controller, voters_of
from pylog.monitor.overview import quorum_troubles
from pylog.protocol import messages
from pylog.protocol.counts import counted
from pylog.protocol.reasons import reason_of
from pylog.security.tls import key_stores
from pylog.client.admin import metadata_quorum, metrics_endpoint
from pylog.tools.cli import config_resources
from pylog.tools.cluster import cluster_checks
from pylog.tools.cli.finding import WARN
from pylog.tools.cli.output import size, span
from pylog.tools.cli.session import ToolError

SAMPLE_S = 1.0
CLOCK_MS_MAX = 1000
FREE_SHARE_MIN = 0.05
OUTER_QUORUMS = ("quorum.etcd.endpoints", "quorum.zookeeper.connect")
VOTERS = "controller.quorum.voters"
ETCD, ZOOKEEPER = OUTER_QUORUMS
ETCD_PROTOCOL, ZOOKEEPER_TLS = "quorum.etcd.security.protocol", "quorum.zookeeper.ssl.enable"
SETTINGS = [VOTERS, *OUTER_QUORUMS, ETCD_PROTOCOL, ZOOKEEPER_TLS, "listeners",
            "advertised.listeners", "controller.listener.names", "listener.security.protocol.map",
            *internal_topics.FACTORS.values()]
ENDPOINT_CONTROLLERS, ENDPOINT_VERSION = 2, 1  # The endpoint type of DescribeCluster.


class Checked(NamedTuple):
    """troubles: sentences, the most severe first. unchecked: facts that could not be checked.
    members: of etcd or ZooKeeper, None if no metrics endpoint reports them. controllers, clocks:
    how many were reached and compared.
    """

    troubles: list[str]
    unchecked: list[str]
    members: list[dict[str, Any]] | None
    controllers: int
    clocks: int


async def check(cluster: Cluster, found: Mapping[str, Any], metrics: str | None,
                token: str | None) -> Checked:
    """Check what the overview `found` does not: controllers, quorum, certificates, clocks, space.

    Takes at least SAMPLE_S. Unreachable components become sentences; unknown facts are listed.
    """
    begun = time.monotonic()
    brokers = [row["broker"] for row in found["brokers"] if row["status"] == "ok"]
    reported, denied = await _settings(cluster, brokers)
    settings = list(reported.values())
    controllers = await _controllers(cluster, settings, found["cluster_id"])
    await asyncio.sleep(SAMPLE_S - (time.monotonic() - begun))
    # Read now: a page can be half a second old.
    pages, clocks = await _pages(cluster, brokers, metrics, token)
    members = next((page["quorum"] for page in pages if isinstance(page.get("quorum"), list)), None)
    troubles = quorum_troubles(members or [])
    if found["quorum"] is not None:
        later, reason = await quorum(cluster)
        troubles += changes(found["quorum"], later, reason)
        troubles += [] if members else quorum_troubles(
            _members_with_progress(found["quorum"], later))
    certificates = _read_certificates(cluster, brokers)
    troubles += [
        *_keeper(found["quorum"], settings, members), *controllers.troubles, *denied,
        *space_troubles(found["log_dirs"]),
        *factor_troubles(found["internal_factors"], settings,
                         len(found["brokers"]) + len(found["missing_brokers"])),
        *_certificates(certificates), *clock_troubles(clocks)]
    without = [str(broker) for broker in brokers if broker not in clocks]
    own = cluster.settings["security.protocol"]
    unchecked = [*controllers.unchecked, *unread_certificates(reported, own, {
        broker: cluster.metadata.nodes[broker].port for broker in certificates}),
        *unread_quorum_certificates(settings, own)]
    if found["hidden_topics"]:
        unchecked.append(f"the partitions of {counted(found['hidden_topics'], 'topic')} that this "
                         "user may not describe")
    if without and len(brokers) > 1:
        unchecked.append(f"the clocks of brokers {', '.join(without)}: no metrics endpoint "
                         "(metrics.listener) reports them")
    unchecked += [f"free space of {row['path']} of broker {row['broker']}: it is not reported"
                  for row in found["log_dirs"] if not row["error"] and row["total_bytes"] <= 0]
    return Checked(troubles, unchecked, members, controllers.reached, len(clocks))


async def _settings(cluster: Cluster, brokers: Iterable[int]
                    ) -> tuple[dict[int, dict[str, str]], list[str]]:
    """Return ({broker: {setting: value}}, sentences about the brokers that did not report)."""
    ended = await asyncio.gather(*[
        config_resources.described(cluster, config_resources.BROKER, str(broker), SETTINGS)
        for broker in brokers], return_exceptions=True)
    found: dict[int, dict[str, str]] = {}
    denied = []
    for broker, rows in zip(brokers, ended):
        if isinstance(rows, (KafkaError, ToolError)):
            denied.append(f"broker {broker} does not report its settings, so its controllers "
                          f"cannot be checked: {rows}")
        elif isinstance(rows, BaseException):
            raise rows
        else:
            found[broker] = {row["name"]: row["value"] or "" for row in rows}
    return found, denied


# ---- the quorum ---------------------------------------------------------------------------------

async def quorum(cluster: Cluster) -> tuple[dict[str, Any] | None, str]:
    """Return (active controller, epoch, state of the voters), or None and the reason."""
    try:
        row = await metadata_quorum.partition(cluster)
    except KafkaError as error:
        return None, str(error)
    return {"leader": row.leader_id, "epoch": row.leader_epoch,
            "voters": [voter.replica_id for voter in row.current_voters],
            "observers": [other.replica_id for other in row.observers],
            "members": members_of(row)}, ""


def members_of(row: Any) -> list[dict[str, Any]]:
    """Return the state of each voter of a DescribeQuorumResponse.PartitionData, as the input of
    quorum_troubles().
    """
    silent_ms = metadata_quorum.silent_ms(row)
    found = []
    for voter in row.current_voters:
        silent = silent_ms[voter.replica_id]
        reason = f"controller {row.leader_id} has not received a fetch from it yet" \
            if silent is None else \
            f"controller {row.leader_id} received its last fetch {span(silent / 1000)} ago" \
            if silent > metadata_quorum.SILENT_MS_MAX else ""
        found.append({"address": f"controller {voter.replica_id}", "answers": not reason,
                      "reason": reason, "heard_ms": voter.last_fetch_timestamp})
    return found


def _members_with_progress(first: Mapping[str, Any], later: Mapping[str, Any] | None
                           ) -> list[dict[str, Any]]:
    """Return the state of the voters after two samples. A voter that last fetched before both is
    silent.
    """
    if later is None:
        return []
    heard_ms = {row["address"]: row["heard_ms"] for row in first["members"]}
    return [row if row["heard_ms"] > heard_ms.get(row["address"], -1) or not row["answers"] else
            {**row, "answers": False,
             "reason": f"controller {later['leader']} has not received a fetch from it during "
                       f"this check"}
            for row in later["members"]]


def changes(first: Mapping[str, Any], later: Mapping[str, Any] | None, reason: str) -> list[str]:
    """A controller that keeps its role has the same epoch in two samples."""
    if later is None:
        return [f"the controllers' quorum cannot be checked: {reason}"]
    if later["epoch"] == first["epoch"]:
        return []
    return [f"the active controller changed during this check: controller {first['leader']} in "
            f"epoch {first['epoch']}, controller {later['leader']} in epoch {later['epoch']}. If "
            "that repeats, two controllers have one node.id, or the quorum has lost its data: see "
            "the controllers' logs"]


def _keeper(described: Mapping[str, Any] | None, settings: list[dict[str, str]],
            members: list[dict[str, Any]] | None) -> list[str]:
    """Return True if brokerd runs etcd itself. DescribeQuorum reports only those members."""
    if members is not None or described is None:
        return []
    configured = {number for row in settings for number in _voters(row)}
    if not any(row.get(name) for row in settings for name in OUTER_QUORUMS) \
            and configured <= set(described["voters"]):
        return []
    return ["the etcd or ZooKeeper that keeps the controllers' log cannot be checked: no metrics "
            "endpoint of a controller answers. Set metrics.listener there, or name one with "
            "--metrics HOST:PORT"]


def _voters(row: Mapping[str, str]) -> dict[int, Controller]:
    return dict(voters_of(_entries(row, VOTERS)))


# ---- controllers --------------------------------------------------------------------------------

class _Controllers(NamedTuple):
    """reached: controllers that responded."""

    troubles: list[str]
    unchecked: list[str]
    reached: int


class _Response(NamedTuple):
    """reason: why a controller is unreachable, else "". active: the id of the controller that it
    considers active, -1 for none. is_rejected: the controller rejected this client's login.
    """

    reason: str = ""
    cluster_id: str = ""
    active: int = -1
    certificate_ends: str | None = None
    is_rejected: bool = False


async def _controllers(cluster: Cluster, settings: list[dict[str, str]], cluster_id: str
                       ) -> _Controllers:
    """Send a request to every controller in the brokers' settings."""
    listeners = {(one.id, one.host, one.port): _protocol(row) for row in settings
                 for one in _voters(row).values()}
    own = cluster.settings["security.protocol"]
    responses = await asyncio.gather(*[
        _query_broker(cluster, host, port) if protocol == own else _connected(host, port, cluster)
        for (_, host, port), protocol in listeners.items()])
    troubles, unchecked, active, count = [], [], set(), 0
    for ((number, host, port), protocol), response in zip(listeners.items(), responses):
        name = f"controller {number} at {host}:{port}"
        if response.reason:
            troubles.append(f"{name} does not answer: {response.reason}")
            continue
        if protocol != own:
            certificate = " and its certificate was not read" if protocol in TLS_PROTOCOLS else ""
            unchecked.append(f"{name}: it accepts connections, but its listener uses {protocol} "
                             f"and this client {own}, so no request was sent{certificate}")
            continue
        if response.is_rejected and protocol in TLS_PROTOCOLS:
            unchecked.append(f"the certificate of {name}: the controller rejected this client's "
                             "login")
        count += 1
        if response.cluster_id and response.cluster_id != cluster_id:
            troubles.append(f"{name} belongs to another cluster: {response.cluster_id}")
        if response.active >= 0:
            active.add(response.active)
        if response.certificate_ends is not None:
            troubles += _certificate(name, response.certificate_ends)
    if len(active) > 1:
        troubles.append("several controllers are active at once: "
                        f"{', '.join(map(str, sorted(active)))}")
    return _Controllers(troubles, unchecked, count)


def _protocol(row: Mapping[str, str]) -> str:
    """Return the security protocol of the controllers' listener."""
    names, protocols = _entries(row, "controller.listener.names"), _protocols(row)
    name = names[0].upper() if names else ""
    return protocols.get(name, name if name in protocols.values() else "PLAINTEXT")


def _protocols(row: Mapping[str, str]) -> dict[str, str]:
    """Return {listener name: security protocol}."""
    pairs = [entry.partition(":") for entry in _entries(row, "listener.security.protocol.map")]
    return {name.strip().upper(): protocol.strip().upper() for name, _, protocol in pairs}


def _entries(row: Mapping[str, str], setting: str) -> list[str]:
    return [entry.strip() for entry in row.get(setting, "").split(",") if entry.strip()]


async def _query_broker(cluster: Cluster, host: str, port: int) -> _Response:
    request = messages.DescribeClusterRequest
    try:
        connection = await Connection.open(host, port, cluster.settings, BufferPool())
    except AuthenticationError:
        # The controller responded; its users differ from the brokers' users.
        return _Response(is_rejected=True)
    except KafkaError as error:
        return _Response(str(error))
    try:
        expires = certificate_ends(connection)
        if connection.version(request) < ENDPOINT_VERSION:
            return _Response(certificate_ends=expires)
        response = await connection.send(request(endpoint_type=ENDPOINT_CONTROLLERS))
        return _Response("", response.cluster_id, response.controller_id, expires)
    except KafkaError as error:
        return _Response(str(error))
    finally:
        connection.close()


async def _connected(host: str, port: int, cluster: Cluster) -> _Response:
    try:
        async with asyncio.timeout(cluster.settings.seconds(
                "socket.connection.setup.timeout.ms")):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, UnicodeError) as error:
        return _Response(f"{host}:{port}: {reason_of(error)}")
    writer.close()
    return _Response()


# ---- certificates, clocks, space ----------------------------------------------------------------

def certificate_ends(connection: Connection) -> str | None:
    """Return the expiry date of the peer's certificate, None without TLS."""
    if not connection.secure:
        return None
    return key_stores.expiry(
        connection.transport.get_extra_info("ssl_object").getpeercert(True) or b"")


def _read_certificates(cluster: Cluster, brokers: Iterable[int]) -> dict[int, str]:
    """Return {broker: expiry date} of the certificates that this client's connections received."""
    found = {}
    for broker in brokers:
        connection = cluster.usable(broker)
        expires = None if connection is None else certificate_ends(connection)
        if expires is not None:
            found[broker] = expires
    return found


def _certificates(read: Mapping[int, str]) -> list[str]:
    return [line for broker, expires in read.items()
            for line in _certificate(f"broker {broker}", expires)]


def unread_certificates(settings: Mapping[int, Mapping[str, str]], own: str,
                        ports: Mapping[int, int]) -> list[str]:
    """Return a line for each TLS listener of brokers whose certificate this client cannot read.

    settings: {broker: {setting: value}}. own: this client's protocol. ports: {broker: the port from
    which this client read a certificate}. Certificates of controller listeners are read, or listed,
    with the controllers.
    """
    brokers_of: dict[tuple[str, str], list[int]] = {}
    for broker, row in settings.items():
        protocols = _protocols(row)
        names = [_name_of(entry) for entry in _entries(row, "listeners")]
        skipped = {name.upper() for name in _entries(row, "controller.listener.names")}
        if broker in ports:
            skipped.add(_listener_read(row, own, ports[broker]))
        for name in names:
            protocol = protocols.get(name, name)
            if protocol in TLS_PROTOCOLS and name not in skipped:
                brokers_of.setdefault((name, protocol), []).append(broker)
    return [f"the certificate of listener {name} of broker{'s' if len(brokers) > 1 else ''} "
            f"{', '.join(map(str, brokers))}: this client does not connect to it. Check it with a "
            f"client that uses {protocol} and connects to this listener"
            for (name, protocol), brokers in brokers_of.items()]


def _name_of(listener: str) -> str:
    return listener.partition("://")[0].upper()


def _listener_read(row: Mapping[str, str], own: str, port: int) -> str:
    """Return the name of the listener at an advertised port. If the settings do not name the port,
    return a listener with this client's protocol.
    """
    advertised = _entries(row, "advertised.listeners") or _entries(row, "listeners")
    protocols = _protocols(row)
    return next((_name_of(entry) for entry in advertised
                 if entry.rpartition(":")[2] == str(port)), "") or next(
        (name for name in map(_name_of, advertised) if protocols.get(name, name) == own), "")


def unread_quorum_certificates(settings: Iterable[Mapping[str, str]], own: str) -> list[str]:
    """Return a line if TLS protects the controllers' etcd or ZooKeeper. An etcd that brokerd runs
    has the certificate of the controller's listener, which a client with its protocol has read.
    """
    found = set()
    for row in settings:
        if row.get(ZOOKEEPER):
            if row.get(ZOOKEEPER_TLS) == "true":
                found.add("ZooKeeper")
        elif ETCD in row and _voters(row):  # Kafka has no such setting.
            controllers = _protocol(row)
            protocol = row.get(ETCD_PROTOCOL) or ("PLAINTEXT" if row[ETCD] else controllers)
            is_read = not row[ETCD] and controllers == own and own in TLS_PROTOCOLS
            if protocol in TLS_PROTOCOLS and not is_read:
                found.add("etcd")
    return [f"the certificates of the controllers' {name}: this client does not connect to it"
            for name in sorted(found)]


def _certificate(name: str, expires: str) -> list[str]:
    seen = cluster_checks.certificate(name, expires, datetime.datetime.now(datetime.UTC).date())
    if seen.status == WARN:
        return [f"the certificate of {name} must be replaced: {seen.detail}"]
    return [] if expires else [f"the certificate of {name} does not show when it ends"]


async def _pages(cluster: Cluster, brokers: list[int], metrics: str | None, token: str | None
                 ) -> tuple[list[dict[str, Any]], dict[int, tuple[float, float]]]:
    """Return (/cluster of every metrics endpoint that responds, {broker: bounds in ms of how far
    its clock is ahead of the local one}).
    """
    async def one(broker: int) -> tuple[Any, float, float]:
        before_ms = time.time() * 1000
        page = await metrics_endpoint.page(cluster, broker, "/cluster", metrics, token)
        return page, before_ms, time.time() * 1000

    ended = await asyncio.gather(*[one(broker) for broker in (brokers[:1] if metrics else brokers)])
    pages = [page for page, _, _ in ended if isinstance(page, dict)]
    clocks = {} if metrics else {
        broker: (page["time_ms"] - after_ms, page["time_ms"] - before_ms)
        for broker, (page, before_ms, after_ms) in zip(brokers, ended)
        if isinstance(page, dict) and "time_ms" in page}
    return pages, clocks


def clock_troubles(clocks: Mapping[int, tuple[float, float]]) -> list[str]:
    """clocks: {broker: (minimum, maximum) ms that its clock is ahead of the local one}."""
    if not clocks:
        return []
    fast = max(clocks, key=lambda broker: clocks[broker][0])
    slow = min(clocks, key=lambda broker: clocks[broker][1])
    ahead_ms = clocks[fast][0] - clocks[slow][1]
    if ahead_ms <= CLOCK_MS_MAX:
        return []
    return [f"the clock of broker {fast} is at least {span(ahead_ms / 1000)} ahead of that of "
            f"broker {slow}: synchronize both, for example with chrony"]


def space_troubles(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the log directories with less than FREE_SHARE_MIN free."""
    return [f"log directory {row['path']} of broker {row['broker']} is nearly full: "
            f"{size(max(0, row['usable_bytes']))} of {size(row['total_bytes'])} free"
            for row in rows if not row["error"] and row["total_bytes"] > 0
            and row["usable_bytes"] < FREE_SHARE_MIN * row["total_bytes"]]


def factor_troubles(factors: Mapping[str, int], settings: Iterable[Mapping[str, str]],
                    brokers: int) -> list[str]:
    """Return the internal topics with fewer replicas than their setting requires.

    factors: replicas by topic. brokers: number of registered brokers; a topic is not reported if
    the cluster has fewer brokers than the setting requires.
    """
    found = []
    for topic, setting in internal_topics.FACTORS.items():
        wanted = max((int(row[setting]) for row in settings if row.get(setting)), default=0)
        factor = factors.get(topic, wanted)
        if factor < min(wanted, brokers):
            found.append(f"{topic} has {counted(factor, 'replica')}, but {setting} is {wanted}: "
                         f"add replicas with pylog cluster grow {topic} -r {wanted}")
    return found


def verdict(found: Mapping[str, Any], checked: Checked) -> str:
    """Return the line for a cluster without problems: what was checked, and how much was not."""
    parts = [counted(len(found["brokers"]), "broker"), counted(found["partitions"], "partition"),
             "every replica in sync"]
    if checked.controllers:
        parts.append(counted(checked.controllers, "controller"))
    if checked.members:
        parts.append(counted(len(checked.members), "member of the quorum",
                             "members of the quorum"))
    limit = f" as far as it was checked ({counted(len(checked.unchecked), 'fact')} not checked)" \
        if checked.unchecked else ""
    return f"cluster {found['cluster_id']} is healthy{limit}: {', '.join(parts)}"
