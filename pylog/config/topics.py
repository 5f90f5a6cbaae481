"""Topic settings: their values from the broker's, and the checks on what a client asks for.

Owns: nothing.
Invariants: (1) what validate_topic_configs lets pass, topic_config can apply.
Source: Kafka's topic settings and their cross checks, as observed on Kafka 4.3.
"""

from . import catalogue, values
from .errors import ConfigError, nearest

_MS = {"ms": 1, "minutes": 60_000, "hours": 3_600_000}
_THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


def broker_default(name: str, settings) -> values.Value:
    """The value that the broker's settings give topic setting `name`."""
    setting = catalogue.topic(name)
    for synonym in setting.synonyms:
        value = settings[synonym]
        if value is not None:
            return _in_ms(synonym, value, setting)
    return setting.default


def _in_ms(synonym: str, value, setting) -> values.Value:
    unit = synonym.rpartition(".")[2]
    if setting.unit != "ms":
        return value
    # A retention below zero is no limit, in whatever unit it was given.
    return -1 if value < 0 and setting.name == "retention.ms" else value * _MS[unit]


def check_defaults(settings) -> None:
    """Raises ConfigError when the broker's settings give topics what no topic could have."""
    for name, value in settings.topic_defaults().items():
        setting = catalogue.topic(name)
        try:
            values.check(setting, value)
        except ConfigError as error:
            raise ConfigError(f"{' or '.join(setting.synonyms)}: {error}") from None


def validate_topic_config(name: str, text: str | None) -> values.Value:
    """The typed value of one topic setting; raises ConfigError when it has none."""
    if not catalogue.is_topic(name):
        near = nearest(name, catalogue.topic_names())
        raise ConfigError(f"Unknown topic config name: {name}"
                          + (f" (nearest valid name: {near})" if near else ""))
    if text is None:
        raise ConfigError(f"Null value not supported for topic configs: {name}")
    value = values.parse(catalogue.topic(name), text)
    if name in _THROTTLED:
        _check_throttled(name, value)
    return value


def validate_topic_configs(configs: dict[str, str | None], settings) -> dict[str, values.Value]:
    """The typed values of a topic's own settings, checked against each other and the broker's.

    Raises ConfigError as validate_topic_config does, and for values that contradict each other.
    """
    typed = {name: validate_topic_config(name, text) for name, text in configs.items()}
    effective = {**settings.topic_defaults(), **typed}
    low, high = effective["min.compaction.lag.ms"], effective["max.compaction.lag.ms"]
    if low > high:
        raise ConfigError(f"conflict topic config setting min.compaction.lag.ms ({low}) > "
                          f"max.compaction.lag.ms ({high})")
    if effective["remote.storage.enable"]:
        raise ConfigError("Tiered Storage functionality is disabled in the broker. Topic cannot "
                          "be configured with remote log storage.")
    return typed


def usable(configs: dict[str, str]) -> dict[str, values.Value]:
    """The typed values of a topic's stored settings, without those that no topic can have:
    another version may have stored them."""
    found = {}
    for name, text in configs.items():
        try:
            found[name] = validate_topic_config(name, text)
        except ConfigError:
            continue
    return found


def topic_config(configs: dict[str, str], settings) -> dict[str, values.Value]:
    """All topic settings in effect for a topic whose own are `configs` (names and texts)."""
    effective = {**settings.topic_defaults(), **usable(configs)}
    if effective["internal.segment.bytes"] is not None:
        effective["segment.bytes"] = effective["internal.segment.bytes"]
    return effective


def _check_throttled(name: str, value: tuple) -> None:
    if value == ("*",):
        return
    for entry in value:
        partition, colon, broker = entry.partition(":")
        if not (colon and partition.isdigit() and broker.isdigit()):
            raise ConfigError(f"Invalid value [{', '.join(value)}] for configuration {name}: "
                              f"{name} must be the literal '*' or a list of replicas in the "
                              "following format: [partitionId]:[brokerId],[partitionId]:"
                              "[brokerId],...")
