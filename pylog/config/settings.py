"""The settings of one broker: read from a file and overrides, checked, typed, and explained.

Owns: the values in force and where each came from.
Invariants: (1) every value in force satisfies its row and the checks between rows;
  (2) a setting nobody set has its catalogue default; (3) nothing here touches the network, and only
  Settings.load reads a file; (4) what is set while the broker runs changes values
  only.
Source: KIP-631 (node.id, process.roles), KIP-226 (dynamic settings); Kafka's checks at
  start, as observed.
"""

import codecs
import copy
import os
import re

from . import (
    catalogue, clusters, dynamic, groups, listeners, properties, relations, sealing, topics, values,
)
from .errors import ConfigError, nearest

OVERRIDE, CLUSTER = "--override", "--cluster"
_NAME = re.compile(r"[a-z0-9]+(?:\.[a-z0-9]+)*")


class Settings:
    """Typed values by Kafka's names: `settings["log.segment.bytes"]`.

    texts: name -> text as in a properties file (a typed value is taken too). origins: name -> where
    the text came from, for messages. Raises ConfigError. `warnings` lists what was set in vain.
    `texts` is what was set at the start, `dynamic_cluster` and `dynamic_own` what was
    set since, as text. `listeners` and `advertised_listeners`, for clients and brokers, and
    `controller_listeners` are listeners.Listeners, `connection_limits` is host -> most connections.
    """

    def __init__(self, texts: dict | None = None, origins: dict[str, str] | None = None):
        self.warnings: list[str] = []
        self._origins = origins or {}
        self._values: dict[str, values.Value] = {}
        self._defaults: dict[str, values.Value] = {}
        self._topic_defaults: dict[str, values.Value] | None = None
        self._sealer: sealing.Sealer | None = None
        self.dynamic_cluster: dict[str, str] = {}
        self.dynamic_own: dict[str, str] = {}
        for name, text in (texts or {}).items():
            self._take(name, text)
        try:
            self._unify_node_id()
            self._static = dict(self._values)
            self._check_roles()
            self._check_together()
        except ConfigError as error:
            raise ConfigError(f"{error}{self._places(str(error))}") from None
        self.texts = {name: text for name, text in (texts or {}).items() if isinstance(text, str)}
        for name, value in self._static.items():
            self.texts[name] = values.format_value(value)

    @classmethod
    def load(cls, path: str | None = None, overrides=(), derive=None) -> "Settings":
        """From a .properties file (or none) and `key=value` strings, the last of which win.

        derive: texts as given -> texts for what is not. Raises ConfigError; OSError when the file
        cannot be read.
        """
        texts, origins = {}, {}
        if path is not None:
            for name, (text, line) in properties.parse(_read(path), path).items():
                texts[name], origins[name] = text, f"{path}:{line}"
        for override in overrides:
            name, equals, text = override.partition("=")
            if not equals or not name.strip():
                raise ConfigError(f"{OVERRIDE} {override}: expected key=value")
            texts[name.strip()], origins[name.strip()] = text, OVERRIDE
        if sealing.SECRET_FILE in texts:
            sealing.with_file(texts, origins)
        if derive is not None:
            for name, text in derive(texts).items():
                if name not in texts:
                    texts[name], origins[name] = text, CLUSTER
        return cls(texts, origins)

    def __getitem__(self, name: str) -> values.Value:
        if name in self._values:
            return self._values[name]
        if name not in self._defaults:
            self._defaults[name] = catalogue.broker(name).default
        return self._defaults[name]

    def value(self, name: str) -> values.Value:
        """As settings[name]; also for what only plug-ins know, as text."""
        return self[name] if catalogue.is_broker(name) else \
            self._values.get(name, self.texts.get(name))

    def of_listener(self, listener: str, name: str, mechanism: str = "") -> values.Value:
        """A setting as one listener, and one of its SASL mechanisms, has it; typed."""
        prefix = f"listener.name.{listener.lower()}."
        for own in ([f"{prefix}{mechanism.lower()}.{name}"] if mechanism else []) + [prefix + name]:
            value = self.value(own)
            if value is not None:
                return values.parse(catalogue.broker(name), value) if isinstance(value, str) \
                    else value
        return self[name]

    @property
    def reaches_others(self) -> bool:
        """Whether a listener is on an address that other machines can reach."""
        return any(not entry.is_loopback for entry in self.all_listeners)

    def open_listeners(self) -> list[str]:
        """The listeners on such an address that ask nobody who it is."""
        return [repr(entry) for entry in self.all_listeners if not entry.is_loopback
                and entry.protocol not in listeners.SASL_PROTOCOLS
                and not (entry.protocol == "SSL" and self.of_listener(
                    entry.name, "ssl.client.auth") == "required")]

    def origin(self, name: str) -> str:
        """Where the value in force came from: "default", "file:line", "--override" or "dynamic"."""
        if name in self.dynamic_own or name in self.dynamic_cluster:
            return "dynamic"
        return self._origins.get(name, "set") if name in self._values else "default"

    @property
    def is_member(self) -> bool:
        """Whether this broker is one of several nodes: its controller is, or may be, elsewhere."""
        return "controller" not in self["process.roles"] or clusters.has_quorum(self)

    @property
    def is_single_broker(self) -> bool:
        """Whether no other broker can join: no other controller, and no listener of this one."""
        return not self.is_member and not self.controller_listeners

    @property
    def all_listeners(self) -> tuple[listeners.Listener, ...]:
        """Those of clients and those of the controller."""
        return (*self.listeners, *self.controller_listeners)

    @property
    def between_brokers(self) -> str:
        """The name of the listener on which brokers reach each other."""
        named = self["inter.broker.listener.name"]
        return named.upper() if named is not None else self["security.inter.broker.protocol"]

    def protocol_of(self, listener: str) -> str:
        """The security protocol of a listener, by its name, here or at another node."""
        protocols = listeners.parse_protocol_map(
            self["listener.security.protocol.map"], self["controller.listener.names"])
        return protocols.get(listener, listeners.PROTOCOLS[0])

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The data directories as absolute paths, in order."""
        paths = self["log.dirs"] or self["log.dir"]
        return tuple(os.path.abspath(os.path.expanduser(path)) for path in paths)

    @property
    def cordoned_log_dirs(self) -> frozenset[str]:
        """Those of log_dirs that get no new replicas."""
        named = self["cordoned.log.dirs"]
        if relations.ALL_DIRECTORIES in named:
            return frozenset(self.log_dirs)
        return frozenset(os.path.abspath(os.path.expanduser(path)) for path in named)

    def topic_defaults(self) -> dict[str, values.Value]:
        """Topic setting -> the typed value that this broker gives it; not to be changed."""
        if self._topic_defaults is None:
            self._topic_defaults = {name: topics.broker_default(name, self)
                                    for name in catalogue.topic_names()}
        return self._topic_defaults

    def topic_config(self, configs: dict[str, str]) -> dict[str, values.Value]:
        """All topic settings in effect for a topic with these own settings, as far as they are
        valid."""
        return topics.topic_config(configs, self)

    def validate_topic_configs(self, configs: dict) -> dict[str, values.Value]:
        """The typed values of a topic's own settings; raises ConfigError (INVALID_CONFIG, 40)."""
        return topics.validate_topic_configs(configs, self)

    def check_dynamic(self, texts: dict[str, str], per_broker: bool) -> "Settings":
        """The settings as they would be with these of this broker's, else the cluster's. Raises
        ConfigError when it cannot have them."""
        dynamic.check(texts, per_broker, self)
        candidate = copy.copy(self)
        candidate._topic_defaults = None
        layers = (self.dynamic_cluster, texts) if per_broker else (texts, self.dynamic_own)
        candidate._values = dynamic.layered(self._static, *layers)
        candidate._check_together()
        relations.check_change(candidate)
        return candidate

    def usable_dynamic(self, texts: dict[str, str], per_broker: bool) -> dict[str, str]:
        """Those of stored settings that can be in force, opened: another version may have stored
        others, and another secret sealed them."""
        usable = {}
        for name, kept in texts.items():
            try:
                usable[name] = self._opened(name, kept, per_broker)
            except ConfigError:
                continue
        return usable

    def unusable_dynamic(self, texts: dict[str, str], per_broker: bool) -> dict[str, str]:
        """Why each of the others cannot be, by its name."""
        reasons = {}
        for name, kept in texts.items():
            try:
                self._opened(name, kept, per_broker)
            except ConfigError as error:
                reasons[name] = str(error)
        return reasons

    def _opened(self, name: str, kept: str, per_broker: bool) -> str:
        """Raises ConfigError."""
        text = self.sealer.opened(name, kept)
        dynamic.check_layer({name: text}, per_broker)
        return text

    @property
    def sealer(self) -> sealing.Sealer:
        """What sensitive settings are kept by in the metadata."""
        if self._sealer is None:
            self._sealer = sealing.Sealer(
                self[sealing.SECRET], self[sealing.OLD_SECRET])
        return self._sealer

    def set_dynamic(self, cluster: dict[str, str], own: dict[str, str]) -> str | None:
        """Puts what is set for the cluster and for this broker into force; both were checked.

        Returns why dynamic.LISTENING are the file's instead, None when they are not.
        """
        self.dynamic_cluster, self.dynamic_own = dict(cluster), dict(own)
        self._values = dynamic.layered(self._static, cluster, own)
        self._topic_defaults = None
        try:
            self._read_listeners()
        except ConfigError as error:
            # The file has changed since: a broker that starts where the file says can be mended.
            self._values = dynamic.layered(self._static, *(
                {name: text for name, text in layer.items() if name not in dynamic.LISTENING}
                for layer in (cluster, own)))
            self._read_listeners()
            return f"{', '.join(dynamic.LISTENING)} as set at run time: {error}"
        return None

    def explain(self, name: str) -> str:
        """What there is to know of a setting, with the value in force; raises ConfigError."""
        if not catalogue.is_broker(name) and catalogue.is_topic(name):
            setting, value = catalogue.topic(name), self.topic_defaults()[name]
            origin = next((self.origin(key) for key in setting.synonyms if self[key] is not None),
                          "default")
        elif catalogue.is_broker(name):
            setting, value, origin = catalogue.broker(name), self[name], self.origin(name)
        elif name in groups.names():
            setting, value = groups.group(name), groups.group_config({}, self)[name]
            origin = next((self.origin(key) for key in setting.synonyms), "default")
        else:
            raise _unknown(
                name, catalogue.broker_names() + catalogue.topic_names() + groups.names())
        return "\n".join(_explanation(setting, value, origin))

    def listing(self) -> list[str]:
        """A line for each broker setting: name, value, origin, and whether it is without effect."""
        lines = []
        for name in catalogue.broker_names():
            if name not in catalogue.INTERNAL:
                setting = catalogue.broker(name)
                inert = "" if setting.effect == "live" else "  (no effect in pylog yet)"
                lines.append(f"{name}={_shown(setting, self[name])}  [{self.origin(name)}]{inert}")
        return lines

    def _take(self, name: str, text) -> None:
        where = self._origins.get(name)
        try:
            value = self._typed(name, text)
            dynamic.check_identity_class(name, value)
        except ConfigError as error:
            raise ConfigError(f"{error} ({where})" if where else str(error)) from None
        if catalogue.is_broker(name):
            self._values[name] = value
            if catalogue.broker(name).effect == "live":
                return
        known = dynamic.setting(name)
        place = f" ({where})" if where else ""
        if not dynamic.has_listener_effect(name):
            self.warnings.append(f"{name} has no effect: set {dynamic.base_name(name)}, which "
                                 f"applies to all listeners{place}")
        elif name not in catalogue.PLUGIN and (known is None or known.effect != "live"):
            self.warnings.append(f"{name} has no effect in pylog yet{place}")

    def _typed(self, name: str, text) -> values.Value:
        if catalogue.is_broker(name):
            setting = catalogue.broker(name)
            if isinstance(text, str):
                return values.parse(setting, text)
            value = tuple(text) if isinstance(text, list) else text
            values.check(setting, value)
            return value
        if name in catalogue.PLUGIN or name.startswith(catalogue.PLUGIN_PREFIXES):
            known = dynamic.setting(name)
            if known is not None:
                values.parse(known, str(text))
            return text
        if name in catalogue.REMOVED:
            raise ConfigError(f"{name} was removed in Kafka 4; instead: {catalogue.REMOVED[name]}")
        raise _unknown(name, catalogue.broker_names())

    def _places(self, text: str) -> str:
        """Where the settings that a message names were set, "" when nobody set any."""
        named = _NAME.findall(text)
        places = dict.fromkeys(self._origins[name] for name in named if name in self._origins)
        return f" ({', '.join(places)})" if places else ""

    def _unify_node_id(self) -> None:
        # KIP-631: broker.id is the old name, and one of the two is enough.
        old = self._values.get("broker.id", -1)
        if old >= 0 and "node.id" not in self._values:
            self._values["node.id"] = old
            self._origins["node.id"] = self.origin("broker.id")
        if old >= 0 and self["node.id"] != old:
            raise ConfigError(f"broker.id {old} and node.id {self['node.id']} differ: "
                              "set one, or both alike")
        self._values["broker.id"] = self["node.id"]
        self._origins.setdefault("broker.id", self.origin("node.id"))

    def _check_roles(self) -> None:
        roles = self["process.roles"]
        if not roles or not set(roles) <= {"broker", "controller"}:
            raise ConfigError(f"process.roles={values.format_value(roles)}: expected broker, "
                              "controller, both, or left out")

    def _read_listeners(self) -> None:
        self.listeners, self.advertised_listeners, self.controller_listeners = \
            self._parse_listeners()
        self.connection_limits = listeners.parse_overrides(
            self["max.connections.per.ip.overrides"])
        relations.check_reachable(self)

    def _parse_listeners(self) -> tuple[tuple, tuple, tuple]:
        controllers = tuple(name.upper() for name in self["controller.listener.names"])
        protocols = listeners.parse_protocol_map(
            self["listener.security.protocol.map"], controllers)
        every = listeners.parse("listeners", self["listeners"], protocols)
        listeners.check_ports("listeners", every)
        bound = tuple(entry for entry in every if entry.name not in controllers)
        if not bound and "broker" in self["process.roles"]:
            raise ConfigError("listeners: at least one must serve clients, and so not be one of "
                              "controller.listener.names")
        if bound and "broker" not in self["process.roles"]:
            raise ConfigError("The listeners config must only contain KRaft controller listeners "
                              "from controller.listener.names when process.roles=controller")
        advertised = listeners.parse(
            "advertised.listeners", self["advertised.listeners"] or (), protocols)
        advertised = tuple(entry for entry in advertised if entry.name not in controllers)
        self._check_advertised(advertised, [entry.name for entry in bound])
        self._check_between([entry.name for entry in bound], protocols)
        return bound, advertised, tuple(entry for entry in every if entry.name in controllers)

    def _check_advertised(self, advertised: tuple, names: list[str]) -> None:
        there = f"there are: {', '.join(names)}"
        for entry in advertised:
            if entry.name not in names:
                raise ConfigError(
                    f"advertised.listeners: {entry!r}: no listener of that name; {there}")
            if entry.is_wildcard or not entry.port:
                raise ConfigError(
                    f"advertised.listeners: {entry!r} is no address to connect to: give a host's "
                    "name or address, and a port above 0")

    def _check_between(self, names: list[str], protocols: dict[str, str]) -> None:
        name = self["inter.broker.listener.name"]
        if name is None:
            return
        # A controller without a broker dials brokers at theirs, and has none of that name itself.
        there = names if "broker" in self["process.roles"] else list(protocols)
        if name.upper() not in there:
            raise ConfigError(f"inter.broker.listener.name={name}: no listener of that name; "
                              f"there are: {', '.join(there)}")

    def _check_together(self) -> None:
        self._read_listeners()
        for name in dynamic.LEAST:
            # With max.connections=0, Kafka starts and then answers nobody.
            dynamic.check_least(name, self[name])
        relations.check(self)
        if self["remote.log.storage.system.enable"]:
            raise ConfigError("remote.log.storage.system.enable=true: pylog has no tiered storage")
        topics.check_defaults(self)
        topics.validate_topic_configs({}, self)


