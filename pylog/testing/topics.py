"""A topic under test: fill it, read it, compare its records.

Owns: nothing.
Invariants: reading returns what a consumer can see, without a client: no offsets, no groups.
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
    """A topic by name. It does not have to exist."""

    def __init__(self, host: Any, name: str):
        self.name = name
        self._host = host

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<topic {self.name}>"

    @property
    def partitions(self) -> int:
        """Return the number of partitions; 0 if the topic does not exist."""
        return self._host.call("topics").get(self.name, 0)

    def append(self, *items: Any, partition: int = 0) -> int:
        """Append records as one producer batch; return the first offset.

        items: values, (key, value) pairs, or record(...) with timestamp and headers. Text is
        encoded as UTF-8. The default timestamp is the broker's time. On return the records are in
        the log; use a producer to get an acknowledgement after the flush.
        """
        return self._host.call("append", self.name, partition, [_row(item) for item in items])

    def records(self, *, partition: int | None = None, key: Callable | None = None,
                value: Callable | None = None) -> list[Record]:
        """Return all records, by partition and offset.

        key, value: functions that decode bytes, such as `json.loads`.
        """
        return decoded([Record(*row) for row in self._host.call("records", self.name, partition)],
                       key, value)

    def values(self, **options: Any) -> list[Any]:
        """Return the values only. options: see records()."""
        return [row.value for row in self.records(**options)]

    def ends(self) -> list[tuple[int, int]]:
        """Return [(first offset, next offset)] by partition."""
        return self._host.call("ends", self.name)

    def assert_records(self, expected: Iterable[Any], *, within: float = 0.0,
                       any_order: bool = False, partition: int | None = None,
                       key: Callable | None = None, value: Callable | None = None) -> list[Record]:
        """Assert that the topic contains exactly these records; return them.

        expected: values, (key, value) pairs, or record(...) with any fields. within: seconds to
        wait for them. any_order: otherwise records are compared by partition and offset. Raises
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
            # With too many records, waiting does not help.
            if len(found) >= len(rows) or time.monotonic() >= end_s:
                raise AssertionError(difference_text(
                    f"topic {self.name}", lines, len(found), len(rows)))
            time.sleep(POLL_S)

    def assert_empty(self) -> None:
        """Assert that the topic contains no records."""
        __tracebackhide__ = True
        self.assert_records([])

    def delete(self) -> None:
        """Delete the topic. Raises Refused."""
        self._host.call("delete_topics", [self.name])


def _row(item: Any) -> tuple:
    fields = expectation(item, False)
    if not fields.keys() <= {"key", "value", "timestamp", "headers"}:
        raise TypeError("the broker chooses partition and offset of a record")
    return (as_bytes(fields.get("key")), as_bytes(fields.get("value")), fields.get("timestamp"),
            headers_of(fields.get("headers")))
