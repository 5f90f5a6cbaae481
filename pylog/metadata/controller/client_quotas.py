"""Decisions on client quotas: AlterClientQuotas to ClientQuotaRecords.

Owns: nothing; no clock, no disk.
Invariants: an entity is altered completely or not at all, and the others of its request are still
  processed; every record changes something.
Source: KIP-546; error codes, their order and their texts as Kafka 4.4's.
"""

import math
from collections import namedtuple

from pylog.config import client_quotas
from pylog.metadata.image.image import Image
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

LONG, INT, DOUBLE = "LONG", "INT", "DOUBLE"
LIMITS = {LONG: 2.0 ** 63, INT: 2.0 ** 31 - 1}
OF_CLIENTS = {client_quotas.PRODUCER_BYTE_RATE: LONG, client_quotas.CONSUMER_BYTE_RATE: LONG,
              client_quotas.REQUEST_PERCENTAGE: DOUBLE,
              client_quotas.CONTROLLER_MUTATION_RATE: DOUBLE}
OF_ADDRESSES = {client_quotas.CONNECTION_CREATION_RATE: INT}
FRACTION_MAX = 1e-6

Altered = namedtuple("Altered", ("entity", "error", "message"),
                     defaults=(ErrorCode.NONE, None))
Altered.__doc__ = "The result for one entity of a request; see pylog.config.client_quotas.entity."


def alter(image: Image, entries, hosts):
    """Decide AlterClientQuotasRequest.entries. hosts: names of ip entities that resolve.

    Returns (records, [Altered, one for each entity]).
    """
    records, results = [], {}
    for entry in entries:
        entity = client_quotas.entity((part.entity_type, part.entity_name) for part in entry.entity)
        try:
            names = [op.key for op in entry.ops]
            if entity in results or len(set(names)) < len(names):
                raise _bad(f"Ignoring duplicate entity {_text(entity)}")
            # An entity is altered completely or not at all.
            records += _records(image, entity, entry.ops, hosts)
        except Refusal as refusal:
            results[entity] = Altered(entity, refusal.error, refusal.message)
        else:
            results[entity] = Altered(entity)
    return records, list(results.values())


def _text(entity) -> str:
    """Return an entity as in Kafka's messages, with the order of its Java map."""
    order = {client_quotas.CLIENT_ID: 0, client_quotas.USER: 1, client_quotas.IP: 2}
    parts = sorted(entity, key=lambda part: order.get(part[0], 3))
    shown = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in parts)
    return f"ClientQuotaEntity(entries={{{shown}}})"


def _records(image, entity, ops, hosts) -> list:
    _check_entity(entity)
    types = _types(entity, hosts)
    current = image.client_quotas.get(entity, {})
    records, fault = [], None
    for op in ops:
        value = None if op.remove else op.value
        if value is not None:
            # Like Kafka, report the last fault.
            fault = _fault(types, op.key, value) or fault
        if current.get(op.key) != value:
            records.append(messages.ClientQuotaRecord(
                entity=[messages.ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name)
                        for kind, name in entity],
                key=op.key, value=0.0 if value is None else value, remove=value is None))
    if fault is not None:
        raise _bad(fault)
    return records


def _check_entity(entity) -> None:
    if not entity:
        raise _bad("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in (client_quotas.USER, client_quotas.CLIENT_ID, client_quotas.IP):
            raise _bad(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _bad(f"Empty {kind} not supported")


def _types(entity, hosts) -> dict:
    kinds = dict(entity)
    if client_quotas.IP not in kinds:
        return OF_CLIENTS
    if len(kinds) > 1:
        raise _bad("Invalid quota entity combination, IP entity shouldnot be combined with User "
                   "or ClientId")
    name = kinds[client_quotas.IP]
    if name is not None and name not in hosts:
        raise _bad(f"{name} is not a valid IP or resolvable host.")
    return OF_ADDRESSES


def _fault(types: dict, key: str, value: float) -> str | None:
    if key not in types:
        return f"Invalid configuration key {key}"
    if not math.isfinite(value):
        return f"Quota {key} must be a finite number"
    if value <= 0:
        return f"Quota {key} must be greater than 0"
    kind = types[key]
    if kind == DOUBLE:
        return None
    if value > LIMITS[kind]:
        return f"Proposed value for {key} is too large for {'an' if kind == INT else 'a'} {kind}."
    return f"{key} cannot be a fractional value." if value % 1.0 > FRACTION_MAX else None


def _bad(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
