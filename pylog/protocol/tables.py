"""The message tables: all messages of Kafka 4.4, read from `schemas/*.msg` on first use.

Owns: the parsed form of a message. The codec defines its meaning on the wire.
Invariants: a message is parsed on first use, never at import; message names are unique over all
  files, and struct names within their message; an inner field's range is within the range of the
  field that contains it.
Source: the schemas inside Kafka 4.4.0's jars; a test compares each of them with these tables.

Grammar. A file contains messages, separated by empty lines. A message is a head line followed by
one line for each field. Indentation (two spaces per level) shows what a line belongs to.

    message = kind NAME ["id" N] "versions" range ["flexible" range] ["on" listeners] ["unstable"]
    kind    = "request" | "response" | "header" | "data" | "record" | "key" | "value"
    field   = name type [range] ["null" [range]] ["tag" N [range]] ["plain"] ["ignorable"]
              ["=" default]
    struct  = "struct" NAME [range]
    type    = primitive | STRUCT, either with "[]" before it for an array
    range   = "none" | N | N "-" N | N "+"

`id` is the api key, or the type of a metadata or coordinator record. `record` is a metadata record,
`key` and `value` are the two parts of a coordinator record. `flexible` is the range of versions
with compact lengths and tagged fields. `unstable`: the latest version must not be served. A missing
range is the range of the message, or of the enclosing field. `null` lists the versions in which a
field may be null; `tag` its tag, and the versions in which it is tagged. `plain` uses the
non-compact form in flexible versions. `ignorable`: if a version lacks the field, its value is
dropped without an error. The default is zero, empty or false if none is given, and null for
`records`. A field of type STRUCT is followed by the struct's fields, one level deeper, unless a
`struct` at the end of the message defines it for several fields.
"""

import os

OPEN = 32767  # The end of an open range: versions are int16.
NONE = (1, 0)
PRIMITIVES = frozenset(
    [
        "bool", "int8", "int16", "int32", "int64", "uint16", "uint32", "float64", "string",
        "bytes", "records", "uuid",
    ]
)
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "schemas")

Range = tuple[int, int]


class Field:
    """One field. If its type is a struct, its message's `structs` has the fields."""

    __slots__ = (
        "array", "default", "ignorable", "name", "nullable", "plain", "tag", "tagged", "type",
        "versions",
    )

    def __init__(self, name: str, type_: str) -> None:
        self.name = name
        self.array = type_.startswith("[]")
        self.type = type_[2:] if self.array else type_
        self.versions: Range = NONE
        self.nullable: Range = NONE
        self.tag = -1
        self.tagged: Range = NONE
        self.plain = False
        self.ignorable = False
        self.default: str | None = None

    @property
    def is_struct(self) -> bool:
        return self.type not in PRIMITIVES


class Message:
    """A parsed message. `structs` maps a struct's name to its fields."""

    __slots__ = (
        "fields", "flexible", "id", "kind", "listeners", "name", "stem", "structs", "unstable",
        "versions",
    )

    def __init__(self, kind: str, name: str, stem: str) -> None:
        self.kind = kind
        self.name = name
        self.stem = stem
        self.id: int | None = None
        self.versions: Range = NONE
        self.flexible: Range = NONE
        self.listeners: tuple[str, ...] = ()
        self.unstable = False
        self.fields: list[Field] = []
        self.structs: dict[str, list[Field]] = {}


_texts: dict[str, tuple[str, str]] = {}  # name -> (file's stem, text of the message)
_names: dict[tuple[str, int], str] = {}  # (kind, id) -> name
_messages: dict[str, Message] = {}


def contains(range_: Range, version: int) -> bool:
    return range_[0] <= version <= range_[1]


def names() -> list[str]:
    """Return the names of all messages, in the order of the files."""
    return list(_texts or _read())


def message(name: str) -> Message:
    """Return the message `name`, e.g. `MetadataRequest`. Raises KeyError if it is unknown."""
    found = _messages.get(name)
    if found is None:
        stem, text = (_texts or _read())[name]
        found = _messages[name] = _parse(stem, text)
    return found


def name_of(kind: str, id_: int) -> str:
    """Return the name of message `id_` of a kind (`request`, `record`, ...). Raises KeyError.

    Not for `key` and `value`: each coordinator numbers its records separately.
    """
    if not _texts:
        _read()
    return _names[kind, id_]


def api_name(key: int) -> str:
    """Return the name of an API, e.g. `CreateAcls`, or the key's digits if it is unknown."""
    try:
        return name_of("request", key).removesuffix("Request")
    except KeyError:
        return str(key)


