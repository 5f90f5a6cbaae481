"""Encodes and decodes messages. Programs are compiled from the tables on first use.

Owns: the message classes and the compiled programs, for the lifetime of the process.
Invariants: if two threads create the same class or program, both get the same object; versions
  outside a message's range are rejected before any byte is read or written.
Source: Kafka's message schemas (protocol/schemas); KIP-482; KIP-511 (ApiVersions responses have
  header v0).
"""

from __future__ import annotations

from pylog._native.protocol.codec import DECODED_BYTES_MAX, KINDS, Program, request_header
from pylog._native.protocol.encode import Encoded
from pylog._native.protocol.message import Layout, Struct
from pylog._native.protocol.request_slices import Pieces
from pylog.protocol import elements, tables
from pylog.protocol.api import API_VERSIONS
from pylog.protocol.errors import ProtocolError, UnsupportedVersion
from pylog.protocol.tables import Field, Message, contains

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from typing import Any

Bytes = bytes | bytearray | memoryview

FRAME_BYTES_MAX = ELEMENTS_MAX = 2**31 - 1
ZERO_UUID = bytes(16)  # The value of an unset uuid.
_STRUCT = max(KINDS.values()) + 1
_SHARED, _LIST, _STRUCT_DEFAULT = range(3)

_classes: dict[str, type[Struct]] = {}
_programs: dict[tuple[str, int], Program] = {}
_requests: dict[tuple[int, int], Program] = {}
_responses: dict[tuple[int, int], Program] = {}
_flexible_from: dict[int, int] = {}


def message_class(name: str) -> type[Struct]:
    """Return the class of the message `name`. Its structs are attributes with the schema's names.

    Raises KeyError for an unknown name.
    """
    found = _classes.get(name)
    return found if found is not None else _make_classes(tables.message(name))


def program(name: str, version: int) -> Program:
    """Return the compiled program of a message version. Raises UnsupportedVersion, KeyError."""
    found = _programs.get((name, version))
    if found is None:
        message = tables.message(name)
        if not contains(message.versions, version):
            low, high = message.versions
            raise UnsupportedVersion(
                f"{name} has no version {version}: there are {low} to {high}")
        cls = message_class(name)
        made = _compile(message, cls, message.fields, version, {})
        found = _programs.setdefault((name, version), made)  # may exist by now
    return found


def decode_request(
    api_key: int, version: int, body: Bytes, offset: int = 0, budget: int = DECODED_BYTES_MAX,
    elements_max: int = ELEMENTS_MAX
) -> Any:
    """Decode the request at `offset` of `body`. Ignores bytes after it, as Kafka does.

    budget: maximum memory of the objects in bytes. elements_max: total over all arrays. Raises
    ProtocolError.
    """
    found = _requests.get((api_key, version)) or _request(api_key, version)
    return found.decode(body, offset, budget, elements_max)


def request_in_slices(
    api_key: int, version: int, body: bytes, elements_max: int, budget: int, inner_max: int
) -> Pieces | None:
    """Return a request that can be read a few elements at a time; None if this version has no such
    array.

    elements_max: of the arrays in protocol.elements. budget, inner_max: maximum memory of one
    chunk, and elements of its other arrays. Raises ProtocolError when it is surveyed or read.
    """
    row = elements.of(api_key)
    path = elements.path_of(row.request_paths, "request", api_key, version)
    if path is None:
        return None
    found = _requests.get((api_key, version)) or _request(api_key, version)
    return Pieces(found, body, path, row.repeats, elements_max, budget, inner_max)


def response_levels(api_key: int, version: int) -> list[tuple[str, tuple[str, ...], Program]]:
    """Return [(array, key fields of its elements, their program)] of a response, outermost first.
    """
    path = elements.path_of(elements.of(api_key).response_paths, "response", api_key, version)
    levels = []
    found = _responses.get((api_key, version)) or _response(api_key, version)
    for name, keys in path or ():
        found = found.field(name)
        levels.append((name, keys, found))
    return levels


def encode_request(api_key: int, version: int, message: Struct) -> bytes:
    """Encode the body of a request. Raises EncodeError, UnsupportedVersion."""
    return (_requests.get((api_key, version)) or _request(api_key, version)).encode(message)


def decode_response(
    api_key: int, version: int, body: Bytes, offset: int = 0, budget: int = DECODED_BYTES_MAX
) -> Any:
    """Decode the response at `offset` of `body`, after its header. Raises ProtocolError."""
    found = _responses.get((api_key, version)) or _response(api_key, version)
    return found.decode(body, offset, budget)


def encode_response(api_key: int, version: int, message: Struct) -> bytes:
    """Encode the body of a response. Raises EncodeError, UnsupportedVersion."""
    return (_responses.get((api_key, version)) or _response(api_key, version)).encode(message)


def decode_request_header(frame: Bytes) -> tuple[int, int, int, str | None, int]:
    """Return (api key, version, correlation id, client id, offset of the body) of a frame without
    its size.

    Raises ProtocolError, also for an api key without a request in Kafka 4.4. Does not check the
    version: ApiVersions must be answered in any version.
    """
    return request_header(frame, _flexible_from or _read_flexible())


