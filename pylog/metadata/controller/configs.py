"""Decisions on configs of topics, brokers, groups and client metrics: request to ConfigRecords.

Owns: nothing; no clock, no disk.
Invariants: a resource is altered completely or not at all, and the others of its request are still
  processed; a record satisfies the checks that apply when it comes into force; if a secret is
  configured, no sensitive broker setting is stored in plain text.
Source: KIP-133, KIP-339 (incremental), KIP-226 (brokers), KIP-412 (loggers), KIP-848 (groups);
  error codes and their order as Kafka 4.4's.
"""

import logging
from collections import Counter, namedtuple

from pylog.config import ConfigError, catalogue, clusters, dynamic, groups
from pylog.config.values import format_value
from pylog.metadata.controller import broker_registration
from pylog.metadata.controller.partitions import eligible_leader_replicas
from pylog.metadata.controller.partitions import topics
from pylog.metadata.image.image import RESOURCE_BROKER, RESOURCE_TOPIC, Image
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

RESOURCE_LOGGER = 8
RESOURCE_SUBSCRIPTION = 16
RESOURCE_GROUP = 32
SET, DELETE, APPEND, SUBTRACT = range(4)
WORDS = {APPEND: "APPEND", SUBTRACT: "SUBTRACT"}
VALUE_BYTES_MAX = 32_767
CORDONED = "cordoned.log.dirs"
NODE_DIGITS_MAX = 10

log = logging.getLogger("pylog.metadata")

Altered = namedtuple("Altered", ("error", "message"), defaults=(ErrorCode.NONE, None))
Altered.__doc__ = "The result for one resource of a request."


def alter(image: Image, resources, settings, node_id: int, incremental: bool):
    """Decide the resources of an (Incremental)AlterConfigsRequest, in steps.

    Returns (records, [Altered, in order; None for a logger, which is not metadata]).
    """
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    records: list = []
    results: list[Altered | None] = []
    for resource in resources:
        yield
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise _bad("Each resource must appear at most once.")
            _check_form(resource, incremental)
            if resource.resource_type == RESOURCE_LOGGER and incremental:
                results.append(None)
                continue
            # A resource is altered completely or not at all.
            records += _records(image, resource, settings, node_id, incremental)
        except Refusal as refusal:
            results.append(Altered(refusal.error, refusal.message))
        except ConfigError as error:
            results.append(Altered(_error_of(resource), str(error)))
        else:
            results.append(Altered())
    return records + eligible_leader_replicas.cleared(image, records), results


def own_fault(image: Image, resource, settings, node_id: int, incremental: bool) -> Altered | None:
    """Return why this broker, by its own files and settings, rejects a change to its dynamic
    settings or the cluster default, None if it does not. A remote controller cannot check that.
    """
    kind, name = resource.resource_type, resource.resource_name
    try:
        _check_form(resource, incremental)
        if name and node_number(name) != node_id:
            raise _another(name, node_id)
        _check_broker(image, image.configs.get((kind, name), {}), resource, settings, node_id,
                      incremental)
    except Refusal as refusal:
        return Altered(refusal.error, refusal.message)
    except ConfigError as error:
        return Altered(_error_of(resource), str(error))
    return None


def _check_form(resource, incremental: bool) -> None:
    names = [_present_name(resource.resource_type, config.name) for config in resource.configs]
    if len(set(names)) < len(names):
        raise _bad("Error due to duplicate config keys")
    missing = [config.name for config in resource.configs if config.value is None
               and not (incremental and config.config_operation == DELETE)]
    if missing:
        raise _bad(f"Null value not supported for : {', '.join(missing)}")


def _error_of(resource) -> int:
    # Kafka reports a broker setting that the broker cannot use as INVALID_REQUEST (KAFKA-13609).
    return ErrorCode.INVALID_REQUEST if resource.resource_type == RESOURCE_BROKER \
        else ErrorCode.INVALID_CONFIG


