"""The text of a .proto file as a file descriptor.

Owns: nothing.
Invariants: names of types stay as written, and the descriptor pool resolves them; what does not
  change how bytes are read, such as services and most options, is left out.
Source: Protobuf language specification (proto2, proto3); descriptor.proto.
"""

from __future__ import annotations

from typing import Any

SCALARS = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7,
    "bool": 8, "string": 9, "bytes": 12, "uint32": 13, "sfixed32": 15, "sfixed64": 16,
    "sint32": 17, "sint64": 18}
GROUP = 10
OPTIONAL, REQUIRED, REPEATED = 1, 2, 3
PROTO2, PROTO3 = "proto2", "proto3"


def descriptor_of(text: str, name: str) -> Any:
    """Return the FileDescriptorProto of a file. name: under which other files import it.

    Raises ValueError for a text that is not a file of proto2 or proto3.
    """
    from google.protobuf import descriptor_pb2
    from proto_schema_parser import ast
    from proto_schema_parser.parser import Parser

    try:
        parsed = Parser().parse(text)
    except Exception as failure:  # The parser and its grammar raise different ones.
        raise ValueError(f"not a .proto file: {failure}") from failure
    if parsed.edition:
        raise ValueError(f"edition {parsed.edition} of Protobuf: only {PROTO2} and {PROTO3} are "
                         "read")
    file = descriptor_pb2.FileDescriptorProto(name=name, syntax=parsed.syntax or PROTO2)
    if file.syntax == PROTO2:
        file.ClearField("syntax")
    reader = _Reader(ast, (parsed.syntax or PROTO2) == PROTO3)
    for element in parsed.file_elements:
        if isinstance(element, ast.Package):
            file.package = element.name
        elif isinstance(element, ast.Import):
            if element.public:
                file.public_dependency.append(len(file.dependency))
            file.dependency.append(element.name)
        elif isinstance(element, ast.Message):
            reader.message(element, file.message_type.add())
        elif isinstance(element, ast.Enum):
            reader.enum(element, file.enum_type.add())
    return file


class _Reader:
    """Fills descriptors from the parser's tree."""

    def __init__(self, ast: Any, is_proto3: bool):
        self._ast = ast
        self._is_proto3 = is_proto3

    def message(self, given: Any, made: Any) -> None:
        ast = self._ast
        made.name = given.name
        optional: list[Any] = []  # proto3: each gets a separate oneof, after all others.
        for element in given.elements:
            if isinstance(element, ast.Field):
                field = self._field(element, made)
                if self._is_proto3 and element.cardinality == "OPTIONAL":
                    optional.append(field)
            elif isinstance(element, ast.MapField):
                self._map(element, made)
            elif isinstance(element, ast.OneOf):
                number = len(made.oneof_decl)
                made.oneof_decl.add(name=element.name)
                for inner in element.elements:
                    if isinstance(inner, ast.Field):
                        self._field(inner, made).oneof_index = number
                    elif isinstance(inner, ast.Group):
                        self._group(inner, made).oneof_index = number
            elif isinstance(element, ast.Group):
                self._group(element, made)
            elif isinstance(element, ast.Message):
                self.message(element, made.nested_type.add())
            elif isinstance(element, ast.Enum):
                self.enum(element, made.enum_type.add())
        for field in optional:
            field.proto3_optional = True
            field.oneof_index = len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{field.name}")

    def enum(self, given: Any, made: Any) -> None:
        made.name = given.name
        for element in given.elements:
            if isinstance(element, self._ast.EnumValue):
                made.value.add(name=element.name, number=element.number)
            elif isinstance(element, self._ast.Option) and element.name == "allow_alias":
                made.options.allow_alias = bool(element.value)

    def _field(self, given: Any, message: Any) -> Any:
        made = message.field.add(name=given.name, number=given.number,
                                 label=_label(given.cardinality))
        _set_type(made, given.type)
        for option in given.options:
            if option.name == "packed":
                made.options.packed = bool(option.value)
        return made

    def _group(self, given: Any, message: Any) -> Any:
        self.message(given, message.nested_type.add())
        return message.field.add(name=given.name.lower(), number=given.number, type=GROUP,
                                 type_name=given.name, label=_label(given.cardinality))

    def _map(self, given: Any, message: Any) -> None:
        words = given.name.split("_")
        entry = message.nested_type.add(name="".join(
            word[:1].upper() + word[1:] for word in words) + "Entry")
        entry.options.map_entry = True
        for number, (name, kind) in enumerate((("key", given.key_type),
                                               ("value", given.value_type)), 1):
            _set_type(entry.field.add(name=name, number=number, label=OPTIONAL), kind)
        message.field.add(name=given.name, number=given.number, label=REPEATED, type=11,
                          type_name=entry.name)


def _label(cardinality: Any) -> int:
    return {"REQUIRED": REQUIRED, "REPEATED": REPEATED}.get(
        getattr(cardinality, "value", cardinality), OPTIONAL)


def _set_type(field: Any, kind: str) -> None:
    """Set the type. The descriptor pool finds out whether a name is a message or an enum."""
    number = SCALARS.get(kind)
    if number is not None:
        field.type = number
    else:
        field.type_name = kind
