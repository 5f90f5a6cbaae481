"""Avro schemas: parse, check, print.

Owns: nothing.
Invariants: `is_strict` accepts and rejects the same schemas as Java's strict parser; without it,
  names and defaults are not checked, so that stored schemas load; the canonical text equals Java's
  Schema.toString().
Source: Avro 1.12 specification; org.apache.avro.Schema and JsonSchemaParser as the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pylog.registry.formats.json_text import parse as parse_json
from pylog.registry.formats.json_text import quoted, text_of
from pylog.registry.formats.schema_error import SchemaError

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMED = ("record", "error", "enum", "fixed")
TYPES = {*PRIMITIVES, *NAMED, "array", "map", "union"}
RESERVED = {"doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type",
            "aliases"}
FIELD_RESERVED = {"default", "doc", "name", "order", "type", "aliases"}
ORDERS = ("ascending", "descending", "ignore")
INT_MAX, LONG_MAX = 2 ** 31 - 1, 2 ** 63 - 1
DEPTH_MAX = 200


class Type:
    """One type of a schema. Which attributes are set depends on `kind`.

    name: full name of a named type. items: of an array or of a map's values. branches: of a union.
    properties: everything that Avro does not define, in the order of the source.
    """

    __slots__ = ("aliases", "branches", "default", "doc", "fields", "is_resolved", "items", "kind",
                 "name", "properties", "size", "symbols")

    def __init__(self, kind: str, name: str = ""):
        self.kind = kind
        self.name = name
        self.doc: str | None = None
        self.aliases: list[str] = []
        self.properties: dict[str, Any] = {}
        self.fields: list[Field] = []
        self.symbols: list[str] = []
        self.size = 0
        self.default: str | None = None
        self.items: Type | None = None
        self.branches: list[Type] = []
        self.is_resolved = True

    def __repr__(self) -> str:
        return f"Type({self.kind!r}, {self.name!r})"


class Field:
    """A field of a record. has_default: `default` is set; None may be a default."""

    __slots__ = ("aliases", "default", "doc", "has_default", "name", "order", "properties", "type")

    def __init__(self, name: str, type_: Type):
        self.name = name
        self.type = type_
        self.doc: str | None = None
        self.default: Any = None
        self.has_default = False
        self.order = ORDERS[0]
        self.aliases: list[str] = []
        self.properties: dict[str, Any] = {}


class Schema:
    """A parsed schema. named: types by full name, those of references included."""

    def __init__(self, root: Type, named: dict[str, Type], referenced: set[str]):
        self.root = root
        self.named = named
        self._referenced = referenced

    def canonical(self) -> str:
        """Return the text that is stored. Types of references are written as names."""
        return "".join(_canonical(self.root, "", set(self._referenced)))

    def resolved(self) -> str:
        """Return the text with the types of references written out."""
        return "".join(_canonical(self.root, "", set()))

    def normalized(self) -> str:
        """Return one text for all schemas that differ only in how they are written."""
        return "".join(_normalized(self.root, set(self._referenced)))


def parse(text: str, references: Iterable[Schema] = (), is_strict: bool = True) -> Schema:
    """Parse a schema. references: schemas whose named types it uses. Raises SchemaError."""
    named: dict[str, Type] = {}
    for other in references:
        named.update(other.named)
    try:
        source = parse_json(text)
    except ValueError as error:
        raise SchemaError(str(error)) from None
    parser = _Parser(named, is_strict)
    root = parser.type_of(source, "", 0)
    parser.finish()
    return Schema(parser.settled(root), parser.named, set(named))


class _Parser:
    def __init__(self, named: dict[str, Type], is_strict: bool):
        self.named = dict(named)
        self._is_strict = is_strict
        self._open: dict[str, Type] = {}  # Names that are used before their definition.
        self._defaults: list[tuple[Field, str]] = []
        self._unfinished: set[str] = set()  # Records whose fields are being read.

    def finish(self) -> None:
        """Resolve names that were used first and defined later. Raises SchemaError."""
        missing = [name for name in self._open if name not in self.named]
        if missing:
            raise SchemaError(f"Undefined schema: {missing[0]}")
        seen: set[int] = set()
        for one in list(self.named.values()):
            self._settle(one, seen)
        if self._is_strict:
            for field, record in self._defaults:
                if not is_valid_default(field.type, field.default):
                    raise SchemaError(
                        f"Invalid default for field {record}.{field.name}: "
                        f"{text_of(field.default)} is not a {written_kind(field.type)}")

    def settled(self, one: Type) -> Type:
        return one if one.is_resolved else self.named[one.name]

    def _settle(self, one: Type, seen: set[int]) -> None:
        """Replace unresolved names below a type."""
        if not self._open or id(one) in seen:
            return
        seen.add(id(one))
        for field in one.fields:
            field.type = self.settled(field.type)
            self._settle(field.type, seen)
        if one.items is not None:
            one.items = self.settled(one.items)
            self._settle(one.items, seen)
        one.branches = [self.settled(branch) for branch in one.branches]
        for branch in one.branches:
            self._settle(branch, seen)

    def type_of(self, source: Any, space: str, depth: int) -> Type:
        """Parse a type. space: the enclosing namespace."""
        if depth > DEPTH_MAX:
            raise SchemaError(f"Types are nested more than {DEPTH_MAX} levels deep")
        if isinstance(source, str):
            return Type(source) if source in PRIMITIVES else self._by_name(source, space)
        if isinstance(source, list):
            return self._union(source, space, depth)
        if not isinstance(source, dict):
            raise SchemaError(f"Schema not yet supported: {text_of(source)}")
        kind = source.get("type")
        if not isinstance(kind, str):
            raise SchemaError(f"No type: {text_of(source)}")
        if kind in PRIMITIVES:
            found = Type(kind)
        elif kind in NAMED:
            return self._named(kind, source, space, depth)
        elif kind in ("array", "map"):
            found = Type(kind)
            key = "items" if kind == "array" else "values"
            if key not in source:
                raise SchemaError(f"{kind.capitalize()} has no {key} type: {text_of(source)}")
            found.items = self.type_of(source[key], space, depth + 1)
        else:
            return self._by_name(kind, space)
        found.properties = _properties(source, RESERVED)
        return found

    def _by_name(self, name: str, space: str) -> Type:
        full = name if "." in name or not space else f"{space}.{name}"
        full = full.removeprefix(".") if full.count(".") == 1 else full
        found = self.named.get(full)
        if found is None and "." not in name and name not in self._unfinished:
            found = self.named.get(name)
        if found is None:
            found = self._open.get(full)
        if found is None:
            if self._is_strict:
                self._checked(full.rpartition(".")[2])
            found = self._open[full] = Type("unresolved", full)
            found.is_resolved = False
        return found

    def _union(self, source: list, space: str, depth: int) -> Type:
        found = Type("union")
        names = set()
        for one in source:
            branch = self.type_of(one, space, depth + 1)
            if branch.kind == "union":
                raise SchemaError(f"Nested union: {text_of(source)}")
            name = branch.name or branch.kind
            if name in names:
                raise SchemaError(f"Duplicate in union: {name}")
            names.add(name)
            found.branches.append(branch)
        return found

    def _named(self, kind: str, source: dict, space: str, depth: int) -> Type:
        given = source.get("name")
        if not isinstance(given, str):
            raise SchemaError(f"No name in schema: {text_of(source)}")
        outer = source.get("namespace")
        inner = outer if isinstance(outer, str) else space
        inner, _, name = given.rpartition(".") if "." in given else (inner, "", given)
        self._checked_full(inner, name)
        found = Type(kind, f"{inner}.{name}" if inner else name)
        doc = source.get("doc")
        found.doc = doc if isinstance(doc, str) else None
        if name in PRIMITIVES and not inner:
            raise SchemaError(f"Schemas may not be named after primitives: {name}")
        found.aliases = [alias.removeprefix(".") if "." in alias or not inner
                         else f"{inner}.{alias}" for alias in _aliases(source)]
        for alias in found.aliases:
            self._checked_full(*_split(alias))
        reserved = RESERVED
        before = self.named.get(found.name)
        if found.name in self._unfinished:
            raise SchemaError(f"Can't redefine: {found.name}")
        if kind in ("record", "error"):
            self.named[found.name] = found  # Its fields may use it.
            self._unfinished.add(found.name)
            found.fields = self._fields(source, found, inner, depth)
            self._unfinished.discard(found.name)
        elif kind == "enum":
            reserved = RESERVED | {"default"}
            found.symbols = self._symbols(source)
            default = source.get("default")
            found.default = default if isinstance(default, str) else None
            if found.default is not None and found.default not in found.symbols:
                raise SchemaError(f"The Enum Default: {found.default} is not in the enum symbol "
                                  f"set: {found.symbols}")
        else:
            size = source.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= INT_MAX:
                raise SchemaError(f"Invalid or no size: {text_of(source)}")
            found.size = size
        found.properties = _properties(source, reserved)
        if before is not None and not _are_equal(before, found):
            raise SchemaError(f"Can't redefine: {found.name}")
        self.named[found.name] = found
        return found

    def _fields(self, source: dict, record: Type, space: str, depth: int) -> list[Field]:
        rows = source.get("fields")
        if not isinstance(rows, list):
            raise SchemaError(f"Record has no fields: {text_of(source)}")
        found: dict[str, Field] = {}
        for row in rows:
            name = row.get("name") if isinstance(row, dict) else None
            if not isinstance(name, str):
                raise SchemaError(f"No field name: {text_of(row)}")
            if "type" not in row:
                raise SchemaError(f"No field type: {text_of(row)}")
            self._checked(name)
            if name in found:
                raise SchemaError(f"Duplicate field {name} in record {record.name}")
            field = found[name] = Field(name, self.type_of(row["type"], space, depth + 1))
            doc = row.get("doc")
            field.doc = doc if isinstance(doc, str) else None
            if "order" in row:
                field.order = str(row["order"]).lower()
                if field.order not in ORDERS:
                    raise SchemaError(f"Invalid order {row['order']!r} of field {name}")
            if "default" in row:
                field.has_default, field.default = True, row["default"]
                self._defaults.append((field, record.name))
            field.aliases = _aliases(row)
            field.properties = _properties(row, FIELD_RESERVED)
        return list(found.values())

    def _symbols(self, source: dict) -> list[str]:
        symbols = source.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(one, str) for one in symbols):
            raise SchemaError(f"Enum has no symbols: {text_of(source)}")
        for symbol in symbols:
            self._checked(symbol)
        if len(set(symbols)) < len(symbols):
            twice = next(one for one in symbols if symbols.count(one) > 1)
            raise SchemaError(f"Duplicate enum symbol: {twice}")
        return list(symbols)

    def _checked_full(self, space: str, name: str) -> None:
        """Raise SchemaError unless Java accepts namespace and name."""
        self._checked(name)
        for part in space.split(".") if space else ():
            self._checked(part)

    def _checked(self, name: str) -> None:
        """Raise SchemaError unless Java accepts the name."""
        if not self._is_strict:
            return
        if not name:
            raise SchemaError("Empty name")
        if not (name[0].isalpha() or name[0] == "_"):
            raise SchemaError(f"Illegal initial character: {name}")
        for letter in name:
            if not (letter.isalnum() or letter == "_"):
                raise SchemaError(f"Illegal character in: {name}")


def _aliases(source: dict) -> list[str]:
    aliases = source.get("aliases")
    if aliases is None:
        return []
    if not isinstance(aliases, list) or not all(isinstance(one, str) for one in aliases):
        raise SchemaError(f"Aliases are not an array of names: {text_of(source)}")
    return list(dict.fromkeys(aliases))


def _properties(source: dict, reserved: set[str]) -> dict[str, Any]:
    return {key: value for key, value in source.items() if key not in reserved}


def _are_equal(left: Type, right: Type) -> bool:
    return "".join(_canonical(left, "", set())) == "".join(_canonical(right, "", set()))


def written_kind(type_: Type) -> str:
    """Return a type for a message: its name, or its kind."""
    return type_.name or type_.kind


def is_valid_default(type_: Type, value: Any, within: tuple[Field, ...] = ()) -> bool:
    """Return True if a default is a value of the type; of a union, of any branch.

    within: fields whose own defaults are part of this one. A default that contains itself is
    invalid.
    """
    kind = type_.kind
    if kind in ("string", "bytes", "enum", "fixed"):
        return isinstance(value, str)
    if kind in ("int", "long"):
        limit = INT_MAX if kind == "int" else LONG_MAX
        return type(value) is int and -limit - 1 <= value <= limit
    if kind in ("float", "double"):
        return type(value) in (int, float)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "null":
        return value is None
    if kind == "union":
        return any(is_valid_default(branch, value, within) for branch in type_.branches)
    if kind == "array":
        return isinstance(value, list) and all(
            is_valid_default(_items(type_), one, within) for one in value)
    if not isinstance(value, dict):
        return False
    if kind == "map":
        return all(is_valid_default(_items(type_), one, within) for one in value.values())
    return all(
        is_valid_default(field.type, value[field.name], within) if field.name in value
        else field.has_default and field not in within
        and is_valid_default(field.type, field.default, (*within, field))
        for field in type_.fields)


def _items(type_: Type) -> Type:
    assert type_.items is not None, type_
    return type_.items


def _split(name: str) -> tuple[str, str]:
    space, _, short = name.rpartition(".")
    return space, short


def _reference(name: str, space: str) -> str:
    """Return how a named type is written inside a namespace."""
    own, short = _split(name)
    return short if own and own == space and short not in TYPES else name


def _canonical(one: Type, space: str, known: set[str]) -> Iterator[str]:
    """Yield the parts of Java's toString(). known: names that are written as references."""
    kind = one.kind
    if kind == "union":
        yield "["
        for number, branch in enumerate(one.branches):
            if number:
                yield ","
            yield from _canonical(branch, space, known)
        yield "]"
        return
    if one.name:
        if one.name in known:
            yield quoted(_reference(one.name, space))
            return
        known.add(one.name)
        yield from _canonical_named(one, space, known)
        return
    if kind in ("array", "map"):
        yield f'{{"type":"{kind}","{"items" if kind == "array" else "values"}":'
        yield from _canonical(_items(one), space, known)
    elif not one.properties:
        yield f'"{kind}"'
        return
    else:
        yield f'{{"type":"{kind}"'
    yield _written(one.properties)
    yield "}"