def _records(image, resource, settings, node_id, incremental) -> list:
    kind, name = resource.resource_type, resource.resource_name
    if kind not in _CHECKS:
        raise _bad(f"Unknown resource type {kind}")
    current = image.configs.get((kind, name), {})
    if kind == RESOURCE_BROKER:
        _check_node(image, name, node_id, settings)
        _check_eligible(image, name, resource, incremental)
        _check_broker(image, current, resource, settings, node_id, incremental)
    changes = _changes(kind, current, resource, incremental)
    for key, value in changes.items():
        if value is not None and len(value.encode()) > VALUE_BYTES_MAX:
            raise Refusal(ErrorCode.INVALID_CONFIG,
                          f"the value of {key} has more than {VALUE_BYTES_MAX} bytes")
    merged = {**current, **changes}
    _CHECKS[kind](image, name, {key: value for key, value in merged.items() if value is not None},
                  settings)
    if kind == RESOURCE_BROKER:
        # Written even if unchanged, so that the broker applies them again.
        return [_of_node(name, key, value and settings.sealer.sealed(key, value))
                for key, value in changes.items()]
    return [messages.ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
            for key, value in changes.items() if current.get(key) != value]


def _of_node(node: str, name: str, value: str | None):
    return messages.ConfigRecord(
        resource_type=RESOURCE_BROKER, resource_name=node, name=name, value=value)


def reencrypt(image: Image, settings) -> list:
    """Return the records that encrypt, with the current secret, settings stored in plain text or
    encrypted with the previous secret. Values that no secret decrypts stay unchanged.
    """
    sealer, records = settings.sealer, []
    for (kind, node), configs in image.configs.items():
        for name, stored in configs.items() if kind == RESOURCE_BROKER else ():
            try:
                if not sealer.is_current(name, stored):
                    records.append(_of_node(node, name, sealer.sealed(
                        name, sealer.opened(name, stored))))
            except ConfigError as error:
                log.error("a dynamic setting cannot be encrypted", extra={
                    "setting": name, "broker": node, "reason": str(error)})
    return records


def _changes(kind: int, current: dict, resource, incremental: bool) -> dict:
    """Return {setting: new text, or None to remove it}, by present names."""
    if incremental:
        changes = {_present_name(kind, config.name): _operated(kind, current, config)
                   for config in resource.configs}
        # A record of an earlier release may have set the former name.
        superseded = [key for key in current if _present_name(kind, key) != key
                      and _present_name(kind, key) in changes]
    else:
        changes = {_present_name(kind, config.name): config.value for config in resource.configs}
        superseded = [key for key in current if key not in changes]
    return {**changes, **dict.fromkeys(superseded)}


def _present_name(kind: int, name: str) -> str:
    return catalogue.current_name(name) if kind == RESOURCE_BROKER else name


def _operated(kind: int, current: dict, config) -> str | None:
    operation = config.config_operation
    if operation == SET:
        return config.value
    if operation == DELETE:
        return None
    if operation not in WORDS:
        raise _bad(f"Unknown operations type {operation}")
    setting = _setting(kind, config.name)
    if setting is None or setting.type != "list":
        raise Refusal(ErrorCode.INVALID_CONFIG, (
            f"Config value {WORDS[operation].lower()} is not allowed for config key: "
            f"{config.name}" if kind == RESOURCE_BROKER else
            f"Can't {WORDS[operation]} to key {config.name} because its type is not LIST."))
    text = current.get(config.name)
    words = [word for word in (format_value(setting.default) if text is None else text).split(",")
             if word]
    for word in config.value.split(","):
        if operation == SUBTRACT and word in words:
            words.remove(word)
        elif operation == APPEND and word not in words:
            words.append(word)
    return ",".join(words)


def _setting(kind: int, name: str):
    # Like Kafka, set lists of groups and subscriptions only as a whole.
    if kind == RESOURCE_TOPIC:
        return catalogue.topic(name) if catalogue.is_topic(name) else None
    return dynamic.setting(name) if kind == RESOURCE_BROKER else None


def _check_eligible(image: Image, name: str, resource, incremental: bool) -> None:
    """Raise Refusal if the change breaks ELR's single min.insync.replicas (KIP-966)."""
    if not image.features.get(eligible_leader_replicas.ELR_FEATURE, 0):
        return
    named = {config.name: config for config in resource.configs}
    config = named.get(eligible_leader_replicas.MIN_IN_SYNC)
    if name and config is not None:
        raise Refusal(ErrorCode.INVALID_CONFIG,
                      f"Broker-level {eligible_leader_replicas.MIN_IN_SYNC} cannot be altered "
                      "while ELR is enabled.")
    goes = config is not None and config.config_operation == DELETE if incremental \
        else config is None
    if not name and goes:
        raise Refusal(ErrorCode.INVALID_CONFIG,
                      f"Cluster-level {eligible_leader_replicas.MIN_IN_SYNC} cannot be removed "
                      "while ELR is enabled.")


