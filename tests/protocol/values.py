"""Random message objects, generated from the tables with any object that has random.Random's
methods.
"""

from pylog.protocol import codec, tables

BOUNDS = {
    "int8": (-(2**7), 2**7 - 1), "int16": (-(2**15), 2**15 - 1), "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1), "uint16": (0, 2**16 - 1), "uint32": (0, 2**32 - 1),
}
TEXTS = ["", "a", "topic-1", "größe", "日本語", "x" * 200, "\N{PILE OF POO}", "\0"]


def random_message(rng, name: str, version: int, integer=None):
    """Return a message of this version. integer(rng, field, low, high) may restrict integers."""
    table = tables.message(name)
    return _random_struct(rng, table, codec.message_class(name), table.fields, version, integer)


def _random_struct(rng, table, cls, fields, version, integer):
    made = cls()
    for field in fields:
        if tables.contains(field.versions, version):
            setattr(made, field.name, _random_field(rng, table, field, version, integer))
    return made


def _random_field(rng, table, field, version, integer):
    if tables.contains(field.nullable, version) and rng.randint(0, 3) == 0:
        return None
    if not field.array:
        return _random_value(rng, table, field, version, integer)
    count = rng.choice([0, 1, 2, 3])
    return [_random_value(rng, table, field, version, integer) for _ in range(count)]


def _random_value(rng, table, field, version, integer):
    kind = field.type
    if field.is_struct:
        cls = getattr(codec.message_class(table.name), kind)
        return _random_struct(rng, table, cls, table.structs[kind], version, integer)
    if kind in BOUNDS:
        low, high = BOUNDS[kind]
        if integer is not None:
            return integer(rng, field, low, high)
        return rng.choice([0, -1 if low else 0, low, high, rng.randint(low, high), 1])
    if kind == "bool":
        return rng.choice([False, True])
    if kind == "float64":
        return rng.choice([0.0, -1.5, 1e300, float("inf")])
    if kind == "uuid":
        return rng.choice([bytes(16), bytes(range(16)), b"\xff" * 16])
    if kind == "string":
        return rng.choice(TEXTS)
    return rng.choice([b"", b"\0", b"bytes", bytes(range(256)) * 2])


def every_version() -> list[tuple[str, int]]:
    """Return (name, version) of everything that the tables define."""
    pairs = []
    for name in tables.names():
        low, high = tables.message(name).versions
        pairs.extend((name, version) for version in range(low, high + 1))
    return pairs
