"""Decodes requests, whole or in chunks.

Owns: nothing.
Invariants: bounded requests: a decoded request or chunk uses at most DECODED_BYTES_MAX, and
  duplicate elements of a request are handled once.
Source: KIP-511 (ApiVersions in any version), KIP-896 (supported versions).
"""

from __future__ import annotations

from pylog.protocol import api, codec, elements
from pylog.protocol.elements import ELEMENTS, WHOLE_MAX

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from typing import Any

    from pylog._native.protocol.request_slices import Pieces
    from pylog._native.server.reactor import RequestContext
    from pylog.protocol.elements import Elements

DECODED_BYTES_MAX = 32 << 20  # Decoded size of a request or chunk.


class RequestDecoder:
    """elements_max: maximum of elements in a request."""

    def __init__(self, elements_max: int):
        self._elements_max = elements_max

    def decode(self, context: RequestContext, body: bytes, row: Elements | None) -> Any:
        """Decode a whole request. Return None for an unknown version of ApiVersions. Raises
        ProtocolError. row: its entry in ELEMENTS.
        """
        key, version = context.api_key, context.api_version
        if key == api.API_VERSIONS and not api.is_served(18, version):
            return None
        if row is None:
            return codec.decode_request(key, version, body, 0, DECODED_BYTES_MAX, WHOLE_MAX)
        request = codec.decode_request(key, version, body, 0, DECODED_BYTES_MAX, row.whole_max)
        if elements.repeats(row, request):
            # Handle duplicate elements once.
            chunks = self.chunks(context, body)
            assert chunks is not None  # The version has the array that has duplicates.
            chunks.survey()
            request = chunks.next(chunks.leaves)
        return request

    def chunks(self, context: RequestContext, body: bytes) -> Pieces | None:
        """Return the request's chunks; None if its version has no array to split. Reading them
        raises ProtocolError.
        """
        return codec.request_in_slices(
            context.api_key, context.api_version, body, self._elements_max, DECODED_BYTES_MAX,
            ELEMENTS[context.api_key].whole_max)
