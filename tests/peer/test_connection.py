"""Connections to other nodes, against a scripted server."""

import asyncio
import socket

import pytest

from pylog.testing.ports import free_port
from pylog.peer.connection import FRAME_BYTES_MAX, IN_FLIGHT_MAX, Peer
from pylog.peer.errors import PeerError
from pylog.protocol import codec, messages

HEARTBEAT = messages.BrokerHeartbeatRequest(broker_id=1, broker_epoch=7)


def run(serve, use):
    """Return the result of use(Peer), against a server whose connections run serve(reader, writer).
    """
    async def both():
        handlers = set()

        async def handle(reader, writer):
            handlers.add(asyncio.current_task())
            try:
                await serve(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        peer = await Peer.connect("127.0.0.1", server.sockets[0].getsockname()[1], "test")
        try:
            return await use(peer)
        finally:
            peer.close()
            server.close()
            for task in handlers:
                task.cancel()

    return asyncio.run(both())


async def frame(reader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def answering(reader, writer):
    """Respond to heartbeats with the broker epoch as throttle time."""
    while True:
        asked = await frame(reader)
        key, version, number, _, body = codec.decode_request_header(asked)
        request = codec.decode_request(key, version, asked, body)
        writer.write(codec.response_frame(key, version, number, messages.BrokerHeartbeatResponse(
            throttle_time_ms=request.broker_epoch)))


def supporting(version_max):
    """Respond to ApiVersions up to a version, as Kafka does: a lowest level of 0 is 1 before 4."""
    async def serve(reader, writer):
        while True:
            asked = await frame(reader)
            key, version, number, _, _ = codec.decode_request_header(asked)
            response = messages.ApiVersionsResponse
            writer.write(codec.response_frame(key, version, number, response(
                api_keys=[response.ApiVersion(api_key=key, min_version=0, max_version=version_max)],
                supported_features=[response.SupportedFeatureKey(
                    name="group.version", min_version=int(version < 4), max_version=1)])))

    return serve


async def silent(reader, writer):
    await reader.read()


def sending(data: bytes):
    async def serve(reader, writer):
        await frame(reader)
        writer.write(data)
        await reader.read()

    return serve


def test_request_gets_its_own_response():
    async def use(peer):
        answers = await asyncio.gather(*[
            peer.call(messages.BrokerHeartbeatRequest(broker_epoch=epoch), 1)
            for epoch in range(2 * IN_FLIGHT_MAX)])
        return [answer.throttle_time_ms for answer in answers]

    assert run(answering, use) == list(range(2 * IN_FLIGHT_MAX))


@pytest.mark.parametrize("version_max, lowest", [(3, 1), (4, 0)])
def test_supported_features_are_read_in_the_newest_version(version_max, lowest):
    assert run(supporting(version_max), Peer.features) == {"group.version": (lowest, 1)}


def test_bytes_are_sent_and_returned_as_they_are():
    async def use(peer):
        request = codec.request_frame(63, 1, 77, "other", HEARTBEAT)[4:]
        return await peer.send_raw(request)

    answer = run(answering, use)
    assert codec.decode_response_header(63, 1, answer)[0] == 77


def test_missing_response_closes_the_peer_connection():
    async def use(peer):
        with pytest.raises(PeerError, match="no response within"):
            await peer.call(HEARTBEAT, 1, 0.01)
        with pytest.raises(PeerError):
            await peer.call(HEARTBEAT, 1)

    run(silent, use)


def test_cancelled_caller_does_not_affect_other_responses():
    async def use(peer):
        given_up = asyncio.ensure_future(peer.call(HEARTBEAT, 1))
        await asyncio.sleep(0)
        given_up.cancel()
        answer = await peer.call(messages.BrokerHeartbeatRequest(broker_epoch=9), 1)
        return answer.throttle_time_ms

    assert run(answering, use) == 9


@pytest.mark.parametrize("data", [
    b"\0\0\0\3abc", (FRAME_BYTES_MAX + 1).to_bytes(4, "big"), b"\xff\xff\xff\xff",
    b"\0\0\0\x08\0\0\0\x63\0\0\0\0", b"\0\0\0\x06\0\0\0\1\0\0"],
    ids=["short", "long", "negative", "another's id", "cut"])
def test_invalid_response_closes_the_peer_connection(data):
    async def use(peer):
        with pytest.raises(PeerError):
            await peer.call(HEARTBEAT, 1, 5)
        assert peer.failure is not None

    run(sending(data), use)


def test_kernel_reports_silence_of_a_host_and_probes_it():
    async def use(peer):
        peer.watch_host()
        probed = peer._transport.get_extra_info("socket")
        assert probed.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert probed.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1
        await asyncio.sleep(0.05)
        silent_s = peer.silent_s()
        assert 0.03 < silent_s < 60
        peer.close()
        assert peer.silent_s() == 0
        return silent_s

    run(silent, use)


def test_closed_connection_fails_all_waiters():
    async def close(reader, writer):
        await frame(reader)

    async def use(peer):
        found = await asyncio.gather(*[peer.call(HEARTBEAT, 1) for _ in range(3)],
                                     return_exceptions=True)
        assert [type(error) for error in found] == [PeerError] * 3

    run(close, use)


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".b"])
def test_unresolvable_name_is_a_peer_error(host):
    with pytest.raises(PeerError, match=f"^{host}:9092: "):
        asyncio.run(Peer.connect(host, 9092, "test"))


def test_a_port_that_refuses_is_a_peer_error():
    async def use():
        port = free_port()
        with pytest.raises(PeerError, match=f"127.0.0.1:{port}"):
            await Peer.connect("127.0.0.1", port, "test")

    asyncio.run(use())
