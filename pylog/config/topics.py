"""Topic settings: defaults from the broker's settings, and validation.

Owns: nothing.
Invariants: topic_config can apply everything that validate_topic_configs accepts.
Source: Kafka's topic settings and the checks between them, as observed on Kafka 4.4.
"""

from . import catalogue, values
from .errors import ConfigError, nearest

_MS = {"ms": 1, "minutes": 60_000, "hours": 3_600_000}
_THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


def broker_default(name: str, settings) -> values.Value:
    """Return the default of topic setting `name` from the broker's settings."""
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
    # A negative retention means no limit, in any unit.
    return -1 if value < 0 and setting.name == "retention.ms" else value * _MS[unit]


def check_defaults(settings) -> None:
    """Raise ConfigError if the broker's settings give topics an invalid default."""
    for name, value in settings.topic_defaults().items():
        setting = catalogue.topic(name)
        try:
            values.check(setting, value)
        except ConfigError as error:
            raise ConfigError(f"{' or '.join(setting.synonyms)}: {error}") from None


def validate_topic_config(name: str, text: str | None) -> values.Value:
    """Return the typed value of one topic setting. Raises ConfigError."""
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
    """Return the typed values of a topic's overrides, checked against each other and the defaults.

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
    """Return the typed values of a topic's stored settings, without invalid ones, which another
    version may have stored.
    """
    found = {}
    for name, text in configs.items():
        try:
            found[name] = validate_topic_config(name, text)
        except ConfigError:
            continue
    return found


def topic_config(configs: dict[str, str], settings) -> dict[str, values.Value]:
    """Return all effective settings of a topic with overrides `configs` (names and texts)."""
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
