"""The settings of one broker: loads them from a file and overrides, checks and explains them.

Owns: the current values and their origins.
Invariants: every current value is within the limits of its row and passes the checks between rows;
  an unset setting has its catalogue default; this module never uses the network, and only
  Settings.load reads files; dynamic changes change values only.
Source: KIP-631 (node.id, process.roles), KIP-226 (dynamic settings); Kafka's startup checks, as
  observed.
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

    texts: name -> text as in a properties file, or a typed value. origins: name -> where the text
    came from, for messages. Raises ConfigError. `warnings`: settings without effect. `texts`: set
    at startup; `dynamic_cluster` and `dynamic_own`: set since, as text. `listeners` and
    `advertised_listeners`, for clients and brokers, and `controller_listeners` contain
    listeners.Listener; `connection_limits` is host -> maximum connections.
    """

    def __init__(self, texts: dict | None = None, origins: dict[str, str] | None = None):
        self.warnings: list[str] = []
        self._origins = origins or {}
        self._values: dict[str, values.Value] = {}
        self._defaults: dict[str, values.Value] = {}
        self._topic_defaults: dict[str, values.Value] | None = None
        self._sealer: sealing.PasswordEncoder | None = None
        self.dynamic_cluster: dict[str, str] = {}
        self.dynamic_own: dict[str, str] = {}
        texts = self._renamed(texts or {})
        for name, text in texts.items():
            self._take(name, text)
        try:
            self._unify_node_id()
            self._static = dict(self._values)
            self._check_roles()
            self._check_together()
        except ConfigError as error:
            raise ConfigError(f"{error}{self._with_origins(str(error))}") from None
        self.texts = {name: text for name, text in texts.items() if isinstance(text, str)}
        for name, value in self._static.items():
            self.texts[name] = values.format_value(value)

    @classmethod
    def load(cls, path: str | None = None, overrides=(), derive=None) -> "Settings":
        """Load settings from a .properties file (or none) and `key=value` strings, which take
        precedence.

        derive: returns texts for settings that are not given, from the given texts. Raises
        ConfigError; OSError if the file cannot be read.
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
        """Return settings[name], or the text of a plug-in's setting."""
        return self[name] if catalogue.is_broker(name) else \
            self._values.get(name, self.texts.get(name))

    def of_listener(self, listener: str, name: str, mechanism: str = "") -> values.Value:
        """Return the typed value for a listener, and for one of its SASL mechanisms."""
        prefix = f"listener.name.{listener.lower()}."
        for own in ([f"{prefix}{mechanism.lower()}.{name}"] if mechanism else []) + [prefix + name]:
            value = self.value(own)
            if value is not None:
                return values.parse(catalogue.broker(name), value) if isinstance(value, str) \
                    else value
        return self[name]

    @property
    def reaches_others(self) -> bool:
        """Return True if a listener has an address that other machines can reach."""
        return any(not entry.is_loopback for entry in self.all_listeners)

    def open_listeners(self) -> list[str]:
        """Return the listeners that other machines can reach without authentication."""
        return [repr(entry) for entry in self.all_listeners if not entry.is_loopback
                and entry.protocol not in listeners.SASL_PROTOCOLS
                and not (entry.protocol == "SSL" and self.of_listener(
                    entry.name, "ssl.client.auth") == "required")]

    def origin(self, name: str) -> str:
        """Return the origin of the current value: "default", "file:line", "--override" or
        "dynamic".
        """
        if name in self.dynamic_own or name in self.dynamic_cluster:
            return "dynamic"
        return self._origins.get(name, "set") if name in self._values else "default"

    @property
    def is_member(self) -> bool:
        """Return True if this broker is one of several nodes, so that the controller may be remote.
        """
        return "controller" not in self["process.roles"] or clusters.has_quorum(self)

    @property
    def is_single_broker(self) -> bool:
        """Return True if no other broker can join: there is no other controller and no controller
        listener.
        """
        return not self.is_member and not self.controller_listeners

    @property
    def all_listeners(self) -> tuple[listeners.Listener, ...]:
        """Return the listeners of clients and of the controller."""
        return (*self.listeners, *self.controller_listeners)

    @property
    def between_brokers(self) -> str:
        """Return the name of the listener that brokers use to reach each other."""
        named = self["inter.broker.listener.name"]
        return named.upper() if named is not None else self["security.inter.broker.protocol"]

    def protocol_of(self, listener: str) -> str:
        """Return the security protocol of a listener name, of this or another node."""
        protocols = listeners.parse_protocol_map(
            self["listener.security.protocol.map"], self["controller.listener.names"])
        return protocols.get(listener, listeners.PROTOCOLS[0])

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """Return the data directories as absolute paths, in order."""
        paths = self["log.dirs"] or self["log.dir"]
        return tuple(os.path.abspath(os.path.expanduser(path)) for path in paths)

    @property
    def cordoned_log_dirs(self) -> frozenset[str]:
        """Return the directories of log_dirs that get no new replicas."""
        named = self["cordoned.log.dirs"]
        if relations.ALL_DIRECTORIES in named:
            return frozenset(self.log_dirs)
        return frozenset(os.path.abspath(os.path.expanduser(path)) for path in named)

    def topic_defaults(self) -> dict[str, values.Value]:
        """Return topic setting -> typed default of this broker. Do not modify the result."""
        if self._topic_defaults is None:
            self._topic_defaults = {name: topics.broker_default(name, self)
                                    for name in catalogue.topic_names()}
        return self._topic_defaults

    def topic_config(self, configs: dict[str, str]) -> dict[str, values.Value]:
        """Return all effective settings of a topic with these overrides. Ignores invalid ones."""
        return topics.topic_config(configs, self)

    def validate_topic_configs(self, configs: dict) -> dict[str, values.Value]:
        """Return the typed values of a topic's overrides. Raises ConfigError (INVALID_CONFIG, 40).
        """
        return topics.validate_topic_configs(configs, self)

    def check_dynamic(self, texts: dict[str, str], per_broker: bool) -> "Settings":
        """Return the settings after this change of the broker's or the cluster's dynamic settings.
        Raises ConfigError if the result is invalid.
        """
        dynamic.check(texts, per_broker, self)
        candidate = copy.copy(self)
        candidate._topic_defaults = None
        layers = (self.dynamic_cluster, texts) if per_broker else (texts, self.dynamic_own)
        candidate._values = dynamic.layered(self._static, *layers)
        candidate._check_together()
        relations.check_change(candidate)
        return candidate

    def usable_dynamic(self, texts: dict[str, str], per_broker: bool) -> dict[str, str]:
        """Return the valid stored settings, decrypted. Another version may have stored invalid
        ones, or another secret may have encrypted them.
        """
        usable = {}
        for name, stored in _with_current_names(texts).items():
            try:
                usable[name] = self._opened(name, stored, per_broker)
            except ConfigError:
                continue
        return usable

    def unusable_dynamic(self, texts: dict[str, str], per_broker: bool) -> dict[str, str]:
        """Return the reasons why stored settings are unusable, by name."""
        reasons = {}
        for name, stored in texts.items():
            try:
                self._opened(name, stored, per_broker)
            except ConfigError as error:
                reasons[name] = str(error)
        return reasons

    def _opened(self, name: str, stored: str, per_broker: bool) -> str:
        """Return the decrypted text. Raises ConfigError if it cannot be decrypted or is invalid."""
        text = self.sealer.opened(name, stored)
        dynamic.check_layer({name: text}, per_broker)
        return text

    @property
    def sealer(self) -> sealing.PasswordEncoder:
        """Return the encryption of sensitive settings in the metadata."""
        if self._sealer is None:
            self._sealer = sealing.PasswordEncoder(
                self[sealing.SECRET], self[sealing.OLD_SECRET])
        return self._sealer

    def set_dynamic(self, cluster: dict[str, str], own: dict[str, str]) -> str | None:
        """Apply the dynamic settings of the cluster and of this broker; both were checked before.

        Return why dynamic.LISTENING are used from the file instead, None if they are not.
        """
        cluster, own = _with_current_names(cluster), _with_current_names(own)
        self.dynamic_cluster, self.dynamic_own = cluster, own
        self._values = dynamic.layered(self._static, cluster, own)
        self._topic_defaults = None
        try:
            self._read_listeners()
        except ConfigError as error:
            # The file has changed since. A broker that starts with the file's values can be
            # reconfigured.
            self._values = dynamic.layered(self._static, *(
                {name: text for name, text in layer.items() if name not in dynamic.LISTENING}
                for layer in (cluster, own)))
            self._read_listeners()
            return f"{', '.join(dynamic.LISTENING)} as set at run time: {error}"
        return None

    def explain(self, name: str) -> str:
        """Return a description of a setting with its current value. Raises ConfigError."""
        name = catalogue.current_name(name)
        if not catalogue.is_broker(name) and catalogue.is_topic(name):
            setting, value = catalogue.topic(name), self.topic_defaults()[name]
            origin = next((self.origin(key) for key in setting.synonyms if self[key] is not None),
                          "default")
        elif catalogue.is_broker(name):
            setting, value, origin = catalogue.broker(name), self[name], self.origin(name)
        elif name in groups.names():
            setting, value = groups.group(name), groups.group_config({}, self)[name]
            origin = next((self.origin(key) for key in setting.synonyms), "default")
        elif name in catalogue.PLUGIN:
            return "\n".join([f"{name} = {self.value(name) or '(unset)'}",
                              f"  {catalogue.PLUGIN[name]}", "  changes: at start only"])
        else:
            raise _unknown(name, catalogue.broker_names() + catalogue.topic_names()
                           + groups.names() + list(catalogue.PLUGIN))
        return "\n".join(_explanation(setting, value, origin))

    def listing(self) -> list[str]:
        """Return a line per broker setting: name, value, origin, and a note if it has no effect."""
        lines = []
        for name in catalogue.broker_names():
            if name not in catalogue.INTERNAL:
                setting = catalogue.broker(name)
                inert = "" if setting.effect == "live" else "  (no effect in pylog yet)"
                lines.append(f"{name}={_shown(setting, self[name])}  [{self.origin(name)}]{inert}")
        return lines

    def _renamed(self, texts: dict) -> dict:
        """Return the texts by present names, and add a warning for each former name."""
        for former in catalogue.FORMER_NAMES.keys() & texts.keys():
            name, location = catalogue.FORMER_NAMES[former], ""
            if former in self._origins:
                location = f" ({self._origins[former]})"
                self._origins.setdefault(name, self._origins[former])
            self.warnings.append(f"{former} is now called {name}: use that name, the former one "
                                 f"will be removed{location}")
        return catalogue.with_current_names(texts)

    def _take(self, name: str, text) -> None:
        """Set a value that was given at startup, and add a warning if it has no effect."""
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
        location = f" ({where})" if where else ""
        if not dynamic.has_listener_effect(name):
            self.warnings.append(f"{name} has no effect: set {dynamic.base_name(name)}, which "
                                 f"applies to all listeners{location}")
        elif name not in catalogue.PLUGIN and (known is None or known.effect != "live"):
            self.warnings.append(f"{name} has no effect in pylog yet{location}")

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

    def _with_origins(self, text: str) -> str:
        """Return the origins of the settings that a message names, "" if none was set."""
        named = _NAME.findall(text)
        origins = dict.fromkeys(self._origins[name] for name in named if name in self._origins)
        return f" ({', '.join(origins)})" if origins else ""

    def _unify_node_id(self) -> None:
        # KIP-631: broker.id is the old name of node.id, and setting either is enough.
        old = self._values.get("broker.id", -1)
        if old >= 0 and "node.id" not in self._values:
            self._values["node.id"] = old
            self._origins["node.id"] = self.origin("broker.id")
        if old >= 0 and self["node.id"] != old:
            raise ConfigError(f"broker.id {old} and node.id {self['node.id']} differ: set one, or "
                              f"both to the same value")
        self._values["broker.id"] = self["node.id"]
        self._origins.setdefault("broker.id", self.origin("node.id"))

    def _check_roles(self) -> None:
        roles = self["process.roles"]
        if not roles or not set(roles) <= {"broker", "controller"}:
            raise ConfigError(f"process.roles={values.format_value(roles)}: expected broker, "
                              f"controller or both, or remove the setting")

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
            raise ConfigError("listeners: at least one must serve clients, so it must not be in "
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
                    f"advertised.listeners: {entry!r}: no listener has that name; {there}")
            if entry.is_wildcard or not entry.port:
                raise ConfigError(
                    f"advertised.listeners: {entry!r} is not an address that clients can connect "
                    f"to: expected a host name or address, and a port above 0")

    def _check_between(self, names: list[str], protocols: dict[str, str]) -> None:
        name = self["inter.broker.listener.name"]
        if name is None:
            return
        # A controller without the broker role connects to listeners of this name, but has none
        # itself.
        there = names if "broker" in self["process.roles"] else list(protocols)
        if name.upper() not in there:
            raise ConfigError(f"inter.broker.listener.name={name}: no listener has that name; "
                              f"there are: {', '.join(there)}")

    def _check_together(self) -> None:
        self._read_listeners()
        for name in dynamic.LEAST:
            # With max.connections=0, Kafka starts but rejects every connection.
            dynamic.check_least(name, self[name])
        relations.check(self)
        if self["remote.log.storage.system.enable"]:
            raise ConfigError("remote.log.storage.system.enable=true: pylog has no tiered storage")
        topics.check_defaults(self)
        topics.validate_topic_configs({}, self)


def _read(path: str) -> str:
    with open(path, "rb") as file:
        data = file.read()
    # Windows editors start a file with a byte order mark.
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        # Java reads properties files as Latin-1.
        return data.decode("latin-1")


def _with_current_names(stored: dict[str, str]) -> dict[str, str]:
    """Return dynamic settings by present names. Records of an earlier release have former names; a
    value that was set later under the present name wins.
    """
    found = {catalogue.current_name(name): text for name, text in stored.items()}
    return {**found, **{name: stored[name] for name in found if name in stored}}


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
