"""An asyncio client for group loads: frames made once, answers counted or decoded.

Owns: its connections.
Called by: bench.coordinator.loads.
Invariants: (1) at most `window` requests of a connection are unanswered.
"""

import asyncio
import struct

from pylog.protocol import codec

CLIENT = "bench"
WINDOW = 20


class Connection:
    """One connection; answers come in the order of the requests."""

    def __init__(self, reader, writer):
        self._reader = reader
        self._writer = writer
        self._number = 0

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, key: int, version: int, message):
        """One request, its decoded answer."""
        self._number += 1
        self._writer.write(codec.request_frame(key, version, self._number, CLIENT, message))
        body = await self.answer()
        _, at = codec.decode_response_header(key, version, body)
        return codec.decode_response(key, version, body, at)

    async def answer(self) -> bytes:
        size, = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def pipeline(self, frames: list, check) -> None:
        """Sends all frames, WINDOW at a time under way; check(answer's body) must hold for each."""
        sent = answered = 0
        while answered < len(frames):
            upto = min(len(frames), answered + WINDOW)
            if upto > sent:
                self._writer.write(b"".join(frames[sent:upto]))
                sent = upto
            # Half a window at a time keeps the other half busy.
            for _ in range(max(1, (sent - answered) // 2)):
                body = await self.answer()
                assert check(body), body[:64]
                answered += 1

    def close(self) -> None:
        self._writer.close()


async def spread(port: int, frames: list, connections: int, check) -> None:
    """pipeline() over several connections, each with its share of the frames."""
    opened = [await Connection.open(port) for _ in range(connections)]
    await asyncio.gather(*[one.pipeline(frames[number::connections], check)
                           for number, one in enumerate(opened)])
    for one in opened:
        one.close()