def ids(kind: str) -> list[int]:
    """Return the ids of all messages of a kind, ascending."""
    if not _texts:
        _read()
    return sorted(number for of, number in _names if of == kind)


def stem_of(name: str) -> str:
    """Return the stem of the file that defines a message. Raises KeyError."""
    return (_texts or _read())[name][0]


def flexible_from() -> dict[int, int]:
    """Return api key -> first flexible version, OPEN + 1 if none, for requests that have a version.

    Reads only the head lines, so that startup does not parse unused messages.
    """
    found = {}
    for number in ids("request"):
        stem, text = _texts[_names["request", number]]
        parsed = _parse_head(stem, text.partition("\n")[0])
        if parsed.versions != NONE:
            found[number] = parsed.flexible[0] if parsed.flexible != NONE else OPEN + 1
    return found


def _read() -> dict[str, tuple[str, str]]:
    """Split the files into messages without parsing them, to keep startup fast."""
    texts: dict[str, tuple[str, str]] = {}
    for file in sorted(os.listdir(_FOLDER)):
        stem, extension = os.path.splitext(file)
        if extension != ".msg":
            continue
        with open(os.path.join(_FOLDER, file), encoding="ascii") as source:
            blocks = source.read().rstrip("\n").split("\n\n")
        for block in blocks:
            kind, name, word, number, _ = f"{block} ".split(" ", 4)
            assert name not in texts, name
            texts[name] = stem, block
            if word == "id" and kind not in ("key", "value"):
                _names[kind, int(number)] = name
    _texts.update(texts)
    return _texts


def _parse(stem: str, text: str) -> Message:
    lines = text.split("\n")
    parsed = _parse_head(stem, lines[0])
    # Per level of indentation: the fields that a line there belongs to, and the enclosing range.
    levels: list[tuple[list[Field], Range]] = [(parsed.fields, parsed.versions)]
    for line in lines[1:]:
        depth = (len(line) - len(line.lstrip(" "))) // 2
        assert 0 < depth <= len(levels), line
        del levels[depth:]
        around = levels[-1][1]
        words = line.split()
        if words[0] == "struct":
            name, range_ = words[1], _range(words[2], around) if len(words) > 2 else around
            inner: list[Field] = []
        else:
            field = _parse_field(words, around)
            levels[-1][0].append(field)
            if not field.is_struct:
                continue
            name, range_ = field.type, field.versions
            inner = []
        levels.append((inner, range_))
        if name not in parsed.structs or not parsed.structs[name]:
            parsed.structs[name] = inner
    for name, fields in parsed.structs.items():
        assert fields, (parsed.name, name)
    return parsed


def _parse_head(stem: str, line: str) -> Message:
    words = line.split()
    parsed = Message(words[0], words[1], stem)
    rest = iter(words[2:])
    for word in rest:
        if word == "id":
            parsed.id = int(next(rest))
        elif word == "versions":
            parsed.versions = _range(next(rest), (0, OPEN))
        elif word == "flexible":
            parsed.flexible = _range(next(rest), (0, OPEN))
        elif word == "on":
            parsed.listeners = tuple(next(rest).split(","))
        elif word == "unstable":
            parsed.unstable = True
        else:
            raise ValueError(f"{stem}.msg: {word!r} in {line!r}")
    return parsed


def _parse_field(words: list[str], around: Range) -> Field:
    field = Field(words[0], words[1])
    field.versions = around
    position = 2
    count = len(words)

    def optional_range(outer: Range) -> Range:
        nonlocal position
        if position < count and (words[position][0].isdigit() or words[position] == "none"):
            position += 1
            return _range(words[position - 1], outer)
        return outer

    field.versions = optional_range(around)
    while position < count:
        word = words[position]
        position += 1
        if word == "null":
            field.nullable = optional_range(field.versions)
        elif word == "tag":
            field.tag = int(words[position])
            position += 1
            field.tagged = optional_range(field.versions)
        elif word == "plain":
            field.plain = True
        elif word == "ignorable":
            field.ignorable = True
        elif word == "=":
            field.default = words[position]
            position += 1
        else:
            raise ValueError(f"{word!r} in field {' '.join(words)!r}")
    return field


def _range(text: str, around: Range) -> Range:
    if text == "none":
        return NONE
    if text.endswith("+"):
        first, last = int(text[:-1]), OPEN
    else:
        low, _, high = text.partition("-")
        first, last = int(low), int(high or low)
    # An inner field's range is within the enclosing range.
    return max(first, around[0]), min(last, around[1])
