"""One record: key, value and headers in every way that they can be read; and its bytes as a file.

Owns: nothing.
Invariants: a page about an offset without a record leads to the next record; a downloaded file has
  a fixed type, and browsers never open it as a page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from pylog.client.columns.rows import Row
from pylog.console.records import decoding, single_records
from pylog.console.pages import EXPORT, Page, PageError, audit_details, integer, redirect
from pylog.console.rendering import render
from pylog.console.values.column_formats import NAMES, TITLES, formats_of
from pylog.console.views.browse import decoder_of, visible_rows

if TYPE_CHECKING:
    from starlette.requests import Request

    from pylog.console.clusters import ClusterSession

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
OPERATIONS = ("READ TOPIC", "DESCRIBE TOPIC")
PARTS = ("key", "value")


async def record(request: Request, cluster: ClusterSession) -> Response:
    """Show a record, or lead to its neighbour: ?previous=1 to the record before this offset."""
    name, partition, offset = await _place(request, cluster)
    path = ("topics", name, "records", partition)
    if request.query_params.get("previous") == "1":
        before = await single_records.last_before(cluster, name, partition, offset)
        if before is None:
            return redirect(cluster.url(*path, offset, **_formats(request)),
                            "There is no record before this one.")
        return redirect(cluster.url(*path, before.offset, **_formats(request)))
    found = await single_records.first_from(cluster, name, partition, offset)
    if found is None:
        raise _missing(name, partition, offset)
    if found.offset != offset:
        return redirect(cluster.url(*path, found.offset, **_formats(request)),
                        f"The offset {offset} has no record. This is the next one.")
    mask = request.app.state.console.masks.of(name, cluster.principal)
    formats = formats_of(request.query_params)
    [row] = await visible_rows(mask, decoder_of(request, name), [Row(
        partition, offset, found.timestamp, found.key, found.value, list(found.headers))])
    part = await cluster.attempt(f"READ TOPIC {name}", lambda: single_records.batch_of(
        cluster, name, partition, offset))
    return render(
        request, "single_record.html", batch=part, name=name, partition=partition, offset=offset,
        timestamp=row.timestamp, is_masked=mask.hides_something, chosen=_formats(request),
        format_titles=TITLES, formats=formats,
        has_registry=request.app.state.console.schemas is not None,
        parts=[("Key", "key", row.key, decoding.chosen(row.key, formats["key"])),
               ("Value", "value", row.value, decoding.chosen(row.value, formats["value"]))],
        headers=[(header, content, decoding.decodings(content))
                 for header, content in row.headers])


def _formats(request: Request) -> dict[str, str]:
    """Return the part of the query that chooses formats."""
    return {name: given for name in NAMES if (given := request.query_params.get(name))}


async def record_part(request: Request, cluster: ClusterSession) -> Response:
    """Return the bytes of a key or value as a file."""
    name, partition, offset = await _place(request, cluster)
    part = request.path_params["part"]
    if part not in PARTS:
        raise PageError(404, "A record has no such part", part[:50], "It has a key and a value.")
    found = await single_records.first_from(cluster, name, partition, offset)
    mask = request.app.state.console.masks.of(name, cluster.principal)
    content = None if found is None or found.offset != offset \
        else getattr(mask, part)(getattr(found, part)).data
    if content is None:
        raise _missing(name, partition, offset)
    return Response(content, media_type="application/octet-stream", headers={
        "Content-Disposition": f'attachment; filename="{name}-{partition}-{offset}-{part}.bin"'})


async def _place(request: Request, cluster: ClusterSession) -> tuple[str, int, int]:
    """Return (topic, partition, offset) of the path. Raises PageError, KafkaError."""
    given = request.path_params
    partition = integer(given["partition"], "Partition", 0, INT32_MAX)
    offset = integer(given["offset"], "Offset", 0, INT64_MAX)
    audit_details(request, topic=given["topic"], partition=partition, offset=offset)
    topic = (await cluster.admin.describe_topics([given["topic"]]))[given["topic"]]
    if partition not in topic.partitions:
        raise PageError(404, "The topic has no such partition", str(partition),
                        f"It has the partitions 0 to {len(topic.partitions) - 1}.")
    return given["topic"], partition, offset


def _missing(name: str, partition: int, offset: int) -> PageError:
    return PageError(404, "There is no such record",
                     f"{name}, partition {partition}, offset {offset}",
                     "It may have been deleted or compacted, or not yet be written.")


PAGES = [
    Page("/topics/{topic}/records/{partition}/{offset}", record, operations=OPERATIONS,
         changes=False, audit="records.read"),
    Page("/topics/{topic}/records/{partition}/{offset}/{part}", record_part,
         operations=OPERATIONS, changes=False, audit="records.export", permission=EXPORT),
]
