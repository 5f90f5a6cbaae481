"""Runs long requests a few elements at a time, and joins responses that handlers return in parts.

Owns: the slots of long requests.
Invariants: bounded slices: long work occupies the event loop for at most LONG_SLICE_NS at a time;
  no response exceeds control.response.bytes.max; separate slots: a long request that waits for a
  disk or a decision delays only long requests of the same kind: groups, Metadata, others.
"""

from __future__ import annotations

import asyncio
import types

from pylog.coordinator.runtime.deferred_response import DeferredResponse
from pylog.eventloop.fair_slots import FairSlots
from pylog.protocol import api
from pylog.protocol.answers import ResponseWriter
from pylog.protocol.elements import ELEMENTS
from pylog.server.scheduling import GROUP_APIS, LONG_BYTES_MAX, LONG_MAX, LONG_SLICE_NS

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from typing import Any

    from pylog._native.protocol.request_slices import Pieces
    from pylog._native.server.reactor import RequestContext
    from pylog.api.handler import Handler
    from pylog.server.request_decoder import RequestDecoder
    from pylog.server.services import Services

SCANNED_ON_LOOP_BYTES_MAX = 256 << 10  # Longer requests are scanned in a thread.

# Result types of a handler other than a response (api.handler): parts, and awaitables.
PARTS = frozenset((types.GeneratorType, types.AsyncGeneratorType))
AWAITED = frozenset((types.CoroutineType, DeferredResponse))
_NO_MORE = object()


class ChunkedRequests:
    """Long requests and long responses."""

    def __init__(self, services: Services, decoder: RequestDecoder):
        self._decoder = decoder
        self._response_bytes_max = services.settings["control.response.bytes.max"]
        self._group_slots, self._metadata_slots, self._other_slots = (
            FairSlots(services.quotas.clock_ns, LONG_SLICE_NS, LONG_MAX, LONG_BYTES_MAX)
            for _ in range(3))

    async def run_in_slices(self, context: RequestContext, handler: Handler, body: bytes) -> Any:
        """Run a long request a few elements at a time, and return the response."""
        slots = self._slots(context.api_key)
        row = ELEMENTS[context.api_key]
        async with slots.acquire(len(body)):
            await slots.next()
            chunks = self._decoder.chunks(context, body)
            if chunks is None or not await self._scan_for_duplicates(slots, chunks, body):
                return await self._join_parts(
                    context, handler(context, self._decoder.decode(context, body, row)))
            response = self._response(context)
            while (request := chunks.next(row.slice_elements)) is not None:
                await self._add(slots, response, handler(context, request))
                await slots.slice()
            return response.finished()

    def start_parts(self, context: RequestContext, parts: Any) -> Any:
        """Return the response of a handler that returns parts: a message if there is only one part,
        else a coroutine.
        """
        if type(parts) is types.AsyncGeneratorType:
            return self._join_remaining_parts(context, [], parts)
        first = next(parts)
        second = next(parts, _NO_MORE)
        if second is _NO_MORE:
            assert first is not None, context.api_key
            return first
        return self._join_remaining_parts(context, [first, second], parts)

    async def _scan_for_duplicates(self, slots: FairSlots, chunks: Pieces, body: bytes) -> bool:
        """Find duplicate elements. Return False if the request must be handled as a whole."""
        if len(body) <= SCANNED_ON_LOOP_BYTES_MAX:
            return chunks.survey()
        found = await asyncio.get_running_loop().run_in_executor(None, chunks.survey)
        await slots.next()
        return found

    async def _join_parts(self, context: RequestContext, result: Any) -> Any:
        """Return the complete response for a handler's result."""
        if type(result) not in PARTS:
            return await result if type(result) in AWAITED else result
        response = self._response(context)
        await self._add(self._slots(context.api_key), response, result)
        return response.finished()

    async def _join_remaining_parts(self, context: RequestContext, begun: list, parts: Any) -> Any:
        """Return the complete response. begun: the parts that exist already."""
        slots = self._slots(context.api_key)
        async with slots.acquire(0):
            response = self._response(context)
            for part in begun:
                if part is not None:
                    response.add(part)
            await slots.next()
            await self._add(slots, response, parts)
            return response.finished()

    async def _add(self, slots: FairSlots, response: ResponseWriter, result: Any) -> None:
        """Add a handler's result with all its parts. A part of None only pauses."""
        if type(result) is types.GeneratorType:
            for part in result:
                if part is not None:
                    response.add(part)
                await slots.slice()
        elif type(result) is types.AsyncGeneratorType:
            async for part in result:
                if part is not None:
                    response.add(part)
                await slots.slice()
        else:
            response.add(await result if type(result) in AWAITED else result)

    def _response(self, context: RequestContext) -> ResponseWriter:
        return ResponseWriter(context.api_key, context.api_version, self._response_bytes_max)

    def _slots(self, api_key: int) -> FairSlots:
        # A long request occupies its slot for as long as its handler waits.
        if api_key in GROUP_APIS:
            return self._group_slots
        return self._metadata_slots if api_key == api.METADATA else self._other_slots
