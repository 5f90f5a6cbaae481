"""Derives the settings of a cluster's node from `brokerd --cluster`, and finds the controllers.

Owns: nothing.
Invariants: nodes with the same host list derive consistent settings; an explicit setting overrides
  a derived one, and is required if the host list is ambiguous.
Source: KIP-631 (process.roles, controller.quorum.voters).
"""

from collections import namedtuple

from .errors import ConfigError
from .listeners import PROTOCOLS, SASL_PROTOCOLS

CLIENT_PORT, CONTROLLER_PORT = 9092, 9093
PORT_MAX = 65535
# Distances of etcd's two ports from the controller's port, if controllers share an address.
ETCD_PORT_STEPS = (10_000, 20_000)
VOTERS = 3  # The first hosts, so that hosts appended later do not change the voters.

Voter = namedtuple("Voter", ("node_id", "host", "port"))


def derived(text: str, given: dict, is_here) -> dict[str, str]:
    """Return this node's settings in the cluster `text`, a list of hosts separated by commas.

    given: explicit settings. is_here: host -> True if it is this machine. Raises ConfigError.
    """
    hosts = [host.strip() for host in text.split(",")]
    if not all(hosts) or any(hosts.count(host) > 1 for host in hosts):
        raise ConfigError(f"--cluster {text}: expected different hosts, separated by commas")
    if any(" " in host or "/" in host or host.count(":") == 1 for host in hosts):
        raise ConfigError(f"--cluster {text}: expected names or addresses without ports; "
                          "to use other ports, set controller.quorum.voters and listeners")
    if len(hosts) == 2:
        raise ConfigError("--cluster: with two hosts, the cluster stops when one fails; name "
                          "three (the third can be a small one), or one")
    number = _number(hosts, given, is_here)
    voting = hosts[:VOTERS]
    voters = ",".join(f"{index}@{_shown(host)}:{CONTROLLER_PORT}"
                      for index, host in enumerate(voting, 1))
    own = hosts[number - 1]
    bind = _shown(own) if is_address(own) else ""
    protocol = _protocol(given)
    listeners = f"{protocol}://{bind}:{CLIENT_PORT}"
    is_controller = number <= len(voting)
    if is_controller:
        listeners += f",CONTROLLER://{bind}:{CONTROLLER_PORT}"
    replicas = min(len(hosts), 3)
    return _secured(protocol, given) | {
        "node.id": str(number), "process.roles": "broker" + ",controller" * is_controller,
        "controller.quorum.voters": voters, "controller.listener.names": "CONTROLLER",
        "listeners": listeners,
        "advertised.listeners": f"{protocol}://{_shown(own)}:{CLIENT_PORT}",
        "default.replication.factor": str(replicas),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "min.insync.replicas": str(min(replicas, 2)),
        "broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500",
    }


def _protocol(given: dict) -> str:
    """Return the security protocol of all listeners: the inter-broker protocol."""
    named = str(given.get("security.inter.broker.protocol", "")).strip().upper()
    return named if named in PROTOCOLS else PROTOCOLS[0]


def _secured(protocol: str, given: dict) -> dict[str, str]:
    """Return the settings that secure controller listeners like the brokers' listeners."""
    if protocol == PROTOCOLS[0]:
        return {}
    found = {"listener.security.protocol.map": ",".join(
        [f"{name}:{name}" for name in PROTOCOLS] + [f"CONTROLLER:{protocol}"])}
    mechanism = "sasl.mechanism.inter.broker.protocol"
    if protocol in SASL_PROTOCOLS and mechanism in given:
        found["sasl.mechanism.controller.protocol"] = given[mechanism]
    return found


def _number(hosts: list, given: dict, is_here) -> int:
    """Return the number of this machine's host, from 1. Raises ConfigError if it is ambiguous."""
    if "node.id" in given:
        number = str(given["node.id"]).strip()
        if not number.isdigit() or not 1 <= int(number) <= len(hosts):
            raise ConfigError(f"node.id={number}: --cluster numbers its hosts from 1 to "
                              f"{len(hosts)}")
        return int(number)
    here = [number for number, host in enumerate(hosts, 1) if is_here(host)]
    if not here:
        raise ConfigError(f"--cluster: none of {', '.join(hosts)} is this machine: add its name "
                          "at the end, on every machine")
    if len(here) > 1:
        names = ", ".join(hosts[number - 1] for number in here)
        raise ConfigError(f"--cluster: {names} are all this machine: choose this broker's entry "
                          f"with --override node.id=NUMBER")
    return here[0]


def voters(settings) -> list[Voter]:
    """Return the nodes with the controller role from `controller.quorum.voters`."""
    found = []
    for entry in settings["controller.quorum.voters"]:
        number, _, address = entry.partition("@")
        host, _, port = address.rpartition(":")
        found.append(Voter(int(number), host.strip("[]"), int(port)))
    return found


def etcd_ports(settings, voter: Voter) -> tuple[int, int]:
    """Return the ports of a controller's etcd: (for controllers, for other etcd members).

    If controllers share an address, the ports are derived from their controller ports: each node
    must compute the same ports.
    """
    if sum(other.host == voter.host for other in voters(settings)) <= 1:
        return settings["quorum.etcd.client.port"], settings["quorum.etcd.peer.port"]
    first, second = ((voter.port + step if voter.port + step <= PORT_MAX else voter.port - step)
                     for step in ETCD_PORT_STEPS)
    return first, second


def check_etcd_ports(settings) -> None:
    """Raise ConfigError if two controllers on one address derive the same port for their etcds.

    Only derived ports can collide: two controllers of one address have different ports.
    """
    used: dict[tuple[str, int], Voter] = {}
    for voter in voters(settings):
        for port in (voter.port, *etcd_ports(settings, voter)):
            other = used.setdefault((voter.host, port), voter)
            if other is not voter:
                raise ConfigError(
                    f"controller.quorum.voters: {_entry(other)} and {_entry(voter)} both need port "
                    f"{port} of {voter.host}. Controllers on one address also use their controller "
                    "port plus 10000 and plus 20000 for etcd: choose ports that do not differ by "
                    "10000 or 20000, for example neighbouring ones.")


def _entry(voter: Voter) -> str:
    return f"{voter.node_id}@{_shown(voter.host)}:{voter.port}"


def has_quorum(settings) -> bool:
    """Return True if this node is one of several controllers, whose quorum stores the metadata log.
    """
    return "controller" in settings["process.roles"] and (
        len(settings["controller.quorum.voters"]) > 1 or has_outer_quorum(settings))


def has_outer_quorum(settings) -> bool:
    """Return True if the quorum is an external etcd or ZooKeeper."""
    return bool(settings["quorum.etcd.endpoints"] or settings["quorum.zookeeper.connect"])


def is_address(host: str) -> bool:
    """Return True if a host is an IP address, False if it is a name."""
    return ":" in host or host.replace(".", "").isdigit()


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