def _check_node(image: Image, name: str, node_id: int, settings) -> None:
    if not name:
        return
    number = node_number(name)
    if number is None:
        raise _another(name, node_id)
    # The controller decides for every node of its cluster.
    known = {*image.brokers, *(voter.node_id for voter in clusters.voters(settings))}
    if number not in known and settings.controller_listeners:
        raise Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {number} found.")
    if number != node_id and number not in known:
        raise _another(name, node_id)


def _another(name: str, node_id: int) -> Refusal:
    """Return the Refusal for a resource name that is not this broker."""
    return _bad(f"Node id must be an integer, but it is: {name}" if node_number(name) is None
                else f"Unexpected broker id, expected {node_id}, but received {name}")


def node_number(name: str) -> int | None:
    """Return the node id in a resource name, None if it is not a 32-bit number."""
    digits = name[1:] if name[:1] in ("-", "+") else name
    if not (digits.isascii() and digits.isdigit()) or len(digits) > NODE_DIGITS_MAX:
        return None
    return int(name)


def _check_broker(image, current: dict, resource, settings, node_id, incremental: bool) -> None:
    """Check the settings that would be in force after the change."""
    per_broker = resource.resource_name != ""
    base = settings.usable_dynamic(current, per_broker) if incremental else {}
    changes = _changes(RESOURCE_BROKER, base, resource, incremental)
    wanted = {key: value for key, value in {**base, **changes}.items() if value is not None}
    if CORDONED in changes and not broker_registration.has_cordons(image):
        raise Refusal(ErrorCode.INVALID_CONFIG,
                      f"The {CORDONED} configuration value cannot be set because it requires "
                      f"metadata.version >= {broker_registration.CORDONING}")
    if per_broker and node_number(resource.resource_name) != node_id:
        # That broker has already checked: only it has its files and its configuration file.
        dynamic.check_layer(wanted, per_broker)
        return
    candidate = settings.check_dynamic(wanted, per_broker)
    _check_listeners(candidate, {dynamic.base_name(key) for key in changes})


def _check_listeners(candidate, changed: set[str]) -> None:
    """Raise if a listener would have no certificate or impossible logins: the next start would
    fail, and an administrator could not connect to repair it.
    """
    opens = not changed.isdisjoint(("listeners", "listener.security.protocol.map"))
    if opens or any(name.startswith("ssl.") for name in changed):
        # Imported here: it loads OpenSSL.
        from pylog.security.tls import listener_tls

        listener_tls.check(candidate)
    if opens or any("sasl." in name for name in changed):
        from pylog.security.sasl import sasl

        sasl.check(candidate)


def _of_topic(image, name, configs, settings) -> None:
    if not name:
        raise _bad("Default topic resources are not allowed.")
    fault = topics.topic_name_fault(name)
    if fault is not None:
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    settings.validate_topic_configs(configs)
    if name not in image.topics:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")


def _of_broker(image, name, configs, settings) -> None:
    """Check nothing more: the broker has checked the change."""


def _of_group(image, name, configs, settings) -> None:
    if not name:
        raise _bad("Default group resources are not allowed.")
    groups.validate_group_configs(configs, settings)


def _of_subscription(image, name, configs, settings) -> None:
    if not name:
        raise _bad("Subscription name can't be empty")
    for key in configs:
        if not groups.is_subscription(key):
            raise _bad(f"Unknown client metrics configuration: {key}")
    groups.validate_subscription(configs)
    fault = groups.subscription_interval_fault(configs)
    if fault is not None:
        raise _bad(fault)


def _bad(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)


_CHECKS = {RESOURCE_TOPIC: _of_topic, RESOURCE_BROKER: _of_broker, RESOURCE_GROUP: _of_group,
           RESOURCE_SUBSCRIPTION: _of_subscription}
