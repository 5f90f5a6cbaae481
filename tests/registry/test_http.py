"""The HTTP server at the level of bytes."""

import asyncio
import http.client
import json
import socket
import ssl
import urllib.parse

import pytest

from pylog.registry import http as server_module
from pylog.registry.http import HttpServer, response
from pylog.testing.certificates import Authority
from tests.registry.served import WAIT_S, Served

GET = b"GET /subjects HTTP/1.1\r\nHost: a\r\n\r\n"


class Wire:
    """A connection that sends bytes and reads answers."""

    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port), WAIT_S)
        self.file = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.file.close()
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def answer(self):
        """Return (status, headers, body), or None at the end."""
        line = self.file.readline()
        if not line:
            return None
        headers = {}
        while (row := self.file.readline().strip()):
            name, _, value = row.decode().partition(": ")
            headers[name.lower()] = value
        return (int(line.split()[1]), headers,
                self.file.read(int(headers.get("content-length", 0))))


@pytest.fixture
def wire(registry):
    with Wire(registry.url) as one:
        yield one


def test_a_connection_answers_many_requests_in_order(wire):
    paths = [b"/", b"/schemas/types", b"/absent", b"/"]
    wire.send(b"".join(b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path for path in paths))
    assert [wire.answer()[0] for _ in paths] == [200, 200, 404, 200]
    for path in paths:
        wire.send(b"GET %s HTTP/1.1\r\nHost: a\r\n\r\n" % path)
        assert wire.answer()[0] == (404 if path == b"/absent" else 200)


def test_the_same_header_with_another_meaning_is_read_again(wire):
    for kind in ("application/json", "application/vnd.schemaregistry+json", "application/json"):
        for _ in range(3):
            wire.send(f"GET / HTTP/1.1\r\nHost: a\r\nAccept: {kind}\r\n\r\n".encode())
            assert wire.answer()[1]["content-type"] == kind


def test_a_request_may_arrive_byte_by_byte(wire):
    wire.send(GET)
    wire.answer()
    for number in range(len(GET)):
        wire.send(GET[number:number + 1])
    assert wire.answer()[0] == 200
    wire.send(GET)
    assert wire.answer()[0] == 200


def test_writes_and_reads_keep_their_order(wire, subject):
    body = json.dumps({"schema": '"string"'}).encode()
    post = (b"POST /subjects/%s/versions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
            % (subject.encode(), len(body))) + body
    get = b"GET /subjects/%s/versions HTTP/1.1\r\nHost: a\r\n\r\n" % subject.encode()
    wire.send(post + get + post + get)
    answers = [wire.answer() for _ in range(4)]
    assert [status for status, _, _ in answers] == [200] * 4
    assert answers[1][2] == answers[3][2] == b"[1]"


def test_chunked_bodies_are_accepted(wire, subject):
    wire.send(b"POST /subjects/%s/versions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
              b"\r\n9\r\n{\"schema\"\r\nd\r\n: \"\\\"int\\\"\" }\r\n0\r\n\r\n" % subject.encode())
    assert wire.answer()[0] == 200


def test_a_client_that_waits_for_permission_to_send_gets_it(wire, subject):
    wire.send(b"POST /subjects/%s HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
              b"Expect: 100-continue\r\n\r\n" % subject.encode())
    assert wire.answer()[0] == 100
    wire.send(b"{}")
    assert wire.answer()[0] == 422


def test_the_connection_ends_if_the_client_asks_for_it(wire):
    wire.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert wire.answer()[0] == 200
    assert wire.answer() is None


