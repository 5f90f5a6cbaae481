"""Checks between broker settings: pairs of bounds, and checks of several settings.

Owns: nothing.
Invariants: a combination that Kafka rejects is rejected here, with the same error text.
Source: the checks between settings of Kafka 4.4, as observed.
"""

import operator
import re

from . import catalogue, clusters
from .errors import ConfigError
from .values import format_value

_WORDS = {
    "<=": (operator.le, "less than or equal to"), ">=": (operator.ge, "greater than or equal to"),
    "<": (operator.lt, "less than"), ">": (operator.gt, "greater than"),
}
_GROUP_TIMES = ("assignment.interval.ms", "heartbeat.interval.ms", "session.timeout.ms")
_SHARE = ("delivery.count.limit", "partition.max.record.locks", "record.lock.duration.ms")
ALL_DIRECTORIES = "*"
COMPRESSION_IDS = range(5)
_VOTER = re.compile(r"(\d+)@(\S+):(\d+)")
_ENDPOINT = re.compile(r"(\S+):(\d+)")
_LOGIN = re.compile(r"[^:]+:.+")


def _within(kind: str, limit: str) -> tuple:
    """Return the rows that keep a group setting between its minimum and maximum."""
    value, low, high = (f"group.{kind}.{part}{limit}" for part in ("", "min.", "max."))
    return (high, ">=", low), (value, ">=", low), (value, "<=", high)


# (first setting, relation, second setting)
RELATIONS = (
    *(row for kind in ("consumer", "share", "streams") for limit in _GROUP_TIMES
      for row in _within(kind, limit)),
    *(row for limit in _SHARE for row in _within("share", limit)),
    *((f"group.{kind}.heartbeat.interval.ms", "<", f"group.{kind}.session.timeout.ms")
      for kind in ("consumer", "share", "streams")),
    ("group.share.max.share.sessions", ">=", "group.share.max.size"),
    ("group.streams.num.standby.replicas", "<=", "group.streams.max.standby.replicas"),
    ("replica.fetch.wait.max.ms", "<=", "replica.socket.timeout.ms"),
    ("replica.fetch.wait.max.ms", "<=", "replica.lag.time.max.ms"),
)


def check(settings) -> None:
    """Raise ConfigError if settings contradict each other. For startup and for changes."""
    for name, word, other in RELATIONS:
        holds, words = _WORDS[word]
        if not holds(settings[name], settings[other]):
            raise ConfigError(f"{name} must be {words} {other}")
    _check_times(settings)
    _check_connections(settings)
    _check_directories(settings)
    _check_coordinators(settings)
    _check_quorum(settings)
    if settings.is_member and "broker" in settings["process.roles"]:
        _check_between(settings)


def check_reachable(settings) -> None:
    """Raise ConfigError if connections from all addresses would be rejected."""
    own, hosts = "max.connections.per.ip", "max.connections.per.ip.overrides"
    if settings[own] == 0 and not settings.connection_limits:
        raise ConfigError(f"{own} can be set to zero only if {hosts} property is set.")


def check_change(settings) -> None:
    """Raise ConfigError for values that Kafka rejects only as a change. settings: after the change.
    """
    for local, limit, whole in (
            ("log.local.retention.ms", settings.topic_defaults()["retention.ms"],
             "log.retention.ms"),
            ("log.local.retention.bytes", settings["log.retention.bytes"], "log.retention.bytes")):
        value = settings[local]
        if value == -2 or limit == -1:
            continue
        if value == -1:
            raise ConfigError(f"Invalid value -1 for configuration {local}: Value must not be -1 "
                              f"as {whole} value is set as {limit}.")
        if value > limit:
            raise ConfigError(f"Invalid value {value} for configuration {local}: Value must not "
                              f"be more than {whole} property value: {limit}")
    _check_copy_lags(settings)


def _check_copy_lags(settings) -> None:
    for lag, local, limit in (
            ("log.remote.copy.lag.ms", "log.local.retention.ms",
             settings.topic_defaults()["retention.ms"]),
            ("log.remote.copy.lag.bytes", "log.local.retention.bytes",
             settings["log.retention.bytes"])):
        most = limit if settings[local] == -2 else settings[local]
        if 0 <= most < settings[lag]:
            raise ConfigError(f"Invalid value {settings[lag]} for configuration {lag}: Value must "
                              f"not exceed {local} (effective value: {most})")


def _check_times(settings) -> None:
    for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        if settings[name] == 0:
            raise ConfigError(f"{name} must be unlimited (-1) or, greater than or equal to 1")
    delay, idle = "connection.failed.authentication.delay.ms", "connections.max.idle.ms"
    if 0 <= settings[idle] <= settings[delay]:
        raise ConfigError(f"{delay}={settings[delay]} should always be less than {idle}="
                          f"{settings[idle]} to prevent failed authentication responses from "
                          "timing out")


def _check_connections(settings) -> None:
    queued, longest = settings["queued.max.request.bytes"], settings["socket.request.max.bytes"]
    if 0 < queued < longest:
        raise ConfigError(f"queued.max.request.bytes={queued}: expected at least "
                          f"socket.request.max.bytes, {longest}")
    known = {listener.name for listener in settings.listeners} \
        | {name.upper() for name in settings["controller.listener.names"]}
    for name in settings["early.start.listeners"] or ():
        if name.upper() not in known:
            raise ConfigError(f"early.start.listeners contains listener {name}, but this is not "
                              "contained in listeners or controller.listener.names")