def _canonical_named(one: Type, space: str, known: set[str]) -> Iterator[str]:
    own, short = _split(one.name)
    yield f'{{"type":"{one.kind}","name":{quoted(short)}'
    if own != space:
        yield f',"namespace":{quoted(own)}'
    if one.doc is not None:
        yield f',"doc":{quoted(one.doc)}'
    if one.kind == "enum":
        yield f',"symbols":{text_of(one.symbols)}'
        if one.default is not None:
            yield f',"default":{quoted(one.default)}'
    elif one.kind == "fixed":
        yield f',"size":{one.size}'
    else:
        yield ',"fields":['
        for number, field in enumerate(one.fields):
            yield f'{"," if number else ""}{{"name":{quoted(field.name)},"type":'
            yield from _canonical(field.type, own, known)
            if field.doc is not None:
                yield f',"doc":{quoted(field.doc)}'
            if field.has_default:
                yield f',"default":{text_of(field.default)}'
            if field.order != ORDERS[0]:
                yield f',"order":"{field.order}"'
            if field.aliases:
                yield f',"aliases":{text_of(field.aliases)}'
            yield _written(field.properties) + "}"
        yield "]"
    yield _written(one.properties)
    if one.aliases:
        yield f',"aliases":{text_of([_reference(alias, own) for alias in one.aliases])}'
    yield "}"


