"""Broker settings that change while the broker runs: which may, and how layers of them add up.

Owns: nothing; config.settings keeps the layers in force.
Called by: config.settings, config.entries; metadata.configs through Settings.check_dynamic.
Invariants: (1) this broker's own settings win over the cluster's, those over the file's; (2) a
  layer that sets one name of a family hides the whole family in the layers below it.
Source: KIP-226; the families and checks as observed on Kafka 4.3.
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
# What must fit together for the broker to be reached.
LISTENING = ("listeners", "listener.security.protocol.map", "max.connections.per.ip.overrides")
# Numbers of threads: at most halved or doubled by one change.
THREADS = frozenset(("background.threads", "log.cleaner.threads",
                     "num.io.threads",
                     "num.network.threads", "num.recovery.threads.per.data.dir",
                     "num.replica.fetchers"))
# Only for one listener, by the name listener.name.<listener>.<setting>.
LISTENER_ONLY = frozenset((
    "ssl.key.password", "ssl.keystore.certificate.chain", "ssl.keystore.key",
    "ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.type",
    "ssl.truststore.certificates", "ssl.truststore.location", "ssl.truststore.password",
    "ssl.truststore.type"))

_PREFIX = re.compile(r"listener\.name\.[^.]*\.(.+)")
_OF_MECHANISM = ("sasl.jaas.config", "sasl.login.callback.handler.class", "sasl.login.class",
                 "sasl.server.callback.handler.class", "connections.max.reauth.ms")


def family(name: str) -> tuple[str, ...]:
    """The settings that mean the same as `name`, the strongest first, itself among them."""
    for members in FAMILIES:
        if name in members:
            return members
    if name == FLUSH[0]:
        return FLUSH
    base = base_name(name)
    return (name,) if base == name else (name, base)


def base_name(name: str) -> str:
    """`name` without a listener's prefix, and without a SASL mechanism's."""
    found = _PREFIX.fullmatch(name)
    if found is None:
        return name
    return next((base for base in _OF_MECHANISM if found[1].endswith(base)), found[1])


def setting(name: str):
    """The broker setting of that name, with a listener's prefix or not, or None."""
    base = base_name(name)
    return catalogue.broker(base) if catalogue.is_broker(base) else None


def layered(static: dict, *layers: dict) -> dict[str, values.Value]:
    """Typed values by name: `static` ones under layers of texts, the last of which is strongest."""
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
    """Raises ConfigError when one of these settings cannot be changed while the broker runs."""
    for name, value in check_layer(texts, per_broker).items():
        if name in THREADS and not settings[name] // 2 <= value <= settings[name] * 2:
            raise ConfigError(f"Invalid value {value} for configuration {name}: expected between "
                              f"half and double the current {settings[name]}")


def check_layer(texts: dict[str, str], per_broker: bool) -> dict[str, values.Value]:
    """The typed values of a layer, whatever is in force; raises ConfigError."""
    fixed = sorted(name for name in texts
                   if catalogue.is_broker(name) and not catalogue.broker(name).dynamic)
    if fixed:
        raise ConfigError(f"Cannot update these configs dynamically: {', '.join(fixed)}")
    prefixed = sorted(name for name in texts if name in LISTENER_ONLY)
    if prefixed:
        raise ConfigError("These security configs can be changed for one listener only, by the "
                          f"prefix listener.name.<listener>.: {', '.join(prefixed)}")
    typed = {name: values.parse(setting(name), text) for name, text in texts.items()
             if setting(name) is not None}
    if not per_broker:
        own = sorted(name for name in typed if setting(name).dynamic == "broker")
        if own:
            raise ConfigError("Cannot update these configs at default cluster level, a broker id "
                              f"is needed: {', '.join(own)}")
    return typed
