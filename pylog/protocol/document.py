"""Generates docs/reference/protocol.md from the protocol tables.

Owns: nothing; the document is generated, never edited.
Invariants: the same tables generate the same bytes.
"""

import sys

from pylog.protocol import api, tables
from pylog.protocol.errors import TABLE
from pylog.protocol.tables import NONE, OPEN, Message, Range

_INTRODUCTION = """\
# The protocol

Generated from `pylog/protocol` by `make docs`; do not edit.

brokerd speaks Apache Kafka 4.4's wire protocol. The codec knows every message of it; a request
is served when "served" names its versions, and only then does ApiVersions advertise it. Produce is
advertised from version 0 on, as Kafka does for old clients, and refused below 3.

"Flexible" is the first version with compact lengths and tagged fields. "Listeners" are those on
which Kafka takes the request.
"""
_RECORDS = """\
Records of `__cluster_metadata`, in a frame of their own: frame version 1, number and version of the
record, then its fields.
"""
_KEYS = """\
Records of the internal topics. A key begins with its number as int16, a value with its version. The
versions are those of the value.
"""
_COORDINATORS = {
    "records_group": "`__consumer_offsets`", "records_transaction": "`__transaction_state`",
    "records_share": "`__share_group_state`",
}


def document() -> str:
    """Return the text of docs/reference/protocol.md."""
    parts = [
        _INTRODUCTION, "## Requests\n", _requests(), "## Metadata records\n", _RECORDS, _records(),
        "## Coordinator records\n", _KEYS, _coordinator_records(), "## Error codes\n", _errors(),
    ]
    return "\n".join(parts)


def _table(columns: str, rows: list[str]) -> str:
    rule = "|---" * columns.count(" | ") + "|---|"
    return "\n".join([f"| {columns} |", rule, *rows]) + "\n"


def _row(*cells: object) -> str:
    return "| " + " | ".join([str(cell) for cell in cells]) + " |"


def _requests() -> str:
    rows = []
    advertised = api.advertised()
    for key in tables.ids("request"):
        table = tables.message(tables.name_of("request", key))
        if table.versions == NONE:
            continue
        served = _versions(advertised[key]) if key in advertised else ""
        stable = (table.versions[0], table.versions[1] - table.unstable)
        rows.append(_row(
            key, table.name.removesuffix("Request"), _versions(stable), _flexible(table), served,
            ", ".join(table.listeners), f"`{table.stem}.msg`",
        ))
    return _table("key | API | Kafka 4.4 | flexible | served | listeners | table", rows)


def _records() -> str:
    rows = []
    for number in tables.ids("record"):
        table = tables.message(tables.name_of("record", number))
        rows.append(_row(number, table.name, _versions(table.versions)))
    return _table("number | record | versions", rows)


def _coordinator_records() -> str:
    rows = []
    for name in tables.names():
        table = tables.message(name)
        if table.kind == "value":
            rows.append(_row(
                _COORDINATORS[table.stem], table.id, table.name.removesuffix("Value"),
                _versions(table.versions),
            ))
    return _table("topic | number | record | versions", rows)


def _errors() -> str:
    rows = [
        _row(code, error.name, "yes" if error.retriable else "", error.message)
        for code, error in sorted(TABLE.items())
    ]
    return _table("code | name | may be retried | meaning", rows)


def _versions(range_: Range) -> str:
    low, high = range_
    return str(low) if low == high else f"{low}-{high}"


def _flexible(table: Message) -> str:
    assert table.flexible == NONE or table.flexible[1] == OPEN, table.name
    return "" if table.flexible == NONE else f"{table.flexible[0]}+"


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(document())
