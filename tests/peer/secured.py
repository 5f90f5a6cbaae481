"""Settings of a node whose listener IN is secured, and a server with the same behaviour."""

import asyncio
import socket
import ssl
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from pylog.config import Settings
from pylog.peer import securing
from pylog.protocol import codec, messages
from pylog.security.sasl import oauthbearer, plain
from pylog.security.errors import AuthenticationFailed
from pylog.testing.certificates import Authority, write

CA, OTHER_CA = Authority(), Authority("another authority")
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required {};"
ACCOUNT = 'username="node" password="s3cret"'
LIFETIME = "session_lifetime_ms"


def settings(protocol: str, root: Path, *, authority=CA, own=None, account=ACCOUNT,
             **more: str) -> Settings:
    """Return settings of a broker that connects to others at IN; own: its Certificate."""
    texts = {
        "process.roles": "broker", "node.id": "2", "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "1@h:9093", "listeners": "IN://:0",
        "inter.broker.listener.name": "IN",
        "listener.security.protocol.map": f"IN:{protocol},CONTROLLER:PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.in.plain.sasl.jaas.config": JAAS.format(account),
        "listener.name.in.ssl.truststore.type": "PEM",
        "listener.name.in.ssl.truststore.location": write(root, "ca.pem", authority.pem)}
    if own is not None:
        texts["listener.name.in.ssl.keystore.type"] = "PEM"
        texts["listener.name.in.ssl.keystore.location"] = write(
            root, "own.pem", own.chain + own.key)
    return Settings({**texts, **more})


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def credentials(protocol: str, root: Path, **more):
    return securing.between_brokers(settings(protocol, root, **more), now_ms)


@contextmanager
def refusing(root: Path):
    """A server on `port` that reports a certificate error to one client, and stays until the client
    has disconnected: a reset would discard the TLS alert. asyncio's server closes without it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own = CA.issue()
    context.load_cert_chain(write(root, "refusing.pem", own.chain + own.key))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=CA.pem.decode())

    def serve() -> None:
        plain, _ = server.accept()
        with plain.dup() as line:
            secured = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
            try:
                secured.do_handshake()
            except ssl.SSLError:
                pass
            try:
                while line.recv(65_536):
                    pass
            except ConnectionResetError:
                pass
            secured.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield SimpleNamespace(port=server.getsockname()[1])
        thread.join()


class Node:
    """A server on a free port: TLS, logins, and heartbeats whose broker epoch is returned. `logins`
    and `asked` are counted. own: its certificate; None: plain text. trusted: CAs of accepted client
    certificates. lifetime_ms: of logins; None: no login required. check: offers OAUTHBEARER, and
    maps a token to its principal.
    """

    def __init__(self, root: Path, *, own=None, trusted=None, lifetime_ms=None, check=None):
        self.context = None
        if own is not None:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(write(root, "node.pem", own.chain + own.key))
            if trusted is not None:
                self.context.verify_mode = ssl.CERT_REQUIRED
                self.context.load_verify_locations(cadata=trusted.pem.decode())
        self._lifetime_ms, self._check = lifetime_ms, check
        self._mechanism = "PLAIN" if check is None else "OAUTHBEARER"
        self.logins = self.asked = 0
        self.port = 0

    async def __aenter__(self) -> "Node":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exception) -> None:
        self._server.close()

    async def _serve(self, reader, writer) -> None:
        is_known, exchange = self._lifetime_ms is None, None
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                if size > 1 << 20:
                    return
                frame = await reader.readexactly(size)
                key, version, number, _, body = codec.decode_request_header(frame)
                request = codec.decode_request(key, version, frame, body)
                if key == 17:
                    exchange = plain.Exchange({"node": "s3cret"}) if self._check is None \
                        else oauthbearer.Exchange(self._check)
                    answer = messages.SaslHandshakeResponse(
                        error_code=0 if request.mechanism == self._mechanism else 33,
                        mechanisms=[self._mechanism])
                elif key == 36:
                    answer = self._logged_in(exchange, request)
                    is_known = exchange.is_complete
                elif is_known:
                    self.asked += 1
                    answer = messages.BrokerHeartbeatResponse(throttle_time_ms=request.broker_epoch)
                else:
                    return
                writer.write(codec.response_frame(key, version, number, answer))
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()

    def _logged_in(self, exchange, request):
        self.logins += 1
        response = messages.SaslAuthenticateResponse
        try:
            answer = exchange.step(bytes(request.auth_bytes))
        except AuthenticationFailed as failed:
            return response(error_code=58, error_message=str(failed))
        return response(auth_bytes=answer, session_lifetime_ms=self._lifetime_ms)
