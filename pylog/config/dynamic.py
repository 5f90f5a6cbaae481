"""Dynamic broker settings: which settings may change while the broker runs, and how layers combine.

Owns: nothing; config.settings has the current layers.
Invariants: a setting of this broker overrides the cluster's, which overrides the file's; a layer
  that sets one name of a family hides the whole family in lower layers.
Source: KIP-226; families and checks as observed on Kafka 4.4.
"""

import re

from . import catalogue, values
from .errors import ConfigError

FAMILIES = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
FLUSH = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")
# If these contradict each other, the broker is not reachable.
LISTENING = ("listeners", "listener.security.protocol.map", "max.connections.per.ip",
             "max.connections.per.ip.overrides")
# Thread counts: a change may at most halve or double them.
THREADS = frozenset(("background.threads", "log.cleaner.threads",
                     "num.io.threads",
                     "num.network.threads", "num.recovery.threads.per.data.dir",
                     "num.replica.fetchers", "remote.log.manager.copier.thread.pool.size",
                     "remote.log.manager.expiration.thread.pool.size",
                     "remote.log.manager.follower.thread.pool.size", "remote.log.reader.threads"))
# A limit of 0 would lock out the clients that could raise it again.
AT_LEAST_ONE = ("max.connection.creation.rate", "max.connections")
# Minimums above those of the rows: Kafka rejects lower values only later. They also apply to stored
# settings.
LEAST = {**dict.fromkeys(AT_LEAST_ONE, 1), "log.cleaner.threads": 1, "log.roll.jitter.ms": 0,
         "log.roll.ms": 1}
# Allowed with a listener prefix, and as cluster-wide defaults.
CLUSTER_LEVEL_LISTENER = frozenset((*AT_LEAST_ONE, "num.network.threads"))
# Allowed only as listener.name.<listener>.<setting>.
LISTENER_ONLY = frozenset((
    "ssl.key.password", "ssl.keystore.certificate.chain", "ssl.keystore.key",
    "ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.type",
    "ssl.truststore.certificates", "ssl.truststore.location", "ssl.truststore.password",
    "ssl.truststore.type"))

# Settings for which pylog uses listener prefixes; it ignores the prefix of all others.
OF_LISTENER = frozenset((*AT_LEAST_ONE[1:], "connections.max.reauth.ms"))
OF_LISTENER_PREFIXES = ("sasl.", "ssl.")
# Java classes that determine a client's identity. A broker that ignored one would grant rights to a
# wrong name, or accept a wrong password.
IDENTITY_CLASSES = frozenset(("principal.builder.class", "sasl.server.callback.handler.class"))
KAFKAS_CLASSES = "org.apache.kafka.common.security."

_PREFIX = re.compile(r"listener\.name\.([^.]*)\.(.+)")
_OF_MECHANISM = ("sasl.jaas.config", "sasl.login.callback.handler.class", "sasl.login.class",
                 "sasl.server.callback.handler.class", "connections.max.reauth.ms")


def family(name: str) -> tuple[str, ...]:
    """Return all names of the same setting, including `name`, highest precedence first."""
    for members in FAMILIES:
        if name in members:
            return members
    if name == FLUSH[0]:
        return FLUSH
    base = base_name(name)
    return (name,) if base == name else (name, base)


def base_name(name: str) -> str:
    """Return `name` without a listener prefix and a SASL mechanism prefix."""
    found = _PREFIX.fullmatch(name)
    if found is None:
        return name
    return next((base for base in _OF_MECHANISM if found[2].endswith(base)), found[2])


def listener_of(name: str) -> str | None:
    """Return the listener in the prefix of `name`, or None."""
    found = _PREFIX.fullmatch(name)
    return None if found is None else found[1]


def has_listener_effect(name: str) -> bool:
    """Return True if `name` has no listener prefix, or one that changes what pylog does."""
    base = base_name(name)
    return base == name or base in OF_LISTENER or base.startswith(OF_LISTENER_PREFIXES)


