"""One connection to a misbehaving broker."""

import asyncio
import socket
import struct

import pytest

from pylog.client import errors
from pylog.client.config.settings import Settings
from pylog.client.network.cluster import Cluster
from pylog.client.network.connection import STAGING_BYTES, BufferPool, Connection
from pylog.protocol import api, codec, messages
from pylog.protocol.errors import EncodeError, ErrorCode


def versions(**ranges):
    row = messages.ApiVersionsResponse.ApiVersion
    return messages.ApiVersionsResponse(api_keys=[
        row(api_key=key, min_version=low, max_version=high)
        for key, (low, high) in {18: (0, 4), 3: (0, 12), 1: (4, 16), **ranges}.items()])


class Server:
    """Responds with a function of (api key, version, correlation id); None: no response."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exception):
        self.server.close()

    async def _serve(self, reader, writer):
        try:
            while True:
                size, = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                key, version, number, _, _ = codec.decode_request_header(frame)
                self.asked.append((key, version))
                found = self.answer(key, version, number)
                if isinstance(found, bytes):
                    writer.write(found)
                elif found is not None:
                    writer.write(codec.response_frame(key, version, number, found))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def opened(server, **settings):
    made = Settings("consumer", bootstrap_servers=f"127.0.0.1:{server.port}", **settings)
    return Connection.open("127.0.0.1", server.port, made, BufferPool())


def run(answer, work, **settings):
    async def whole():
        async with Server(answer) as server:
            return await work(server, await opened(server, **settings))

    return asyncio.run(whole())


def good(key, version, number):
    return versions() if key == api.API_VERSIONS else messages.MetadataResponse(cluster_id="c")


def test_highest_common_version_is_used():
    async def work(server, connection):
        await connection.send(messages.MetadataRequest(topics=[]))
        with pytest.raises(errors.UnsupportedByBrokerError):
            connection.send(messages.ListOffsetsRequest())
        assert not connection.serves(messages.ListOffsetsRequest)
        return server.asked

    assert run(good, work) == [(18, 4), (3, 12)]


def test_old_broker_is_queried_again_with_version_0():
    def answer(key, version, number):
        if key == api.API_VERSIONS and version:
            body = codec.encode_response(18, 0, messages.ApiVersionsResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION))
            return struct.pack(">ii", 4 + len(body), number) + body
        return good(key, version, number)

    async def work(server, connection):
        return server.asked, connection.versions[3]

    assert run(answer, work) == ([(18, 4), (18, 0)], (0, 12))


def test_missing_version_is_the_brokers_fault_and_a_wrong_value_is_not():
    request = messages.ElectLeadersRequest

    async def work(server, connection):
        with pytest.raises(errors.UnsupportedByBrokerError, match="election_type"):
            connection.send(request(election_type=1, topic_partitions=None), version=0)
        for version in (0, 2):
            with pytest.raises(EncodeError):
                connection.send(request(election_type="x", topic_partitions=None), version=version)
        assert connection.request_count == 0

    run(good, work)


def test_responses_match_their_requests_in_order():
    def answer(key, version, number):
        return versions() if key == 18 else messages.MetadataResponse(cluster_id=str(number))

    async def work(server, connection):
        futures = [connection.send(messages.MetadataRequest(topics=[])) for _ in range(20)]
        assert connection.request_count == 20
        return [int(found.cluster_id) for found in await asyncio.gather(*futures)]

    found = run(answer, work)
    assert found == list(range(found[0], found[0] + 20))


@pytest.mark.parametrize("size", [10, STAGING_BYTES - 200, STAGING_BYTES * 3, 5_000_000])
def test_raw_responses_of_any_length_are_complete(size):
    records = bytes(range(251)) * (size // 251 + 1)

    def answer(key, version, number):
        if key == 18:
            return versions()
        row = messages.FetchResponse
        return row(responses=[row.FetchableTopicResponse(partitions=[
            row.PartitionData(records=records[:size])])])

    async def work(server, connection):
        for _ in range(3):
            futures = [connection.send(messages.FetchRequest(), raw=True) for _ in range(2)]
            for frame in await asyncio.gather(*futures):
                assert records[:size] in bytes(frame.view)
                frame.release()

    run(answer, work)


@pytest.mark.parametrize("broken", [
    struct.pack(">ii", -1, 0), struct.pack(">ii", 3, 0), b"HTTP/1.1 400 Bad Request\r\n\r\n",
    struct.pack(">iib", 5, 99_999, 0),
])
def test_bytes_that_are_no_answer_end_the_connection(broken):
    def answer(key, version, number):
        return versions() if key == 18 else broken

    async def work(server, connection):
        first = connection.send(messages.MetadataRequest(topics=[]))
        second = connection.send(messages.MetadataRequest(topics=[]))
        for future in (first, second):
            with pytest.raises(errors.KafkaConnectionError):
                await asyncio.wait_for(future, 5)
        assert not connection.usable
        with pytest.raises(errors.KafkaConnectionError):
            connection.send(messages.MetadataRequest(topics=[]))

    run(answer, work)


def test_unanswered_request_times_out():
    def answer(key, version, number):
        return versions() if key == 18 else None

    async def work(server, connection):
        with pytest.raises(errors.KafkaTimeoutError):
            await connection.send(messages.MetadataRequest(topics=[]))
        assert not connection.usable

    run(answer, work, request_timeout_ms=200)


def test_rebooted_broker_machine_is_detected_within_seconds():
    async def work(server, connection):
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return [sock.getsockopt(socket.IPPROTO_TCP, option) for option in (
            socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)]

    idle_s, interval_s, count = run(good, work)
    assert idle_s + interval_s * count < 20


def test_silent_broker_is_disconnected_once_others_report_it_gone(monkeypatch):
    monkeypatch.setattr("pylog.client.network.connection.SILENCE_S", 0.1)
    alive = [1, 2]

    def answer_of(node_id):
        def answer(key, version, number):
            if key == api.API_VERSIONS:
                return versions()
            if node_id not in alive:
                return None
            return messages.MetadataResponse(brokers=[
                messages.MetadataResponse.MetadataResponseBroker(
                    node_id=id_, host="127.0.0.1", port=servers[id_].port) for id_ in alive])
        return answer

    servers = {id_: Server(answer_of(id_)) for id_ in alive}

    async def work():
        async with servers[1], servers[2]:
            async with Cluster(Settings("consumer", bootstrap_servers=
                                        f"127.0.0.1:{servers[1].port}")) as cluster:
                await cluster.refresh()
                await cluster.connection(1)
                await cluster.connection(2)
                alive.remove(1)
                with pytest.raises(errors.KafkaConnectionError):
                    await asyncio.wait_for(
                        cluster.send(1, messages.MetadataRequest(topics=[])), 20)
                assert cluster.usable(1) is None
                assert cluster.usable(2) is not None

    asyncio.run(work())


def test_a_cancelled_request_leaves_the_connection_in_order():
    async def work(server, connection):
        connection.send(messages.MetadataRequest(topics=[])).cancel()
        found = await connection.send(messages.MetadataRequest(topics=[]))
        assert found.cluster_id == "c"

    run(good, work)


def test_a_name_without_a_broker_is_an_error_that_names_it():
    async def work():
        settings = Settings("admin", bootstrap_servers="127.0.0.1:1")
        async with Cluster(settings) as cluster:
            with pytest.raises(errors.NoBrokersError, match="127.0.0.1:1"):
                await cluster.refresh()

    asyncio.run(work())


def test_buffers_are_reused_up_to_a_limit():
    pool = BufferPool(bytes_max=1 << 20)
    first = pool.take(300_000)
    assert len(first) == 524_288
    pool.give_back(first)
    assert pool.take(400_000) is first
    for _ in range(4):
        pool.give_back(bytearray(524_288))
    assert pool.bytes == 1 << 20


def test_connection_setup_ends_after_its_timeout():
    async def work():
        async with Server(lambda key, version, number: None) as server:
            with pytest.raises(errors.KafkaConnectionError, match=r"within 0\.321 s$"):
                await opened(server, socket_connection_setup_timeout_ms=321)

    asyncio.run(asyncio.wait_for(work(), 60))
