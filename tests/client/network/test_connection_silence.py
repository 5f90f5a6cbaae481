"""A connection on a simulated transport: silence, logins, errors at the end."""

import asyncio
import struct
from types import SimpleNamespace

import pytest

from pylog.client.config.settings import CONSUMER, Settings
from pylog.client.errors import (
    AuthenticationError, KafkaConnectionError, KafkaTimeoutError, UnsupportedByBrokerError,
)
from pylog.client.network import connection
from pylog.client.network.connection import SILENCE_S, STAGING_BYTES, BufferPool, Connection
from pylog.protocol import api, codec, messages

ASK = messages.MetadataRequest


class Transport:
    """Records the frames written to it; as under TLS there is no bare socket."""

    def __init__(self):
        self.frames, self.aborted = [], 0

    def get_extra_info(self, name):
        return "tls" if name == "ssl_object" else None

    def writelines(self, pieces):
        self.frames.append(b"".join(pieces))

    def abort(self):
        self.aborted += 1

    def keys(self):
        return [codec.decode_request_header(frame[4:])[0] for frame in self.frames]


@pytest.fixture
def played(virtual_time):
    """played(steps, **settings) runs steps(connection, clock) on a virtual clock."""
    clock = virtual_time(connection)

    def run(steps, **settings):
        async def main():
            one = Connection("h", 9, Settings(CONSUMER, bootstrap_servers="x:1", **settings),
                             BufferPool())
            one.versions = {api.METADATA: (0, 12), api.JOIN_GROUP: (0, 9), api.PRODUCE: (3, 9),
                            api.SASL_HANDSHAKE: (0, 1)}
            one.connection_made(Transport())
            await steps(one, clock)
            one.close()

        clock.run(main())

    return run


def receive(one, data):
    """Deliver bytes as asyncio does: into the connection's buffer, as many as fit."""
    while data:
        room = one.get_buffer(-1)
        count = min(len(room), len(data))
        room[:count] = data[:count]
        one.buffer_updated(count)
        data = data[count:]


def answered(number=1, **fields):
    return codec.response_frame(api.METADATA, 12, number, messages.MetadataResponse(**fields))


async def failure_of(future):
    await asyncio.wait([future])
    return future.exception()


# Silence.

def test_port_that_never_responded_may_not_be_a_broker(played):
    async def steps(one, clock):
        one.connected = True
        one.send(ASK(topics=[]), timeout_s=1)
        second = one.send(ASK(topics=[]), timeout_s=60)
        assert str(await failure_of(second)) == (
            "h:9: connected, but it does not respond; "
            "check that it is a broker's port, without TLS")

    played(steps)


def test_silent_broker_is_logged_until_it_responds(played):
    async def steps(one, clock):
        told = []
        one.on_silence = lambda: told.append(clock.now_s - 1000)
        future = one.send(ASK(topics=[]))
        await asyncio.sleep(SILENCE_S - 0.1)
        assert not one.is_silent
        await asyncio.sleep(0.2)
        assert one.is_silent and told == [2.0]
        receive(one, answered(cluster_id="c"))
        assert (await future).cluster_id == "c" and not one.is_silent and one.answered
        await asyncio.sleep(60)
        assert told == [2.0] and one.usable

    played(steps)


@pytest.mark.parametrize("raw", [False, True])
def test_throttling_broker_is_not_treated_as_silent(played, raw):
    async def steps(one, clock):
        silent, throttled = [], []
        one.on_silence = lambda: silent.append(clock.now_s - 1000)
        one.on_throttle = lambda: throttled.append((clock.now_s - 1000, one.throttle_ms))
        if raw:
            one.versions[api.FETCH] = (4, 12)
            one.send(messages.FetchRequest(), version=12, raw=True)
            receive(one, codec.response_frame(
                api.FETCH, 12, 1, messages.FetchResponse(throttle_time_ms=5000)))
        else:
            one.send(ASK(topics=[]))
            receive(one, answered(throttle_time_ms=5000))
        one.send(ASK(topics=[]), timeout_s=60)
        await asyncio.sleep(6.5)
        assert (silent, throttled) == ([], [(2.0, 5000), (4.0, 5000), (6.0, 5000)])
        assert not one.is_silent
        await asyncio.sleep(2)
        assert one.is_silent and silent == [8.0] and len(throttled) == 3

    played(steps)


@pytest.mark.parametrize("wait_s, told", [(None, [2.0, 4.0]), (3.0, [2.0]), (2.0, []), (1.0, [])])
def test_request_timeout_closes_the_connection(played, wait_s, told):
    async def steps(one, clock):
        heard = []
        one.answered = True
        one.on_silence = lambda: heard.append(clock.now_s - 1000)
        first = one.send(ASK(topics=[]), timeout_s=wait_s)
        second = one.send(ASK(topics=[]), timeout_s=60)
        late = await failure_of(first)
        assert clock.now_s - 1000 == (wait_s or 5.0) and sorted({*heard}) == told
        assert isinstance(late, KafkaTimeoutError)
        assert f"h:9: no response to METADATA within {wait_s or 5.0:g} s" == str(late)
        assert "the broker does not respond" in str(await failure_of(second))
        assert not one.usable and one.transport.aborted == 1 and one.traffic.closed == 1
        assert one.request_count == 0
        await asyncio.sleep(100)

    played(steps, request_timeout_ms=5000)


