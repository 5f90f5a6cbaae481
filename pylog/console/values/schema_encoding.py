"""Bytes of a value in JSON, by a schema of the registry.

Owns: nothing.
Invariants: a value that does not fit its schema is rejected with the field; the bytes name their
  schema in Confluent's wire format.
Source: Confluent's wire format.
"""

from __future__ import annotations

from typing import NamedTuple

from pylog.client.errors import KafkaError
from pylog.client.serialization.avro import HEAD, MAGIC
from pylog.client.serialization.protobuf import index_bytes
from pylog.console.pages import PageError
from pylog.console.values.decoder_process import ENCODE, DecoderProcess, encoded_of
from pylog.console.values.schema_formats import NAMES, PROTOBUF
from pylog.console.values.schemas import Schemas


class SchemaChoice(NamedTuple):
    """The schema of a form: an id, or a version of a subject. message: of Protobuf; "" for the
    first message type of the schema.
    """

    schema_id: int
    subject: str
    version: int | str
    message: str


def encode(text: str, chosen: SchemaChoice, label: str, schemas: Schemas, process: DecoderProcess
           ) -> bytes:
    """Return the bytes of a value. Blocks: call it on a thread. Raises PageError."""
    try:
        number, bundle = chosen.schema_id, None
        if number:
            bundle = schemas.bundle(number)
        else:
            number, schema = schemas.registry.version(chosen.subject, chosen.version)
            bundle = schemas.with_references(schema)
    except (KafkaError, LookupError, TypeError, ValueError) as failure:
        raise PageError(400, f"The schema of the {label} could not be read", str(failure),
                        "Choose a subject and a version, or an id.") from None
    [result] = process.run([(ENCODE, number, text, chosen.message)], {number: bundle})
    if result.data is None:
        kind = NAMES.get(bundle.schema.kind, bundle.schema.kind)
        raise PageError(400, f"The {label} does not fit {kind} schema {number}", result.error,
                        "Correct the value.")
    data, indexes = encoded_of(result)
    head = HEAD.pack(MAGIC, number)
    return head + (index_bytes(indexes) if bundle.schema.kind == PROTOBUF else b"") + data
