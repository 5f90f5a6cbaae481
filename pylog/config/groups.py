"""Settings of groups and of client metrics subscriptions: rows and checks.

Owns: the names, and the rows of settings without a broker setting.
Invariants: a group setting has the type, default and limits of its broker setting, if it has one; a
  value is within the bounds of the broker's settings.
Source: KIP-848, KIP-932, KIP-1071, KIP-1357 (groups), KIP-714 (subscriptions); Kafka's
  checks, as observed.
"""

import re

from . import catalogue, values
from .errors import ConfigError, nearest

# Group setting -> the broker setting that provides its default.
SYNONYMS = {
    "consumer.assignment.interval.ms": "group.consumer.assignment.interval.ms",
    "consumer.assignor.offload.enable": "group.consumer.assignor.offload.enable",
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
    "share.assignment.interval.ms": "group.share.assignment.interval.ms",
    "share.assignor.offload.enable": "group.share.assignor.offload.enable",
    "share.delivery.count.limit": "group.share.delivery.count.limit",
    "share.heartbeat.interval.ms": "group.share.heartbeat.interval.ms",
    "share.partition.max.record.locks": "group.share.partition.max.record.locks",
    "share.record.lock.duration.ms": "group.share.record.lock.duration.ms",
    "share.session.timeout.ms": "group.share.session.timeout.ms",
    "streams.acceptable.recovery.lag": "group.streams.acceptable.recovery.lag",
    "streams.assignment.interval.ms": "group.streams.assignment.interval.ms",
    "streams.assignor.name": "group.streams.assignors",
    "streams.assignor.offload.enable": "group.streams.assignor.offload.enable",
    "streams.heartbeat.interval.ms": "group.streams.heartbeat.interval.ms",
    "streams.initial.rebalance.delay.ms": "group.streams.initial.rebalance.delay.ms",
    "streams.num.standby.replicas": "group.streams.num.standby.replicas",
    "streams.num.warmup.replicas": "group.streams.num.warmup.replicas",
    "streams.rack.aware.assignment.tags": "group.streams.rack.aware.assignment.tags",
    "streams.session.timeout.ms": "group.streams.session.timeout.ms",
    "streams.task.offset.interval.ms": "group.streams.task.offset.interval.ms",
}
ASSIGNOR = "streams.assignor.name"
OWN = (
    ("errors.deadletterqueue.copy.record.enable", "boolean", False, "", "medium", "", "live",
     "Dead letters of a share group carry the record's key, value and headers."),
    ("errors.deadletterqueue.topic.name", "string", "", "", "medium", "", "live",
     "Topic that a share group's rejected and undeliverable records go to; empty: none."),
    ("share.auto.offset.reset", "string", "latest", "", "medium", "", "live",
     "Where a share group starts: latest, earliest or by_duration:PnDTnHnMn.nS."),
    ("share.isolation.level", "string", "read_uncommitted", "read_committed|read_uncommitted",
     "medium", "", "live", "Whether records of open and aborted transactions are delivered."),
    ("share.renew.acknowledge.enable", "boolean", True, "", "medium", "", "live",
     "Consumers of a share group may renew the lock of a record."),
)
SUBSCRIPTION = (
    ("interval.ms", "int", 300000, "", "medium", "", "inert",
     "Interval between a client's pushes."),
    ("match", "list", (), "", "medium", "", "inert",
     "Clients to which this applies, as name=pattern each."),
    ("metrics", "list", (), "", "medium", "", "inert", "Prefixes of the requested metrics."),
)
# Broker settings that bound a group setting: low, high; "" if there is no bound.
BOUNDS = {
    "consumer.assignment.interval.ms": ("group.consumer.min.assignment.interval.ms",
                                        "group.consumer.max.assignment.interval.ms"),
    "consumer.heartbeat.interval.ms": ("group.consumer.min.heartbeat.interval.ms",
                                       "group.consumer.max.heartbeat.interval.ms"),
    "consumer.session.timeout.ms": ("group.consumer.min.session.timeout.ms",
                                    "group.consumer.max.session.timeout.ms"),
    "share.assignment.interval.ms": ("group.share.min.assignment.interval.ms",
                                     "group.share.max.assignment.interval.ms"),
    "share.delivery.count.limit": ("group.share.min.delivery.count.limit",
                                   "group.share.max.delivery.count.limit"),
    "share.heartbeat.interval.ms": ("group.share.min.heartbeat.interval.ms",
                                    "group.share.max.heartbeat.interval.ms"),
    "share.partition.max.record.locks": ("group.share.min.partition.max.record.locks",
                                         "group.share.max.partition.max.record.locks"),
    "share.record.lock.duration.ms": ("group.share.min.record.lock.duration.ms",
                                      "group.share.max.record.lock.duration.ms"),
    "share.session.timeout.ms": ("group.share.min.session.timeout.ms",
                                 "group.share.max.session.timeout.ms"),
    "streams.assignment.interval.ms": ("group.streams.min.assignment.interval.ms",
                                       "group.streams.max.assignment.interval.ms"),
    "streams.heartbeat.interval.ms": ("group.streams.min.heartbeat.interval.ms",
                                      "group.streams.max.heartbeat.interval.ms"),
    "streams.num.standby.replicas": ("", "group.streams.max.standby.replicas"),
    "streams.num.warmup.replicas": ("", "group.streams.max.warmup.replicas"),
    "streams.session.timeout.ms": ("group.streams.min.session.timeout.ms",
                                   "group.streams.max.session.timeout.ms"),
    "streams.task.offset.interval.ms": ("group.streams.min.task.offset.interval.ms", ""),
}
# An assignment interval is checked against its bounds only if the group sets it.
BOUND_WHEN_SET = frozenset(name for name in SYNONYMS if name.endswith(".assignment.interval.ms"))
KINDS = ("consumer", "share", "streams")
PUSH_MS_MIN, PUSH_MS_MAX = 100, 3_600_000
MATCHED_BY = frozenset(("client_instance_id", "client_id", "client_software_name",
                        "client_software_version", "client_source_address",
                        "client_source_port"))

