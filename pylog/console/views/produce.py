"""Produce one record: a new one, or a changed copy of another.

Owns: nothing.
Invariants: the form keeps what the user typed if the record is rejected; the record that a copy
  starts from is not changed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import Response

from pylog.client.aio import Producer
from pylog.client.errors import AuthorizationError, KafkaError
from pylog.client.columns.rows import Row
from pylog.client.serialization.avro import HEAD
from pylog.client.serialization.protobuf import message_indexes
from pylog.console.records import single_records
from pylog.console.records.decoding import decodings
from pylog.console.records.encoding import (
    FORMATS, JSON, NULL, SCHEMA_TITLE, encoded, header_lines, headers_of, shown,
)
from pylog.console.records.masking import Visible
from pylog.console.pages import (
    PRODUCE, Page, PageError, audit_details, form_of, integer, not_audited, redirect,
)
from pylog.console.rendering import render
from pylog.console.values.column_formats import SCHEMA
from pylog.console.values.row_decoding import framed_schema
from pylog.console.values.schema_formats import JSON_SCHEMA, NAMES, PROTOBUF
from pylog.console.values.schema_encoding import SchemaChoice, encode
from pylog.console.views.browse import decoder_of, visible_rows
from pylog.console.views.schemas import SETTING as REGISTRY_SETTING

if TYPE_CHECKING:
    from starlette.requests import Request

    from pylog.console.clusters import ClusterSession

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
SEND_S = 20.0
BODY_MAX = 16 << 20  # Bytes of a form; a key or value can be a text of several MiB.
RECORDS_SENT_MAX = 1000


async def produce(request: Request, cluster: ClusterSession) -> Response:
    """Show the form, or send the record."""
    name = request.path_params["topic"]
    topic = (await cluster.admin.describe_topics([name]))[name]
    if request.method == "GET":
        form = await _copied(request, cluster, name)
        return _page(request, name, len(topic.partitions), form)
    form = await form_of(request)
    try:
        sent = await _send(request, cluster, name, len(topic.partitions), form)
    except AuthorizationError:
        raise
    except (KafkaError, PageError) as failure:
        not_audited(request)
        return _page(request, name, len(topic.partitions), form, str(failure))
    audit_details(request, **sent)
    return redirect(cluster.url("topics", name, "produce", count=sent["count"] if
                                sent["count"] > 1 else None),
                    f"Sent to partition {sent['partition']}, offset {sent['offset']}.")


def _page(request: Request, name: str, partitions: int, form: dict[str, str],
          failure: str = "") -> Response:
    has_registry = request.app.state.console.schemas is not None
    formats = {**FORMATS, SCHEMA: SCHEMA_TITLE} if has_registry else FORMATS
    return render(request, "produce.html", 400 if failure else 200, name=name, form=form,
                  failure=failure, formats=formats, codecs=CODECS, partitions=partitions,
                  has_registry=has_registry)


async def _part(request: Request, form: dict[str, str], part: str, default: str) -> bytes | None:
    """Return the bytes of the form's key or value. Raises PageError."""
    text, kind = form.get(part, ""), form.get(f"{part}_format", default)
    if kind != SCHEMA:
        return encoded(text, kind, part.capitalize())
    console = request.app.state.console
    if console.schemas is None:
        raise PageError(400, "This console has no schema registry", REGISTRY_SETTING,
                        f"Set {REGISTRY_SETTING} to the registry's URL.")
    number, version = form.get(f"{part}_schema", "").strip(), form.get(f"{part}_version", "")
    chosen = SchemaChoice(
        integer(number, "The id of the schema", 1, INT32_MAX) if number else 0,
        form.get(f"{part}_subject", "").strip(),
        integer(version, "The version", 1, INT32_MAX) if version.strip() else "latest",
        form.get(f"{part}_message", "").strip())
    if not chosen.schema_id and not chosen.subject:
        raise PageError(400, f"The {part} has no schema", "", "Enter a subject, or an id.")
    return await asyncio.to_thread(encode, text, chosen, part, console.schemas, console.decoder)


async def _send(request: Request, cluster: ClusterSession, name: str, partitions: int,
                form: dict[str, str]) -> dict[str, int]:
    """Send the record of a form. Raises PageError, KafkaError."""
    key = await _part(request, form, "key", NULL)
    value = await _part(request, form, "value", JSON)
    headers = headers_of(form.get("headers", ""))
    partition = timestamp = None
    if text := form.get("partition", "").strip():
        partition = integer(text, "Partition", 0, partitions - 1)
    if text := form.get("timestamp", "").strip():
        timestamp = integer(text, "Timestamp", 0, INT64_MAX)
    count = integer(form.get("count", "") or "1", "Count", 1, RECORDS_SENT_MAX)
    codec = form.get("compression", "none")
    if codec not in CODECS:
        raise PageError(400, "There is no such compression", codec[:50])
    settings = {**cluster.client_settings, "compression.type": codec, "acks": "all"}
    async with Producer.from_settings(settings) as producer:
        for _ in range(count):
            done = await producer.send_and_wait(
                name, value, key, partition=partition, timestamp=timestamp, headers=headers,
                timeout=SEND_S)
    return {"partition": done.partition, "offset": done.offset, "count": count}


async def _copied(request: Request, cluster: ClusterSession, name: str) -> dict[str, str]:
    """Return the form's values: those of the record at ?partition=&offset=, if it is given."""
    query = request.query_params
    if not query.get("offset"):
        return {}
    if request.app.state.console.masks.of(name, cluster.principal).hides_something:
        raise PageError(403, "Records of this topic cannot be copied", name,
                        "Fields of the topic are hidden from you by console.masking.file.")
    partition = integer(query.get("partition", ""), "Partition", 0, INT32_MAX)
    offset = integer(query["offset"], "Offset", 0, INT64_MAX)
    record = await single_records.first_from(cluster, name, partition, offset)
    if record is None or record.offset != offset:
        raise PageError(404, "There is no such record", f"{name}, partition {partition}, offset "
                        f"{offset}", "It may have been deleted or compacted.")
    mask = request.app.state.console.masks.of(name, cluster.principal)
    [row] = await visible_rows(mask, decoder_of(request, name), [Row(
        partition, offset, record.timestamp, record.key, record.value, list(record.headers))])
    return {**_shown_part("key", row.key), **_shown_part("value", row.value),
            "headers": header_lines(row.headers), "partition": str(partition),
            "copied": f"{partition}, offset {offset}"}


def _shown_part(part: str, visible: Visible) -> dict[str, str]:
    """Return a form's fields for a key or value: as JSON if its bytes name their schema."""
    number = framed_schema(visible.raw or b"")
    if visible.data is not None and visible.name and not visible.error and number:
        text, message = decodings(visible)[0].text, ""
        if visible.name.startswith(NAMES[PROTOBUF]):
            indexes, _ = message_indexes(visible.raw or b"", HEAD.size)
            message = ".".join(map(str, indexes)) if indexes != (0,) else ""
        elif visible.name.startswith(NAMES[JSON_SCHEMA]):
            text = visible.data.decode()
        return {part: text, f"{part}_format": SCHEMA, f"{part}_schema": str(number),
                f"{part}_message": message}
    text, form = shown(visible)
    return {part: text, f"{part}_format": form}


PAGES = [
    Page("/topics/{topic}/produce", produce, methods=("GET", "POST"),
         operations=("DESCRIBE TOPIC", "WRITE TOPIC", "READ TOPIC to copy a record"), changes=True,
         audit="records.produce", permission=PRODUCE, body_bytes_max=BODY_MAX),
]