@pytest.mark.parametrize("request_bytes, status", [
    (b"nonsense\r\n\r\n", 400), (b"GET / HTTP/1.1\nHost: a\n b\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    (b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000, 431),
    (b"POST /config HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n" + b"x" * 4_500_000, 413)])
def test_malformed_and_oversized_requests_end_the_connection(wire, request_bytes, status):
    try:
        wire.send(request_bytes)
    except OSError:
        pass  # The server has closed the connection already.
    try:
        answer = wire.answer()
    except ConnectionResetError:
        return
    assert answer is None or answer[0] == status


@pytest.mark.parametrize("method, path, status", [
    ("PATCH", "/subjects", 405), ("HEAD", "/nothing", 404), ("POST", "/config", 405)])
def test_unknown_methods_are_refused(client, method, path, status):
    if method == "HEAD":
        connection = http.client.HTTPConnection(client.host, timeout=WAIT_S)
        connection.request(method, path)
        assert connection.getresponse().status == status
        connection.close()
    else:
        assert client.send(method, path, b"{}")[0] == status


def test_types_of_bodies_and_answers_are_checked(client):
    assert client.get("/", Accept="text/html") == (
        406, {"error_code": 406, "message": "HTTP 406 Not Acceptable"})
    assert client.send("PUT", "/config", b"{}", {"Content-Type": "text/html"}) == (
        415, {"error_code": 415, "message": "HTTP 415 Unsupported Media Type"})
    body = '{"compatibility": "BACKWARD"}'.encode("utf-16")
    assert client.send("PUT", "/config/utf16", body)[0] == 200


def test_requests_use_tls_with_a_key_store(registry_broker, topic, tmp_path):
    authority = Authority()
    issued = authority.issue("localhost", ("localhost", "127.0.0.1"))
    path = tmp_path / "registry.pem"
    path.write_bytes(issued.chain + issued.key)
    with Served({"bootstrap.servers": registry_broker.bootstrap}, topic=topic,
                ssl_keystore_location=path) as one:
        assert one.url.startswith("https://")
        connection = http.client.HTTPSConnection(
            urllib.parse.urlsplit(one.url).netloc, timeout=WAIT_S,
            context=ssl.create_default_context(cadata=authority.pem.decode()))
        connection.request("GET", "/schemas/types")
        assert connection.getresponse().read() == b'["AVRO"]'
        connection.close()


async def _serving(application, work, monkeypatch, **limits):
    for name, value in limits.items():
        monkeypatch.setattr(server_module, name, value)
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    server = HttpServer(application, 1000)
    await server.start(sock, None)
    try:
        async with asyncio.timeout(WAIT_S):
            return await work(server, sock.getsockname()[1])
    finally:
        await server.close()


def test_slow_and_idle_connections_are_closed(monkeypatch):
    async def work(server, port):
        for sent in (b"GET / HTTP/1.1\r\nHo", b"",
                     b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert await reader.read() == b""
            writer.close()

    asyncio.run(_serving(lambda request: response(200, b""), work, monkeypatch, SWEEP_S=0.01,
                         REQUEST_S=0.1, IDLE_S=0.1))


def test_requests_whose_answers_are_not_read_wait(monkeypatch):
    calls = []
    large = response(200, b"x" * 100_000)

    def answer(request):
        calls.append(request)
        return large

    async def work(server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
        writer.write(GET * 1000)
        before = -1
        while before != len(calls) or not calls:
            before = len(calls)
            await asyncio.sleep(0.1)
        assert before < 200
        for _ in range(1000):
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(100_000)
        assert len(calls) == 1000
        writer.close()

    asyncio.run(_serving(answer, work, monkeypatch))


def test_a_client_that_reads_no_answers_is_disconnected(monkeypatch):
    async def late():
        return response(200, b"x" * 20_000_000)

    async def work(server, port):
        for is_late in (False, True):
            large[0] = is_late
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
            writer.write(GET + GET)
            while not server.connections:
                await asyncio.sleep(0.01)
            async with asyncio.timeout(WAIT_S):
                while server.connections or server.in_progress:
                    await asyncio.sleep(0.01)
            writer.close()

    large = [False]
    asyncio.run(_serving(
        lambda request: late() if large[0] else response(200, b"x" * 20_000_000), work,
        monkeypatch, SWEEP_S=0.01, STALLED_S=0.2))


def test_a_malformed_request_is_not_answered_before_the_one_ahead_of_it(monkeypatch):
    async def slow():
        await asyncio.sleep(60)
        return response(200, b"")

    async def work(server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET + b"no request\r\n\r\n")
        assert await reader.read() == b""
        writer.close()

    asyncio.run(_serving(lambda request: slow(), work, monkeypatch))


def test_connections_and_requests_beyond_the_limits_are_refused(monkeypatch):
    release = []

    async def slow():
        event = asyncio.Event()
        release.append(event)
        await event.wait()
        return response(200, b"")

    async def work(server, port):
        first = await asyncio.open_connection("127.0.0.1", port)
        first[1].write(GET)
        while not release:
            await asyncio.sleep(0.01)
        second = await asyncio.open_connection("127.0.0.1", port)
        second[1].write(GET)
        assert b"503" in await second[0].readline()
        third = await asyncio.open_connection("127.0.0.1", port)
        assert b"503" in await third[0].readline()
        release[0].set()
        assert b"200" in await first[0].readline()
        for _, writer in (first, second, third):
            writer.close()

    asyncio.run(_serving(lambda request: slow(), work, monkeypatch, CONNECTIONS_MAX=2,
                         IN_PROGRESS_MAX=1))


def test_an_unexpected_error_is_answered_without_details(registry, client, monkeypatch):
    from pylog.registry import routes

    def broken(method, segments):
        raise RuntimeError("secret")

    monkeypatch.setattr(routes, "find", broken)
    status, answer = client.get("/contexts?broken")
    assert (status, answer["error_code"]) == (500, 50001)
    assert "secret" not in answer["message"]
