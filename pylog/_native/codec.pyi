from typing import Any

from pylog._native.message import Struct

Bytes = bytes | bytearray | memoryview

KINDS: dict[str, int]
DECODED_BYTES_MAX: int

class Program:
    title: str
    def __init__(
        self, title: str, cls: type, ops: list[tuple[Any, ...]], flexible: bool
    ) -> None: ...
    def decode(self, data: Bytes, offset: int = 0, budget: int = ...) -> Any: ...
    def decode_from(
        self, data: Bytes, offset: int = 0, budget: int = ...
    ) -> tuple[Any, int]: ...
    def encode(self, message: Struct, prefix: Bytes = b"") -> bytes: ...
    def response_frame(
        self, message: Struct, correlation_id: int, header_tags: bool, size_prefix: bool = True
    ) -> bytes: ...
    def request_frame(self, message: Struct, prefix: bytes) -> bytes: ...

def request_header(
    frame: Bytes, flexible_from: dict[int, int]
) -> tuple[int, int, int, str | None, int]: ...
