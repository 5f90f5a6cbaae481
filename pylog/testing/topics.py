"""A topic under a test: fill it, read it, say what should be in it.

Owns: nothing.
Invariants: (1) reading sees what a consumer may see, and is no client: no offsets, no groups.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from pylog.testing.records import (
    Record,
    as_bytes,
    decoded,
    difference,
    expectation,
    headers_of,
    difference_text,
)

POLL_S = 0.005


class Topic:
    """One topic by its name, which need not exist."""

    def __init__(self, host: Any, name: str):
        self.name = name
        self._host = host

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<topic {self.name}>"

    @property
    def partitions(self) -> int:
        """How many partitions it has; 0 when there is no such topic."""
        return self._host.call("topics").get(self.name, 0)

    def append(self, *items: Any, partition: int = 0) -> int:
        """Appends records as a producer's one batch would; the offset of the first.

        items: values, (key, value) pairs, or record(...) with timestamp and headers; text is UTF-8.
        Without a timestamp a record has the broker's time. It is in the log when this returns; use
        a producer to have it acknowledged from disk.
        """
        return self._host.call("append", self.name, partition, [_row(item) for item in items])

    def records(self, *, partition: int | None = None, key: Callable | None = None,
                value: Callable | None = None) -> list[Record]:
        """All records, by partition, then by offset. key, value: what decodes bytes, `json.loads`
        for example."""
        return decoded([Record(*row) for row in self._host.call("records", self.name, partition)],
                       key, value)

    def values(self, **options: Any) -> list[Any]:
        """The values alone; options as for records()."""
        return [row.value for row in self.records(**options)]

    def ends(self) -> list[tuple[int, int]]:
        """(first offset, next offset) of each partition."""
        return self._host.call("ends", self.name)

    def assert_records(self, expected: Iterable[Any], *, within: float = 0.0,
                       any_order: bool = False, partition: int | None = None,
                       key: Callable | None = None, value: Callable | None = None) -> list[Record]:
        """The topic holds these records and no others; returns them.

        expected: values, (key, value) pairs, or record(...) of any fields. within: seconds to wait
        for them. Without any_order they are compared in the order of partition and offset. Raises
        AssertionError with a line for each difference.
        """
        __tracebackhide__ = True
        wanted = list(expected)
        is_decoded = key is not None or value is not None
        rows = [expectation(item, is_decoded) for item in wanted]
        end_s = time.monotonic() + within
        while True:
            found = self.records(partition=partition, key=key, value=value)
            lines = difference(found, rows, any_order)
            if not lines:
                return found
            # More records never take back what is too much.
            if len(found) >= len(rows) or time.monotonic() >= end_s:
                raise AssertionError(difference_text(
                    f"topic {self.name}", lines, len(found), len(rows)))
            time.sleep(POLL_S)

    def assert_empty(self) -> None:
        """The topic holds no records."""
        __tracebackhide__ = True
        self.assert_records([])

    def delete(self) -> None:
        """Raises Refused."""
        self._host.call("delete_topics", [self.name])


def _row(item: Any) -> tuple:
    fields = expectation(item, False)
    if not fields.keys() <= {"key", "value", "timestamp", "headers"}:
        raise TypeError("the broker chooses partition and offset of a record")
    return (as_bytes(fields.get("key")), as_bytes(fields.get("value")), fields.get("timestamp"),
            headers_of(fields.get("headers")))