def check_identity_class(name: str, text: object) -> None:
    """Raise ConfigError for a Java class that would determine a client's identity."""
    if base_name(name) in IDENTITY_CLASSES and text \
            and not str(text).startswith(KAFKAS_CLASSES):
        raise ConfigError(f"{name}={text}: brokerd cannot load Java classes, and without this one "
                          "clients would be identified differently. Remove the setting")


def setting(name: str):
    """Return the broker setting with this name, with or without a listener prefix, or None."""
    base = base_name(name)
    if catalogue.is_rate(base):
        return catalogue.rate(base)
    return catalogue.broker(base) if catalogue.is_broker(base) else None


def layered(static: dict, *layers: dict) -> dict[str, values.Value]:
    """Combine typed values by name: `static` ones, then layers of texts; the last layer wins."""
    merged = dict(static)
    for layer in layers:
        for name, text in layer.items():
            for member in family(name):
                if member == name or not name.startswith("listener.name."):
                    merged.pop(member, None)
            known = setting(name)
            merged[name] = text if known is None else values.parse(known, text)
    return merged


def check(texts: dict[str, str], per_broker: bool, settings) -> None:
    """Raise ConfigError if one of these settings cannot change while the broker runs."""
    # In prefixes, Kafka accepts listener names in lower case only.
    served = {listener.name.lower() for listener in settings.listeners}
    for name, value in check_layer(texts, per_broker).items():
        if isinstance(value, tuple) and values.has_repetitions(texts[name]):
            raise ConfigError(f"Invalid value {texts[name]} for configuration {name}: "
                              "the list contains an entry twice.")
        listener, base = listener_of(name), base_name(name)
        if listener is not None and listener not in served:
            continue
        if base in THREADS and (listener is None or base == "num.network.threads"):
            current = settings.value(name) if listener is None or settings.value(name) \
                else settings[base]
            _check_threads(name, value, current)
        if base in AT_LEAST_ONE:
            check_least(base, value)


def check_least(name: str, value: int | None) -> None:
    """Raise ConfigError if the value is below LEAST."""
    if value is not None and value < LEAST[name]:
        what = f"Invalid {name} {value}: it" if name in AT_LEAST_ONE else name
        raise ConfigError(f"{what} must be greater than or equal to {LEAST[name]}")


def _check_threads(name: str, value: int, current: int) -> None:
    refused = f"Dynamic thread count update validation failed for {name}={value}, value should "
    if value < current // 2:
        raise ConfigError(f"{refused}be at least half the current value {current}")
    if value > current * 2:
        raise ConfigError(f"{refused}not be greater than double the current value {current}")


def check_layer(texts: dict[str, str], per_broker: bool) -> dict[str, values.Value]:
    """Return the typed values of a layer, independent of current values. Raises ConfigError."""
    fixed = sorted(name for name in texts
                   if catalogue.is_broker(name) and not catalogue.broker(name).dynamic)
    if fixed:
        raise ConfigError(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
    prefixed = sorted(name for name in texts if name in LISTENER_ONLY)
    if prefixed:
        raise ConfigError("These security configs can be dynamically updated only per-listener "
                          f"using the listener prefix: [{', '.join(prefixed)}]")
    own = [] if per_broker else sorted(filter(_is_per_broker, texts))
    if own:
        raise ConfigError("Cannot update these configs at default cluster level, broker id must "
                          f"be specified: [{', '.join(own)}]")
    for name, text in texts.items():
        check_identity_class(name, text)
    typed = {name: values.parse(setting(name), text) for name, text in texts.items()
             if setting(name) is not None}
    for name in typed.keys() & LEAST:
        check_least(name, typed[name])
    return typed


def _is_per_broker(name: str) -> bool:
    if listener_of(name) is not None:
        return base_name(name) not in CLUSTER_LEVEL_LISTENER
    return catalogue.is_broker(name) and catalogue.broker(name).dynamic == "broker"