def test_waiting_for_other_members_does_not_count_as_silence(played):
    async def steps(one, clock):
        future = one.send(messages.JoinGroupRequest(), timeout_s=9.0)
        await asyncio.sleep(8)
        assert not one.is_silent and one.usable
        assert isinstance(await failure_of(future), KafkaTimeoutError) and clock.now_s == 1009

    played(steps)


def test_timeout_of_an_abandoned_request_closes_the_connection_too(played):
    async def steps(one, clock):
        one.send(ASK(topics=[])).cancel()
        await asyncio.sleep(6)
        assert not one.usable

    played(steps, request_timeout_ms=5000)


# Close.

def test_closing_error_is_raised_for_all_requests_once_and_for_later_ones(played):
    async def steps(one, clock):
        futures = [one.send(ASK(topics=[])) for _ in range(3)]
        futures[1].cancel()
        one.close()
        one.fail(KafkaConnectionError("another"))
        for future in (futures[0], futures[2]):
            assert str(await failure_of(future)) == "h:9: the connection was closed"
        for call in (one.send, one.send_only):
            with pytest.raises(KafkaConnectionError, match="was closed"):
                call(ASK(topics=[]))
        with pytest.raises(KafkaConnectionError, match="was closed"):
            await one.drain()
        assert one.transport.aborted == 1 and len(one.transport.frames) == 3
        await asyncio.sleep(100)

    played(steps)


@pytest.mark.parametrize("protocol, answered, served, expected", [
    ("PLAINTEXT", False, False, " before it sent a response; check whether this port uses TLS"),
    ("SSL", False, False, ""),
    ("PLAINTEXT", True, False,
     " at the first request; it may require security.protocol=SASL_PLAINTEXT"),
    ("SSL", True, False, " at the first request; it may require security.protocol=SASL_SSL"),
    ("SASL_PLAINTEXT", True, False, ""), ("PLAINTEXT", True, True, "")])
def test_a_broker_that_hangs_up_at_once_may_speak_tls_or_want_a_login(
        played, protocol, answered, served, expected):
    async def steps(one, clock):
        one.answered, one.served = answered, served
        one.connection_lost(None)
        assert isinstance(one.failure, KafkaConnectionError)
        assert str(one.failure) == f"h:9: disconnected by the broker{expected}"

    played(steps, security_protocol=protocol,
           **({"sasl_username": "u", "sasl_password": "p"} if "SASL" in protocol else {}))


def test_an_answer_to_more_than_the_greeting_is_a_broker_that_serves(played):
    async def steps(one, clock):
        greeting = one.send(messages.ApiVersionsRequest(), version=0)
        receive(one, codec.response_frame(api.API_VERSIONS, 0, 1, messages.ApiVersionsResponse()))
        await greeting
        assert one.answered and not one.served
        asked = one.send(ASK(topics=[]))
        receive(one, answered(2))
        await asked
        assert one.served

    played(steps)


def test_certificate_rejected_after_the_handshake_is_not_a_lost_connection(played):
    async def steps(one, clock):
        one.connection_lost(connection.ssl.SSLError(1, "bad certificate"))
        assert isinstance(one.failure, AuthenticationError)

    played(steps, security_protocol="SSL")


@pytest.mark.parametrize("data, words", [
    (struct.pack(">i", 3), "a frame of 3 bytes"), (struct.pack(">i", -1), "a frame of -1 bytes"),
    (struct.pack(">i", (1 << 30) + 1), "a frame of 1073741825 bytes"), (b"HTTP/1.1", "speaks HTTP"),
    (b"\x15\x03\x03\0", "speaks TLS: set security.protocol"),
    (struct.pack(">ii", 4, 1), "a response without a request")])
def test_invalid_response_closes_the_connection_with_its_content(played, data, words):
    async def steps(one, clock):
        receive(one, data)
        assert words in str(one.failure)

    played(steps)


@pytest.mark.parametrize("data", [struct.pack(">i", 4)[:3], struct.pack(">i", 1 << 30)])
def test_the_beginning_of_an_answer_is_awaited(played, data):
    async def steps(one, clock):
        one.pool = SimpleNamespace(take=lambda size: bytearray(STAGING_BYTES))
        receive(one, data)
        assert one.failure is None

    played(steps)