def encode_request_header(
    api_key: int, version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Encode a request header: v2 if the request's version is flexible, else v1."""
    flexible = version >= (_flexible_from or _read_flexible())[api_key]
    header = message_class("RequestHeader")(
        request_api_key=api_key, request_api_version=version, correlation_id=correlation_id,
        client_id=client_id,
    )
    return program("RequestHeader", 2 if flexible else 1).encode(header)


def decode_response_header(api_key: int, version: int, frame: Bytes) -> tuple[int, int]:
    """Return (correlation id, offset of the body) of a response frame without its size."""
    header_version = 1 if has_header_tags(api_key, version) else 0
    header, position = program("ResponseHeader", header_version).decode_from(frame)
    return header.correlation_id, position


def encode_response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """Encode a response header: v0 or v1, depending on the request's version."""
    tags = b"\0" if has_header_tags(api_key, version) else b""
    return correlation_id.to_bytes(4, "big", signed=True) + tags


def has_header_tags(api_key: int, version: int) -> bool:
    """Return True if the response has header v1. ApiVersions always has v0, because the client may
    not support the version.
    """
    if api_key == API_VERSIONS:
        return False
    return version >= (_flexible_from or _read_flexible())[api_key]


def response_frame(
    api_key: int, version: int, correlation_id: int, message: Struct, size_prefix: bool = True,
    bytes_max: int = FRAME_BYTES_MAX
) -> bytes:
    """Return a complete response frame: size, header and body in one buffer.

    Raises EncodeError; AnswerTooLong above bytes_max.
    """
    found = _responses.get((api_key, version)) or _response(api_key, version)
    tags = has_header_tags(api_key, version)
    return found.response_frame(message, correlation_id, tags, size_prefix, bytes_max)


def encoded_part(api_key: int, version: int, field: str, part: Struct) -> Encoded:
    """Encode a struct of a response's field once, to use it in many responses."""
    found = _responses.get((api_key, version)) or _response(api_key, version)
    return found.field(field).encoded(part)


def request_frame(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Struct
) -> bytes:
    """Return a complete request frame: size, header and body in one buffer. Raises EncodeError."""
    found = _requests.get((api_key, version)) or _request(api_key, version)
    header = encode_request_header(api_key, version, correlation_id, client_id)
    return found.request_frame(message, header)


def request_slices(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Struct
) -> list[bytes | memoryview]:
    """Return the frame as buffers: long memoryviews in the message are referenced, not copied."""
    found = _requests.get((api_key, version)) or _request(api_key, version)
    header = encode_request_header(api_key, version, correlation_id, client_id)
    return found.request_slices(message, header)


def _request(api_key: int, version: int) -> Program:
    found = _requests[api_key, version] = _by_key("request", api_key, version)
    return found


def _response(api_key: int, version: int) -> Program:
    found = _responses[api_key, version] = _by_key("response", api_key, version)
    return found


def _by_key(kind: str, api_key: int, version: int) -> Program:
    try:
        name = tables.name_of(kind, api_key)
    except KeyError:
        raise ProtocolError(f"no api key {api_key}") from None
    return program(name, version)


def _read_flexible() -> dict[int, int]:
    """Load api key -> first flexible version (above int16 if none), for requests that still exist.
    """
    _flexible_from.update(tables.flexible_from())
    return _flexible_from


def _make_classes(message: Message) -> type[Struct]:
    made: dict[str, type[Struct]] = {}

    def make(name: str, fields: list[Field]) -> type[Struct]:
        if name in made:
            return made[name]
        own = not made and name == message.name
        qualified = name if own else f"{message.name}.{name}"
        cls: type[Struct] = type(name, (Struct,), {
            "__slots__": tuple([field.name for field in fields]),
            "__module__": "pylog.protocol.messages", "__qualname__": qualified,
        })
        made[name] = cls
        for field in fields:
            if field.is_struct:
                make(field.type, message.structs[field.type])
        cls.__layout__ = Layout(cls, [_layout_row(field, made) for field in fields])
        return cls

    top = make(message.name, message.fields)
    for name, cls in made.items():
        if cls is not top:
            setattr(top, name, cls)
    return _classes.setdefault(message.name, top)  # Another thread may have added it first.


def _layout_row(field: Field, made: dict[str, type[Struct]]) -> tuple[str, Any, bool, bool]:
    kind, default = _default(field, made.get(field.type))
    return field.name, default, kind == _LIST, kind == _STRUCT_DEFAULT


def _default(field: Field, cls: type[Struct] | None) -> tuple[int, Any]:
    """Return (how to create the default, the value or a struct's layout)."""
    text = field.default
    if text == "null":
        return _SHARED, None
    if field.array:
        return _LIST, None
    if cls is not None:
        return _STRUCT_DEFAULT, cls.__layout__
    kind = field.type
    if kind == "string":
        return _SHARED, text or ""
    if kind == "bytes":
        return _SHARED, b""
    if kind == "records":
        return _SHARED, None
    if kind == "uuid":
        return _SHARED, ZERO_UUID
    if kind == "bool":
        return _SHARED, text == "true"
    if kind == "float64":
        return _SHARED, float(text or 0)
    return _SHARED, int(text or 0)


def _compile(
    message: Message, cls: type[Struct], fields: list[Field], version: int,
    done: dict[str, Program],
) -> Program:
    flexible = contains(message.flexible, version)
    ops = []
    for field in fields:
        inner = inner_class = None
        present = contains(field.versions, version)
        if field.is_struct:
            inner_class = getattr(message_class(message.name), field.type)
            inner = done.get(field.type)
            if inner is None:
                inner = done[field.type] = _compile(
                    message, inner_class, message.structs[field.type], version, done
                )
        default_kind, default = _default(field, inner_class)
        tag = field.tag if present and contains(field.tagged, version) else -1
        ops.append((
            field.name, KINDS.get(field.type, _STRUCT), field.array, flexible and not field.plain,
            contains(field.nullable, version), present, field.ignorable, tag, default_kind, default,
            inner,
        ))
    return Program(f"{cls.__qualname__} v{version}", cls, ops, flexible)