def _written(properties: dict[str, Any]) -> str:
    return "".join(f",{quoted(key)}:{text_of(value)}" for key, value in properties.items())


def _normalized(one: Type, known: set[str]) -> Iterator[str]:
    """Yield the parts of the text with full names and sorted properties."""
    if one.kind == "union":
        yield "["
        for number, branch in enumerate(one.branches):
            if number:
                yield ","
            yield from _normalized(branch, known)
        yield "]"
        return
    if one.name:
        if one.name in known:
            yield quoted(one.name)
            return
        known.add(one.name)
        yield f'{{"name":{quoted(one.name)},"type":"{one.kind}"'
        yield from _normalized_body(one, known)
    elif one.kind in ("array", "map"):
        yield f'{{"type":"{one.kind}","{"items" if one.kind == "array" else "values"}":'
        yield from _normalized(_items(one), known)
    elif not one.properties:
        yield f'"{one.kind}"'
        return
    else:
        yield f'{{"type":"{one.kind}"'
    yield _sorted(one.properties)
    yield "}"


def _normalized_body(one: Type, known: set[str]) -> Iterator[str]:
    if one.kind == "enum":
        yield f',"symbols":{text_of(one.symbols)}'
        if one.default is not None:
            yield f',"default":{quoted(one.default)}'
    elif one.kind == "fixed":
        yield f',"size":{one.size}'
    else:
        yield ',"fields":['
        for number, field in enumerate(one.fields):
            yield f'{"," if number else ""}{{"name":{quoted(field.name)},"type":'
            yield from _normalized(field.type, known)
            if field.has_default:
                yield f',"default":{text_of(field.default, is_sorted=True)}'
            if field.doc is not None:
                yield f',"doc":{quoted(field.doc)}'
            yield f',"order":"{field.order}"'
            if field.aliases:
                yield f',"aliases":{text_of(sorted(field.aliases))}'
            yield _sorted(field.properties) + "}"
        yield "]"
    if one.doc is not None:
        yield f',"doc":{quoted(one.doc)}'
    if one.aliases:
        yield f',"aliases":{text_of(sorted(one.aliases))}'


def _sorted(properties: dict[str, Any]) -> str:
    rows = sorted(properties.items(), key=lambda row: (row[0] != "logicalType", row[0]))
    return "".join(f",{quoted(key)}:{text_of(value, is_sorted=True)}" for key, value in rows)