def test_responses_may_arrive_in_any_chunks(played):
    """Also responses larger than the staging buffer."""
    async def steps(one, clock):
        broker = messages.MetadataResponse.MetadataResponseBroker(host="x" * 30_000)
        counts = [0, 3, 1, 1, 0]
        for size in (1000, STAGING_BYTES, STAGING_BYTES + 1, 1 << 20):
            first = one._next_id + 1
            futures = [one.send(ASK(topics=[])) for _ in counts]
            data = b"".join(answered(first + place, brokers=[broker] * count)
                            for place, count in enumerate(counts))
            for at in range(0, len(data), size):
                receive(one, data[at:at + size])
            found = [await future for future in futures]
            assert [row.brokers for row in found] == [[broker] * count for count in counts]

    played(steps)


# Versions.

@pytest.mark.parametrize("served, highest, expected", [
    ((0, 12), None, 12), ((0, 5), None, 5), ((0, 12), 7, 7), ((0, 5), 7, 5), ((13, 99), None, 13)])
def test_the_version_is_the_highest_within_all_limits(played, served, highest, expected):
    async def steps(one, clock):
        one.versions[api.METADATA] = served
        assert one.version(ASK, highest) == expected and one.serves(ASK)

    played(steps)


@pytest.mark.parametrize("served, highest, serves", [
    ((90, 99), None, False), ((5, 12), 4, True), (None, None, False)])
def test_request_without_a_common_version_is_rejected(played, served, highest, serves):
    async def steps(one, clock):
        one.versions.pop(api.METADATA)
        if served:
            one.versions[api.METADATA] = served
        with pytest.raises(UnsupportedByBrokerError, match="h:9"):
            one.version(ASK, highest)
        assert one.serves(ASK) == serves

    played(steps)


# Send buffer and re-authentication.

def test_a_full_send_buffer_is_awaited(played):
    async def steps(one, clock):
        await one.drain()
        one.pause_writing()
        asyncio.get_running_loop().call_later(3, one.resume_writing)
        await one.drain()
        assert clock.now_s == 1003
        one.resume_writing()
        one.pause_writing()
        asyncio.get_running_loop().call_later(3, one.close)
        with pytest.raises(KafkaConnectionError, match="was closed"):
            await one.drain()
        assert clock.now_s == 1006

    played(steps)


def test_requests_wait_for_the_login_and_keep_their_order(played):
    async def steps(one, clock):
        one.hold()
        produce = messages.ProduceRequest()
        futures = [one.send(ASK(topics=[]))]
        one.send_only(produce)
        futures.append(one.send(ASK(topics=[])))
        assert one.transport.frames == [] and one.request_count == 3
        login = one.send(messages.SaslHandshakeRequest(mechanism="PLAIN"))
        assert one.transport.keys() == [api.SASL_HANDSHAKE]
        receive(one, codec.response_frame(api.SASL_HANDSHAKE, 1, 4,
                                          messages.SaslHandshakeResponse()))
        await login
        one.logged_in(0)
        assert one.transport.keys()[1:] == [api.METADATA, api.PRODUCE, api.METADATA]
        assert one.request_count == 2 and one._login is None
        receive(one, answered(1, cluster_id="a") + answered(3, cluster_id="b"))
        assert [(await future).cluster_id for future in futures] == ["a", "b"]

    played(steps)


def test_requests_waiting_for_a_login_fail_with_the_connection(played):
    async def steps(one, clock):
        one.hold()
        future = one.send(ASK(topics=[]))
        one.send_only(messages.ProduceRequest())
        one.close()
        assert "was closed" in str(await failure_of(future)) and one.request_count == 0
        one.logged_in(1000)
        assert one._login is None

    played(steps)


@pytest.mark.parametrize("outcome, words", [
    ("done", None), (AuthenticationError("refused"), "refused"),
    ("never", "the broker does not support SASL")])
def test_reauthentication_precedes_session_expiry(played, monkeypatch, outcome, words):
    logins = []

    async def log_in(one):
        logins.append(asyncio.get_running_loop().time() - 1000)
        if outcome == "never":
            await asyncio.sleep(1000)
        if outcome != "done":
            raise outcome

    monkeypatch.setattr(connection.login, "log_in", log_in)

    async def steps(one, clock):
        one.logged_in(100_000)
        await asyncio.sleep(84)
        assert logins == []
        await asyncio.sleep(12)
        [at_s] = logins
        assert 85 <= at_s <= 95
        await asyncio.sleep(20)
        assert (one.failure is None) == (words is None)
        if words:
            assert words in str(one.failure)

    played(steps, request_timeout_ms=5000)


def test_closed_connection_does_not_reauthenticate(played, monkeypatch):
    logins = []

    async def log_in(one):
        logins.append(one)

    monkeypatch.setattr(connection.login, "log_in", log_in)

    async def steps(one, clock):
        one.logged_in(100_000)
        one.close()
        await asyncio.sleep(200)

    played(steps)
    assert not logins