_OWN = {row[0]: row for row in OWN}
_SUBSCRIPTION = {row[0]: row for row in SUBSCRIPTION}
_DURATION = re.compile(r"by_duration:P(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?", re.I)


def names() -> list[str]:
    """Return the sorted names of all group settings."""
    return sorted([*SYNONYMS, *_OWN])


def subscription_names() -> list[str]:
    """Return the sorted names of all settings of a client metrics subscription."""
    return sorted(_SUBSCRIPTION)


def group(name: str):
    """Return the group setting with this name. Raises KeyError."""
    if name in _OWN:
        return catalogue.Setting(_OWN[name])
    row = catalogue.broker(SYNONYMS[name])
    if name == ASSIGNOR:  # One of the broker's; the first is the default.
        return catalogue.Setting((name, "string", row.default[0], "", row.importance, "",
                                  row.effect, "Assignor of a streams group."), (row.name,))
    return catalogue.Setting((name, row.type, row.default, row.limits, row.importance, "",
                              row.effect, row.doc), (row.name,))


def subscription(name: str):
    """Return the subscription setting with this name. Raises KeyError."""
    return catalogue.Setting(_SUBSCRIPTION[name])


def group_config(configs: dict[str, str], settings) -> dict[str, values.Value]:
    """Return all effective settings of a group with overrides `configs` (names and texts)."""
    effective = {name: settings[SYNONYMS[name]] if name in SYNONYMS else group(name).default
                 for name in names()}
    effective[ASSIGNOR] = settings[SYNONYMS[ASSIGNOR]][0]
    for name, text in configs.items():
        effective[name] = values.parse(group(name), text)
    return effective


def usable(configs: dict[str, str]) -> dict[str, str]:
    """Return a group's stored settings without invalid ones, which another version may have stored.
    """
    found = {}
    for name, text in configs.items():
        try:
            values.parse(group(name), text)
        except (KeyError, ConfigError):
            continue
        found[name] = text
    return found


def validate_group_configs(configs: dict[str, str], settings) -> None:
    """Raise ConfigError if these overrides are invalid for a group."""
    for name in configs:
        if name not in SYNONYMS and name not in _OWN:
            raise _unknown("group config", name, names())
    effective = group_config(configs, settings)
    for name, (low, high) in BOUNDS.items():
        if name in BOUND_WHEN_SET and name not in configs:
            continue
        is_low = low and effective[name] < settings[low]
        is_high = high and effective[name] > settings[high]
        if low and high and (is_low or is_high):
            raise ConfigError(f"{name} must be in the range {settings[low]} to {settings[high]} "
                              "inclusive.")
        if is_low:
            raise ConfigError(f"{name} must be greater than or equal to {settings[low]}")
        if is_high:
            raise ConfigError(f"{name} must be less than or equal to {settings[high]}")
    for kind in KINDS:
        heartbeat, session = f"{kind}.heartbeat.interval.ms", f"{kind}.session.timeout.ms"
        if effective[session] <= effective[heartbeat]:
            raise ConfigError(f"{session} must be greater than {heartbeat}")
    assignors = settings[SYNONYMS[ASSIGNOR]]
    if effective[ASSIGNOR] not in assignors:
        raise ConfigError(f"{ASSIGNOR} '{effective[ASSIGNOR]}' is not a registered task assignor. "
                          f"Registered assignors are: [{', '.join(assignors)}].")
    reset = effective["share.auto.offset.reset"]
    if reset not in ("latest", "earliest") and not _DURATION.fullmatch(reset):
        name = "share.auto.offset.reset"
        raise ConfigError(f"Invalid value {reset} for configuration {name}: Invalid value "
                          f"`{reset}` for configuration {name}. The value must be either "
                          "'earliest', 'latest' or of the format "
                          "'by_duration:<PnDTnHnMn.nS>'.")


def validate_subscription(configs: dict[str, str]) -> None:
    """Raise ConfigError if these settings of a subscription are invalid. All names must be known.
    """
    typed = {name: values.parse(subscription(name), text) for name, text in configs.items()}
    for pattern in typed.get("match", ()):
        name, equals, regex = pattern.partition("=")
        if not equals or "=" in regex or name.strip() not in MATCHED_BY:
            raise ConfigError(f"Illegal client matching pattern: {pattern}")
        try:
            re.compile(regex.strip())
        except re.error:
            raise ConfigError(f"Illegal client matching pattern: {pattern}") from None


def subscription_interval_fault(configs: dict[str, str]) -> str | None:
    """Return why the push interval in `configs` is rejected, or None. The other settings must be
    valid.
    """
    if "interval.ms" not in configs:
        return None
    interval = values.parse(subscription("interval.ms"), configs["interval.ms"])
    if PUSH_MS_MIN <= interval <= PUSH_MS_MAX:
        return None
    return (f"Invalid value {interval} for interval.ms, interval must be between "
            f"{PUSH_MS_MIN} and {PUSH_MS_MAX} (1 hour)")


def is_subscription(name: str) -> bool:
    return name in _SUBSCRIPTION


def _unknown(what: str, name: str, known) -> ConfigError:
    near = nearest(name, known)
    return ConfigError(f"Unknown {what} name: {name}"
                       + (f" (nearest valid name: {near})" if near else ""))
