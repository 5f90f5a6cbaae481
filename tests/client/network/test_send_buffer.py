"""Partial writes to a socket."""

import asyncio
import random
import socket

from pylog.client.network.send_buffer import SendBuffer


def send_buffer_of(sender: socket.socket, told: list) -> SendBuffer:
    return SendBuffer(asyncio.get_running_loop(), sender.fileno(),
                  pause=lambda: told.append("pause"), resume=lambda: told.append("resume"),
                  failed=told.append)


async def received(receiver: socket.socket, count: int) -> bytes:
    loop, got = asyncio.get_running_loop(), bytearray()
    while len(got) < count:
        got += await loop.sock_recv(receiver, 50_000)
    return bytes(got)


def test_chunks_arrive_in_order_over_partial_writes():
    async def work() -> None:
        told: list = []
        sender, receiver = socket.socketpair()
        receiver.setblocking(False)
        send_buffer = send_buffer_of(sender, told)
        rng = random.Random(5)
        frames = [[rng.randbytes(rng.choice((0, 1, 30, 5000, 300_000))) for _ in range(40)]
                  for _ in range(60)]  # More chunks than one call accepts.
        for frame in frames:
            send_buffer.write([memoryview(piece) for piece in frame])
        wanted = b"".join(piece for frame in frames for piece in frame)
        assert told == ["pause"]
        assert await received(receiver, len(wanted)) == wanted
        send_buffer.write([b"more"])
        assert await received(receiver, 4) == b"more"
        assert told == ["pause", "resume"]
        send_buffer.close()
        send_buffer.close()
        sender.close()
        receiver.close()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_closed_socket_is_reported_once():
    async def work() -> None:
        told: list = []
        sender, receiver = socket.socketpair()
        send_buffer = send_buffer_of(sender, told)
        receiver.close()
        send_buffer.write([b"x", b"y"])
        send_buffer.write([b"z"])
        assert [type(failure) for failure in told] == [BrokenPipeError]
        sender.close()

    asyncio.run(work())


def test_unsent_data_is_released_when_the_send_buffer_closes():
    async def work() -> None:
        told: list = []
        sender, receiver = socket.socketpair()
        send_buffer = send_buffer_of(sender, told)
        data = bytearray(10_000_000)
        send_buffer.write([memoryview(data)])
        send_buffer.close()
        data.append(1)  # This fails while a view of the buffer is held.
        send_buffer.write([b"more"])
        sender.close()
        receiver.close()

    asyncio.run(work())
