"""The most expensive requests of a given size: each array of a message full of the smallest
elements, all equal or all different; generated from the tables.
"""

from pylog.protocol import codec, tables

PROBE = 64


def longest(name: str, version: int, bytes_max: int, count_max: int, distinct: bool):
    """Yield (array, body, elements) for each array of a message."""
    table = tables.message(name)
    for path in _paths(table, table.fields, version):
        def made(count, path=path):
            return _holding(table, codec.message_class(name), table.fields, version, path, count,
                            distinct)
        program = codec.program(name, version)
        empty, probe = len(program.encode(made(0))), len(program.encode(made(PROBE)))
        # The varint of a count takes up to three bytes more than that of zero.
        count = min(count_max, (bytes_max - empty - 8) * PROBE // (probe - empty))
        body = program.encode(made(count))
        assert len(body) <= bytes_max, (name, path)
        yield ".".join(field.name for field in path), body, count


def _paths(table, fields, version):
    """Yield [field, field, ...] down to each array."""
    for field in fields:
        if not tables.contains(field.versions, version):
            continue
        if field.array:
            yield [field]
        if field.is_struct and field.array:
            for below in _paths(table, table.structs[field.type], version):
                yield [field, *below]


def _holding(table, cls, fields, version, path, count, distinct):
    made = cls()
    for field in fields:
        # In many requests, null means all.
        if field.array and tables.contains(field.versions, version):
            setattr(made, field.name, [])
    first, *below = path
    inner = getattr(codec.message_class(table.name), first.type) if first.is_struct else None
    if below:
        value = [_holding(table, inner, table.structs[first.type], version, below, count,
                          distinct)]
    else:
        value = [_element(table, first, inner, version, number if distinct else None)
                 for number in range(count)]
    setattr(made, first.name, value)
    return made


def _element(table, field, cls, version, number):
    if cls is None:
        return _value(field.type, number)
    made = cls()
    for inner in table.structs[field.type]:
        if tables.contains(inner.versions, version) and not inner.array and not inner.is_struct:
            setattr(made, inner.name, _value(inner.type, number))
    return made


def _value(kind, number):
    if kind == "string":
        return "" if number is None else f"{number:05x}"
    if kind == "uuid":
        return (number or 0).to_bytes(16, "big")
    if kind in ("bytes", "records"):
        return b""
    if kind == "bool":
        return False
    if kind == "float64":
        return 0.0
    return (number or 0) if kind in ("int32", "int64") else 0
