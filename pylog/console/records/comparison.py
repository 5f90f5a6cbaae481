"""Compares records with a filter, also after decoding, where native code cannot decide.

Owns: nothing.
Invariants: native code rejects only records that cannot match after decoding; a decoded value is
  compared by the same native code, as JSON; a value that cannot be decoded is compared as bytes.
Source: none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pylog._native.client.columns import ColumnReader, Fetched
from pylog._native.client.search import Search, Test
from pylog._native.records import batch
from pylog.client.columns.rows import Row
from pylog.console.records.filters import Filter
from pylog.console.values.column_formats import KEY, VALUE
from pylog.console.values.row_decoding import Decoded, RowDecoder


class Comparison:
    """decoder: None if no value needs to be decoded."""

    def __init__(self, chosen: Filter, decoder: RowDecoder | None):
        self._filter = chosen
        self._decoder = decoder
        self._tests = list(chosen.tests)
        self._exact: list[Test] = []  # Of the groups to which candidates were added.
        self._parts = {name for name, _ in chosen.patterns}
        self.decoded = self.undecoded = 0
        self.reason = ""
        if decoder is not None:
            for group, part in dict.fromkeys(
                    (test.group, chosen.part_of(test)) for test in chosen.tests):
                more = decoder.candidates(part, group) if part is not None else []
                if part is not None and more:
                    self._tests += more
                    self._exact += [test for test in chosen.tests if test.group == group]
                    self._parts.add(part)

    def native(self) -> Search:
        """Return the search for records that match, or may match after decoding."""
        return Search(self._tests)

    @property
    def is_needed(self) -> bool:
        """Return True if kept() must choose from the records that native code found."""
        return bool(self._exact or self._filter.patterns)

    def kept(self, rows: Sequence[Row]) -> list[int]:
        """Return the positions of the rows that match. Blocks: call it on a thread."""
        shown = self._decoded(rows)
        chosen = _matching(self._exact, shown) if self._exact else list(range(len(shown)))
        return [number for number in chosen if self._filter.matches(shown[number])]

    def _decoded(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows with decoded parts in the place of their bytes."""
        decoder = self._decoder
        if decoder is None:
            return list(rows)
        places = [number for number, row in enumerate(rows) if decoder.may_decode(row)]
        made = list(rows)
        for number, parts in zip(places, decoder.decode([rows[place] for place in places])):
            compared = {part: found for part, found in parts.items() if part in self._parts}
            self._count(compared)
            texts = {part: _bytes(found.text) for part, found in compared.items()
                     if found.text is not None}
            row = made[number]
            made[number] = row._replace(key=texts.get(KEY, row.key),
                                        value=texts.get(VALUE, row.value))
        return made

    def _count(self, parts: dict[str, Decoded]) -> None:
        failures = [found for found in parts.values() if found.text is None]
        self.decoded += bool(parts)
        self.undecoded += bool(failures)
        if failures and not self.reason:
            self.reason = ": ".join(filter(None, (failures[0].name, failures[0].error)))


def _bytes(text: str) -> bytes:
    """Return the bytes to compare: JSON, but a text without quotes."""
    if text.startswith('"'):
        return str(json.loads(text)).encode(errors="replace")
    return text.encode(errors="replace")


def _matching(tests: Sequence[Test], rows: Sequence[Row]) -> list[int]:
    """Return the positions of the rows that match tests, which native code compares."""
    if not rows:
        return []
    data = batch.build([(row.key, row.value, row.timestamp, row.headers) for row in rows])
    fetched, reader = Fetched(data), ColumnReader(headers=False)
    found: list[int] = []
    search = Search(tests)
    while not fetched.exhausted:
        search.append(fetched, reader, records_max=len(rows), bytes_max=1 << 62)
        columns = reader.finish()
        found += memoryview(columns.offsets).cast("q").tolist()
    return found