def _check_directories(settings) -> None:
    if not settings.log_dirs:
        raise ConfigError("log.dirs: at least one directory is needed; the default is "
                          + format_value(catalogue.broker("log.dir").default))
    for path in settings.log_dirs:
        if settings.log_dirs.count(path) > 1:
            raise ConfigError(f"log.dirs: {path} appears twice")
    cordoned = settings["cordoned.log.dirs"]
    if ALL_DIRECTORIES in cordoned:
        if len(cordoned) > 1:
            raise ConfigError("When cordoned.log.dirs is set to *, it must not contain other "
                              "values")
        return
    known = settings["log.dirs"] or settings["log.dir"]
    missing = [path for path in cordoned if path not in known]
    if missing:
        raise ConfigError("All entries in cordoned.log.dirs must be present in log.dirs or "
                          f"log.dir. Missing entries : {', '.join(missing)}")


def _check_coordinators(settings) -> None:
    threads, size = settings["log.cleaner.threads"], settings["log.cleaner.dedupe.buffer.size"]
    if size // threads <= 1 << 20:
        raise ConfigError("log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner "
                          f"thread. It is {size} bytes for {threads}, and must be more.")
    for name in ("offsets.topic.compression.codec",
                 "share.coordinator.state.topic.compression.codec"):
        if settings[name] not in COMPRESSION_IDS:
            raise ConfigError(f"Invalid value {settings[name]} for configuration {name}: "
                              f"Unknown compression type id: {settings[name]}")
    if "classic" not in settings["group.coordinator.rebalance.protocols"]:
        raise ConfigError("group.coordinator.rebalance.protocols: Disabling the 'classic' "
                          "protocol is not supported.")


def _check_quorum(settings) -> None:
    for entry in settings["controller.quorum.bootstrap.servers"]:
        if _ENDPOINT.fullmatch(entry) is None:
            raise ConfigError(f"Failed to parse host name from {entry} for the configuration "
                              "controller.quorum.bootstrap.servers. Each entry should be in the "
                              'form "{host}:{port}"')
    name = "controller.quorum.voters"
    voters = [_VOTER.fullmatch(entry) for entry in settings[name]]
    if None in voters:
        raise ConfigError(f"Invalid configuration value for {name}. Each entry should be in the "
                          "form `{id}@{host}:{port}`.")
    ids = {int(voter[1]) for voter in voters if voter}
    if "controller" not in settings["process.roles"]:
        _check_member(settings, ids)
    elif (voters or settings.is_member) and settings["node.id"] not in ids:
        raise ConfigError(f"the node id {settings['node.id']} must be included in the set of "
                          f"voters {name}={format_value(settings[name])}")
    elif settings.is_member:
        _check_controllers(settings, len(ids))


def _check_controllers(settings, count: int) -> None:
    """Check one of several controllers: they need a majority and must be reachable."""
    for entry in settings["quorum.zookeeper.connect"]:
        if _ENDPOINT.fullmatch(entry) is None:
            raise ConfigError(f"quorum.zookeeper.connect: {entry} is not host:port; set the "
                              f"prefix of the keys with quorum.zookeeper.prefix")
    if settings["quorum.etcd.endpoints"] and settings["quorum.zookeeper.connect"]:
        raise ConfigError("quorum.etcd.endpoints, quorum.zookeeper.connect: a cluster has one "
                          "quorum; set only one of the two")
    login = settings["quorum.zookeeper.digest"]
    if login and _LOGIN.fullmatch(login) is None:
        raise ConfigError("quorum.zookeeper.digest: expected user:password")
    if count == 2 and not clusters.has_outer_quorum(settings):
        raise ConfigError("controller.quorum.voters: with two controllers, the cluster stops when "
                          "one fails; name three, or one")
    if count > 1 and not clusters.has_outer_quorum(settings):
        clusters.check_etcd_ports(settings)
    if not settings.controller_listeners:
        raise ConfigError("controller.listener.names: with several controllers, each needs a "
                          "listener of such a name in listeners, so that the others can reach it")


def _check_between(settings) -> None:
    """Check the listener that connects brokers: this broker must have one with the name."""
    name, protocol = "inter.broker.listener.name", "security.inter.broker.protocol"
    if settings[name] is not None and settings.origin(protocol) != "default":
        raise ConfigError(f"Only one of {name} and {protocol} should be set.")
    known = [listener.name for listener in settings.listeners]
    if settings.between_brokers not in known:
        raise ConfigError(f"{name} must be a listener name defined in advertised.listeners. The "
                          "valid options based on currently configured listeners are "
                          f"{','.join(known)}")


def _check_member(settings, voter_ids: set) -> None:
    """Check a broker without the controller role: the controllers must be named, and not include
    it.
    """
    if not voter_ids:
        raise ConfigError("If using process.roles, controller.quorum.voters must contain a "
                          "parseable set of controllers.")
    if settings["node.id"] in voter_ids:
        raise ConfigError("If process.roles contains just the 'broker' role, the node id "
                          f"{settings['node.id']} must not be included in the set of voters "
                          "controller.quorum.voters=Set("
                          f"{', '.join(map(str, sorted(voter_ids)))})")
    names = settings["controller.listener.names"]
    if not names:
        raise ConfigError("controller.listener.names must contain at least one value when running "
                          "KRaft with just the broker role")
    own = {listener.name for listener in settings.listeners}
    if len(own) < len(settings["listeners"]):
        raise ConfigError("controller.listener.names must not contain a value appearing in the "
                          "'listeners' configuration when running KRaft with just the broker role")
