"""Produce one record: a new one, or a changed copy of another.

Owns: nothing.
Invariants: the form keeps what the user typed if the record is rejected; the record that a copy
  starts from is not changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from pylog.client.aio import Producer
from pylog.client.errors import AuthorizationError, KafkaError
from pylog.console.records import single_records
from pylog.console.records.encoding import (
    FORMATS, JSON, NULL, encoded, header_lines, headers_of, shown,
)
from pylog.console.pages import (
    PRODUCE, Page, PageError, audit_details, form_of, integer, not_audited, redirect,
)
from pylog.console.rendering import render

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
        sent = await _send(cluster, name, len(topic.partitions), form)
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
    return render(request, "produce.html", 400 if failure else 200, name=name, form=form,
                  failure=failure, formats=FORMATS, codecs=CODECS, partitions=partitions)


async def _send(cluster: ClusterSession, name: str, partitions: int, form: dict[str, str]
                ) -> dict[str, int]:
    """Send the record of a form. Raises PageError, KafkaError."""
    key = encoded(form.get("key", ""), form.get("key_format", NULL), "Key")
    value = encoded(form.get("value", ""), form.get("value_format", JSON), "Value")
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
    key, key_format = shown(mask.key(record.key))
    value, value_format = shown(mask.value(record.value))
    headers = [(header, mask.header(header, given)) for header, given in record.headers]
    return {"key": key, "key_format": key_format, "value": value, "value_format": value_format,
            "headers": header_lines(headers), "partition": str(partition),
            "copied": f"{partition}, offset {offset}"}


PAGES = [
    Page("/topics/{topic}/produce", produce, methods=("GET", "POST"),
         operations=("DESCRIBE TOPIC", "WRITE TOPIC", "READ TOPIC to copy a record"), changes=True,
         audit="records.produce", permission=PRODUCE, body_bytes_max=BODY_MAX),
]
