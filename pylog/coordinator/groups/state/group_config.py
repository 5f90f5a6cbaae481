"""Settings of groups.

Owns: nothing.
Invariants: limits do not change while the broker runs, except for those that are read by name.
Source: Kafka's group.* and offset.* settings.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pylog.config import ConfigError, groups, values
from pylog.coordinator.groups.assignors import partitions as partition_assignors, tasks
from pylog.coordinator.groups.assignors.partitions import Assignor

STREAMS_ASSIGNORS = "group.streams.assignors"
GROUP_RESOURCE = 32  # The config resource type GROUP.
DEFAULTS: Mapping[str, Any] = MappingProxyType({
    "group.consumer.session.timeout.ms": 45_000, "group.consumer.heartbeat.interval.ms": 5000,
    "group.consumer.assignment.interval.ms": 0,
    "group.streams.session.timeout.ms": 45_000, "group.streams.heartbeat.interval.ms": 5000,
    "group.streams.initial.rebalance.delay.ms": 3000, "group.streams.assignment.interval.ms": 1000,
    "group.streams.num.standby.replicas": 0, "group.streams.rack.aware.assignment.tags": (),
    "group.streams.task.offset.interval.ms": 60_000,
    "group.streams.acceptable.recovery.lag": 10_000})


class ConsumerLimits(NamedTuple):
    """Settings of consumer groups (KIP-848).

    assignors: by name, the default first. settings: the broker's settings that a group can
    override.
    """

    members_max: int = 2**31 - 1
    may_upgrade: bool = True
    may_downgrade: bool = True
    refresh_ms: int = 600_000
    assignors: Mapping[str, Assignor] = MappingProxyType(partition_assignors.BUILT_IN)
    settings: Any = DEFAULTS

    def of_group(self, configs: Mapping[str, str] | None, name: str) -> int:
        """Return a setting of a group with the overrides `configs`."""
        text = None if configs is None else configs.get(name)
        return int(text) if text is not None else self.settings[groups.SYNONYMS[name]]

    def list_of_group(self, configs: Mapping[str, str] | None, name: str) -> list[str]:
        """Return a setting that is a list."""
        text = None if configs is None else configs.get(name)
        return list(self.settings[groups.SYNONYMS[name]] if text is None
                    else values.parse(groups.group(name), text))


class Limits(NamedTuple):
    """The broker's settings for groups."""

    session_ms_min: int
    session_ms_max: int
    members_max: int
    initial_delay_ms: int
    metadata_characters_max: int
    retention_ms: int
    consumer: ConsumerLimits = ConsumerLimits()
    share_session_ms: int = 45_000
    streams_members_max: int = 2**31 - 1


def limits_from(settings: Any) -> Limits:
    """Raises ConfigError for unknown assignors."""
    _check_streams_assignors(settings)
    return Limits(
        settings["group.min.session.timeout.ms"], settings["group.max.session.timeout.ms"],
        settings["group.max.size"], max(0, settings["group.initial.rebalance.delay.ms"]),
        settings["offset.metadata.max.bytes"], settings["offsets.retention.minutes"] * 60_000,
        _consumer_limits(settings), settings["group.share.session.timeout.ms"],
        settings["group.streams.max.size"])


def _check_streams_assignors(settings: Any) -> None:
    others = [name for name in settings[STREAMS_ASSIGNORS] if name != tasks.NAME]
    if others:
        raise ConfigError(f"{STREAMS_ASSIGNORS}: {', '.join(others)}: brokerd cannot load Java "
                          f"classes. Remove all names but {tasks.NAME}")


def _consumer_limits(settings: Any) -> ConsumerLimits:
    policy = settings["group.consumer.migration.policy"].upper()
    return ConsumerLimits(
        settings["group.consumer.max.size"], policy in ("UPGRADE", "BIDIRECTIONAL"),
        policy in ("DOWNGRADE", "BIDIRECTIONAL"),
        settings["group.consumer.regex.refresh.interval.ms"],
        partition_assignors.load(settings["group.consumer.assignors"]), settings)
