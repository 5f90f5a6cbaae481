"""Whether data of one Avro schema can be read with another one.

Owns: nothing.
Invariants: the verdict is that of Java's SchemaCompatibility; types that contain themselves are
  compatible until a difference is found.
Source: Avro specification, Schema Resolution; org.apache.avro.SchemaCompatibility.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from pylog.registry.formats.avro import Field, Schema, Type, written_kind
from pylog.registry.formats.schema_error import REASON_CHARACTERS_MAX

PROMOTIONS = {"long": ("int",), "float": ("int", "long"), "double": ("int", "long", "float"),
              "bytes": ("string",), "string": ("bytes",)}
REASONS_MAX = 100
PLACE = ", at "
# What a branch of a union is found by.
SHORT, FULL, KIND = "short name", "full name", "kind"


def differences(reader: Schema, writer: Schema) -> list[str]:
    """Return why `reader` cannot read data of `writer`, at most REASONS_MAX reasons; [] if it can.
    """
    return _Check().compare(reader.root, writer.root, "")


class _Check:
    def __init__(self) -> None:
        # None: the pair is being compared, further up.
        self._results: dict[tuple[int, int], list[str] | None] = {}
        self._branches: dict[int, dict[tuple[str, str], list[Type]]] = {}

    def compare(self, reader: Type, writer: Type, where: str) -> list[str]:
        """Return the differences of a pair, from its first comparison."""
        pair = id(reader), id(writer)
        if pair not in self._results:
            self._results[pair] = None
            self._results[pair] = [
                reason[:REASON_CHARACTERS_MAX]
                for reason in islice(self._differences(reader, writer, where), REASONS_MAX)]
        return self._results[pair] or []

    def _has_branch(self, union: Type, writer: Type) -> bool:
        """Return True if a branch of the reader's union can read the writer's type."""
        index = self._branches.get(id(union))
        if index is None:
            index = self._branches[id(union)] = _branches(union)
        keys = [(SHORT, _short(writer)), (FULL, writer.name)] if writer.name else [
            (KIND, writer.kind)]
        return any(not self.compare(own, writer, "") for key in keys for own in index.get(key, ()))

    def _differences(self, reader: Type, writer: Type, where: str) -> Iterator[str]:
        if writer.kind == "union":
            for branch in writer.branches:
                if reader.kind == "union":
                    if not self._has_branch(reader, branch):
                        yield (f"reader union lacking writer type: {written_kind(branch)}"
                               f"{_at(where)}")
                else:
                    yield from self.compare(reader, branch, where)
        elif reader.kind == "union":
            if not self._has_branch(reader, writer):
                yield f"reader union lacking writer type: {written_kind(writer)}{_at(where)}"
        elif _kind(reader) != _kind(writer):
            if writer.kind not in PROMOTIONS.get(reader.kind, ()):
                yield (f"reader type: {reader.kind} not compatible with writer type: "
                       f"{writer.kind}{_at(where)}")
        elif reader.kind in ("array", "map"):
            assert reader.items is not None and writer.items is not None
            name = "items" if reader.kind == "array" else "values"
            yield from self.compare(reader.items, writer.items, f"{where}/{name}")
        elif reader.name:
            yield from self._named(reader, writer, where)

    def _named(self, reader: Type, writer: Type, where: str) -> Iterator[str]:
        if _short(reader) != _short(writer) and writer.name not in reader.aliases:
            yield f"expected: {writer.name}{_at(where)}"
        if reader.kind == "fixed":
            if reader.size != writer.size:
                yield f"expected: {writer.size}, found: {reader.size}{_at(f'{where}/size')}"
        elif reader.kind == "enum":
            missing = [one for one in writer.symbols if one not in reader.symbols]
            if missing and reader.default is None:
                yield (f"reader enum lacks symbols: {', '.join(missing)}"
                       f"{_at(f'{where}/symbols')}")
        else:
            yield from self._fields(reader, writer, where)

    def _fields(self, reader: Type, writer: Type, where: str) -> Iterator[str]:
        written = {field.name: field for field in writer.fields}
        for number, field in enumerate(reader.fields):
            place = f"{where}/fields/{number}"
            matches: list[Field] = [written[name] for name in (field.name, *field.aliases)
                                    if name in written]
            if len(matches) > 1:
                yield f"field {field.name} matches several fields of the writer{_at(place)}"
            elif matches:
                yield from self.compare(field.type, matches[0].type, f"{place}/type")
            elif not field.has_default:
                yield f"reader field lacks a default value: {field.name}{_at(place)}"


def _branches(union: Type) -> dict[tuple[str, str], list[Type]]:
    """Return the union's branches, indexed by the types that they may read. Comparing all pairs of
    two unions of thousands of records would take seconds.
    """
    found: dict[tuple[str, str], list[Type]] = {}
    for own in union.branches:
        if own.name:
            keys = [(SHORT, _short(own)), *((FULL, alias) for alias in own.aliases)]
        else:
            keys = [(KIND, kind) for kind in (own.kind, *PROMOTIONS.get(own.kind, ()))]
        for key in keys:
            found.setdefault(key, []).append(own)
    return found


def _kind(type_: Type) -> str:
    return "record" if type_.kind == "error" else type_.kind


def _short(type_: Type) -> str:
    return type_.name.rpartition(".")[2]


def _at(where: str) -> str:
    return f"{PLACE}{where}" if where else ""


def without_place(reason: str) -> str:
    """Return a reason without the place in the schema."""
    return reason.partition(f"{PLACE}/")[0]