def _read(path: str) -> str:
    with open(path, "rb") as file:
        data = file.read()
    # Windows editors begin a file with a byte order mark.
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        # Java reads properties files as Latin-1.
        return data.decode("latin-1")


def _unknown(name: str, known) -> ConfigError:
    near = nearest(name, known)
    hint = f"; nearest valid name: {near}" if near else ""
    return ConfigError(f"unknown setting {name}{hint}")


def _shown(setting, value) -> str:
    return "[hidden]" if setting.type == "password" and value else values.format_value(value)


def _explanation(setting, value, origin: str):
    yield f"{setting.name} = {_shown(setting, value) or '(unset)'}"
    yield f"  {setting.doc}"
    yield f"  from: {origin}"
    default = values.format_value(setting.default) or "(unset)"
    kafka = values.format_value(setting.kafka_default) or "(unset)"
    yield f"  default: {default}" + (f" (Kafka: {kafka})" if kafka != default else "")
    unit = f", in {setting.unit}" if setting.unit else ""
    limits = values.allowed(setting)
    yield f"  type: {setting.type}{unit}" + (f", {limits}" if limits else "")
    if setting.synonyms:
        yield f"  broker default: {', '.join(setting.synonyms)}"
    modes = {"": "at start only", "broker": "while running, per broker",
             "cluster": "while running, per broker or cluster-wide"}
    if not setting.synonyms:
        yield f"  changes: {modes[setting.dynamic]}"
    yield "  effect: " + ("yes" if setting.effect == "live" else "none in pylog yet")
