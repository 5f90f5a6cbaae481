"""TLS in the reactors, with Python's ssl module as the client."""

import errno
import os
import select
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from pylog._native.log.io_pool import IoPool
from pylog._native.server.grants import Grants
from pylog._native.server.reactor import Connected, Reactors, Unsafe
from pylog._native.server.tls import TlsError, TlsServer, library, open_pkcs12
from pylog.testing.certificates import Authority
from tests.wire import raw

VERSIONS = [(0, 3, 13, 9), (1, 4, 18, 12), (3, 0, 13, 9), (18, 0, 4, 3)]
LIMITS = {"request_bytes_max": 32 << 20, "idle_ms_max": -1, "queued_requests_max": 500,
          "fetch_bytes_max": 1 << 20, "sessions_max": 10}
CA, OTHER_CA = Authority(), Authority("another authority")
OWN = CA.issue()
WAIT_S = 20.0


class Server:
    """Reactors that echo the body of every request. `events`: all other events."""

    def __init__(self, **settings):
        self.tls = TlsServer()
        self.tls.use(**{"chain": OWN.chain, "key": OWN.key, **settings})
        self.reactors = Reactors(grants=Grants(), io_pool=IoPool(), network_threads=2,
                                 api_versions=VERSIONS, **LIMITS)
        self.reactors.start()
        self.port = self.reactors.listen(4, "127.0.0.1", 0, 10, maker=self.tls.maker())
        self.plain_port = self.reactors.listen(5, "127.0.0.1", 0, 10)
        self.events = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.reactors.stop(1000)

    def serve(self, wait_s: float = 0.0) -> None:
        """Answer the pending requests and those that arrive within wait_s."""
        if not select.select([self.reactors], [], [], wait_s)[0]:
            return
        for event in self.reactors.poll():
            if type(event) in (Connected, Unsafe):
                self.events.append(event)
                continue
            answer = event.correlation_id.to_bytes(4, "big") + event.take_body()
            self.reactors.reply(event.token, raw.frame(answer))

    def next_event(self):
        end_s = time.monotonic() + WAIT_S
        while not self.events:
            assert time.monotonic() < end_s
            self.serve(0.1)
        return self.events.pop(0)

    def connect(self, context=None, name="localhost", **options) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        return (context or trusting(CA)).wrap_socket(plain, server_hostname=name, **options)

    def stat(self, name: str) -> int:
        return self.reactors.stats()[name]

    def ask(self, connection, body: bytes) -> bytes:
        """Send a request and return its response, while serve() runs."""
        request = memoryview(raw.frame(raw.header(raw.METADATA, 9, 7) + body))
        connection.setblocking(False)
        got, end_s = b"", time.monotonic() + WAIT_S
        while len(got) < 8 + len(body):
            assert time.monotonic() < end_s, (len(request), len(got))
            try:
                if request:
                    request = request[connection.send(request[:1 << 18]):]
                piece = connection.recv(1 << 18)
                if not piece:
                    raise raw.Closed
                got += piece
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                self.serve(0.01)
        assert got[4:8] == (7).to_bytes(4, "big")
        return got[8:]


def trusting(authority: Authority, own=None, tmp_path: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.pem.decode())
    if own is not None:
        path = tmp_path / f"{own.serial}.pem"
        path.write_bytes(own.chain + own.key)
        context.load_cert_chain(path)
    return context


def is_closed_by_peer(connection: socket.socket) -> bool:
    """Return True if the peer closes, cleanly or not."""
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.fixture
def server():
    with Server() as running:
        yield running


def test_requests_and_responses_of_any_size(server, random_source):
    with server.connect() as connection:
        assert connection.version() == "TLSv1.3"
        assert connection.cipher()[0] == "TLS_AES_128_GCM_SHA256"
        for size in (0, 1, 16383, 16384, 16385, 300_000, 5_000_000, 100):
            body = random_source.randbytes(size)
            assert server.ask(connection, body) == body
    assert server.stat("handshakes") == 1
    assert server.stat("handshakes_failed") == 0


def test_request_split_into_one_byte_tls_records_is_answered(server):
    with server.connect() as connection:
        for byte in raw.frame(raw.header(raw.METADATA, 9, 6) + b"body"):
            connection.send(bytes([byte]))
        server.serve(WAIT_S)
        assert connection.recv(100) == raw.frame((6).to_bytes(4, "big") + b"body")


def test_many_requests_in_one_record_are_answered_in_order(server):
    with server.connect() as connection:
        connection.sendall(b"".join(raw.frame(raw.header(raw.METADATA, 9, number) + b"!")
                                    for number in range(50)))
        got = b""
        while len(got) < 50 * 9:
            server.serve(0.05)
            connection.setblocking(False)
            try:
                got += connection.recv(1 << 16)
            except ssl.SSLWantReadError:
                pass
        assert [got[i * 9 + 4:i * 9 + 8] for i in range(50)] == \
            [number.to_bytes(4, "big") for number in range(50)]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_sessions_are_resumed_by_ticket(server, version):
    context = trusting(CA)
    context.maximum_version = context.minimum_version = version
    with server.connect(context) as connection:
        server.ask(connection, b"a ticket comes with the answer")
        session = connection.session
    with server.connect(context, session=session) as connection:
        assert server.ask(connection, b"again") == b"again"
        assert connection.session_reused
    assert server.stat("handshakes_resumed") == 1


def test_new_connections_get_a_new_certificate_and_old_ones_stay(server):
    old, session = server.connect(), None
    with old:
        first = old.getpeercert(True)
        server.ask(old, b"x")
        session, context = old.session, old.context
        renewed = CA.issue()
        server.tls.use(chain=renewed.chain, key=renewed.key)
        with server.connect(context, session=session) as fresh:
            assert fresh.getpeercert(True) != first
            assert not fresh.session_reused  # A ticket belongs to one context.
            assert server.ask(fresh, b"new") == b"new"
        assert server.ask(old, b"old") == b"old"


def test_unusable_certificate_changes_nothing(server):
    other = CA.issue()
    for wrong, why in (
            ({"key": other.key}, "does not belong"),
            ({"key": b"no key"}, "cannot be read"),
            ({"key": OWN.locked_key("secret")}, "needs a password"),
            ({"key": OWN.locked_key("secret"), "key_password": b"wrong"}, "password is wrong"),
            ({"chain": b"nothing"}, "no certificate"),
            ({"ciphers": b"NONE_SUCH"}, "no such cipher suite: NONE_SUCH"),
            ({"ciphers": b"TLS_AES_128_GCM_SHA256", "version_max": "TLSv1.2"},
             "no cipher suite belongs"),
            ({"client_auth": "required"}, "no certificates"),
            ({"client_auth": "required", "trusted": CA.pem, "revoked": CA.pem}, "revocation")):
        with pytest.raises(TlsError, match=why) as raised:
            server.tls.use(**{"chain": OWN.chain, "key": OWN.key, **wrong})
        assert "secret" not in str(raised.value)
    with server.connect() as connection:
        assert server.ask(connection, b"as before") == b"as before"


def test_an_encrypted_key_is_opened_with_its_password():
    with Server(key=OWN.locked_key("secret"), key_password=b"secret") as server:
        with server.connect() as connection:
            assert server.ask(connection, b"x") == b"x"


@pytest.mark.parametrize("ciphers, version, cipher", [
    (b"TLS_AES_256_GCM_SHA384", "TLSv1.3", "TLS_AES_256_GCM_SHA384"),
    (b"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384"),
    (b"ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2", "ECDHE-ECDSA-AES128-GCM-SHA256")])
def test_cipher_suites_accept_both_naming_schemes(ciphers, version, cipher):
    with Server(ciphers=ciphers) as server:
        with server.connect() as connection:
            assert (connection.version(), connection.cipher()[0]) == (version, cipher)


def test_old_protocols_are_rejected(server):
    context = trusting(CA)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        server.connect(context)
    assert "unsupported protocol" in server.next_event().reason


def test_server_name_of_the_client_does_not_matter(server):
    context = trusting(CA)
    context.check_hostname = False
    for name in ("nobody.example", "localhost", None):
        with server.connect(context, name=name) as connection:
            assert server.ask(connection, b"x") == b"x"


# ---- client certificates


def asked_for(client_auth: str, **more) -> dict:
    return {"client_auth": client_auth, "trusted": CA.pem, **more}


def test_client_certificate_sets_the_principal_before_the_first_request(tmp_path):
    with Server(**asked_for("required")) as server:
        with server.connect(trusting(CA, CA.issue("alice", ()), tmp_path)) as connection:
            request = raw.frame(raw.header(raw.METADATA, 9, 1) + b"who am I?")
            connection.sendall(request)
            event = server.next_event()
            assert (type(event), event.certificate, event.listener) == (Connected, "CN=alice", 4)
            server.serve(0.1)
            server.reactors.set_principal(event.connection, 12)
            server.reactors.retry(event.connection)
            assert select.select([server.reactors], [], [], WAIT_S)[0]
            [asked] = server.reactors.poll()
            assert (asked.principal, asked.take_body()) == (12, b"who am I?")


def test_client_without_certificate_is_accepted_only_if_none_is_required():
    with Server(**asked_for("requested")) as server, server.connect() as connection:
        assert server.ask(connection, b"x") == b"x"
    with Server(**asked_for("required")) as server, server.connect() as connection:
        assert is_closed_by_peer(connection)
        assert "peer did not return a certificate" in server.next_event().reason


@pytest.mark.parametrize("issuer, days, reason", [
    (OTHER_CA, 5, "unable to get local issuer certificate: CN=mallory"),
    (CA, -1, "certificate has expired, on DAY: CN=mallory")])
def test_invalid_certificate_is_rejected_and_the_reason_is_logged(
        tmp_path, issuer, days, reason):
    for client_auth in ("requested", "required"):
        with Server(**asked_for(client_auth)) as server:
            own = issuer.issue("mallory", (), days=days)
            day = x509.load_pem_x509_certificate(own.chain).not_valid_after_utc.date()
            with server.connect(trusting(CA, own, tmp_path)) as connection:
                assert is_closed_by_peer(connection)
            event = server.next_event()
            assert (type(event), event.reason, event.listener) == (
                Unsafe, reason.replace("DAY", str(day)), 4)
            assert event.peer.startswith("127.0.0.1:")


def test_revoked_certificate_is_rejected(tmp_path):
    good, bad = CA.issue("good", ()), CA.issue("bad", ())
    with Server(**asked_for("required", revoked=CA.revoke([bad]))) as server:
        with server.connect(trusting(CA, good, tmp_path)) as connection:
            connection.send(b"\0")
            assert server.next_event().certificate == "CN=good"
        with server.connect(trusting(CA, bad, tmp_path)) as connection:
            assert is_closed_by_peer(connection)
        assert server.next_event().reason == "certificate revoked: CN=bad"


@pytest.mark.parametrize("names, passes", [(1, True), (4000, False)])
def test_certificate_of_more_than_64_kib_is_rejected(tmp_path, names, passes):
    own = CA.issue("alice", [f"name-{number}.example.com" for number in range(names)])
    with Server(**asked_for("required")) as server:
        try:
            with server.connect(trusting(CA, own, tmp_path)) as connection:
                assert passes or is_closed_by_peer(connection)
        except OSError:  # the broker may have closed before the client finished
            assert not passes
        event = server.next_event()
        assert isinstance(event, Connected) if passes else event.reason == "excessive message size"


def test_resumed_session_keeps_the_principal_of_its_certificate(tmp_path):
    with Server(**asked_for("required")) as server:
        context = trusting(CA, CA.issue("alice", ()), tmp_path)
        with server.connect(context) as connection:
            connection.send(raw.frame(raw.header(raw.METADATA, 9, 7)))
            server.reactors.retry(server.next_event().connection)
            server.ask(connection, b"")
            session = connection.session
        with server.connect(context, session=session):
            assert server.next_event().certificate == "CN=alice"
        assert server.stat("handshakes_resumed") == 1


def test_names_are_written_as_java_writes_them(tmp_path):
    name = x509.Name([
        x509.NameAttribute(NameOID.COUNTRY_NAME, "DE"),
        x509.NameAttribute(NameOID.STATE_OR_PROVINCE_NAME, "NRW"),
        x509.NameAttribute(NameOID.LOCALITY_NAME, "Köln"),
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, 'A, "B" + C=<D>; \\#'),
        x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "  edge "),
        x509.NameAttribute(NameOID.DOMAIN_COMPONENT, "example"),
        x509.NameAttribute(NameOID.USER_ID, "u1"),
        x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b"),
        x509.NameAttribute(NameOID.COMMON_NAME, "client")])
    with Server(**asked_for("required")) as server:
        with server.connect(trusting(CA, CA.issue(name, ()), tmp_path)):
            assert server.next_event().certificate == (
                "CN=client,1.2.840.113549.1.9.1=#1603614062,UID=u1,DC=example,OU=\\ \\ edge\\ ,"
                'O=A\\, \\"B\\" \\+ C\\=\\<D\\>\\; \\\\\\#,L=Köln,ST=NRW,C=DE')


# ---- invalid and broken TLS


def test_plain_text_on_a_tls_port_is_reported(server):
    for request, reason in ((raw.frame(raw.header(raw.API_VERSIONS, 3)), "plain text"),
                            (b"GET / HTTP/1.1\r\n\r\n", "HTTP on a TLS port")):
        with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as connection:
            connection.sendall(request)
            assert is_closed_by_peer(connection)
        assert reason in server.next_event().reason


def test_tls_on_a_plain_text_port_is_reported(server):
    with socket.create_connection(("127.0.0.1", server.plain_port), timeout=WAIT_S) as connection:
        with pytest.raises(OSError):
            trusting(CA).wrap_socket(connection, server_hostname="localhost")
    event = server.next_event()
    assert (event.reason, event.listener) == ("TLS on a plain-text port", 5)


def test_client_that_does_not_trust_the_broker_is_reported(server):
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = trusting(OTHER_CA)
        context.maximum_version = version
        with pytest.raises(ssl.SSLError):
            server.connect(context)
        assert "unknown ca" in server.next_event().reason


def test_peer_that_closes_silently_is_not_reported(server):
    for _ in range(3):
        socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S).close()
    end_s = time.monotonic() + WAIT_S
    while server.stat("handshakes_failed") < 3:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    server.serve()
    assert server.events == []


def test_failures_are_reported_a_few_at_a_time(server):
    for _ in range(40):
        with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as connection:
            connection.sendall(b"\0" * 64)
            assert is_closed_by_peer(connection)
    assert server.stat("handshakes_failed") == 40
    server.serve(0.1)
    assert 0 < len(server.events) < 40


@pytest.mark.parametrize("when", ["before", "in", "after"])
def test_hostile_bytes_close_only_their_connection(server, random_source, when):
    hello = hello_of(trusting(CA))
    with server.connect() as good:
        for _ in range(60):
            noise = random_source.randbytes(random_source.randrange(1, 3000))
            plain = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
            with plain:
                if when == "after":
                    tunnel = trusting(CA).wrap_socket(plain.dup(), server_hostname="localhost")
                    tunnel.detach()
                elif when == "in":
                    cut = random_source.randrange(len(hello))
                    noise = hello[:cut] + noise
                try:
                    plain.sendall(noise)
                    plain.shutdown(socket.SHUT_WR)
                    is_closed_by_peer(plain)
                except OSError as error:
                    # It is already closed.
                    assert isinstance(error, ConnectionError) or error.errno == errno.ENOTCONN
        assert server.ask(good, b"still here") == b"still here"
    end_s = time.monotonic() + WAIT_S
    while server.stat("connections"):
        assert time.monotonic() < end_s
        time.sleep(0.01)


def hello_of(context: ssl.SSLContext) -> bytes:
    """Return the first flight of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_an_endless_handshake_has_a_limit(server):
    # Records of a ClientHello with a declared size of 16 MB.
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as connection:
        body = b"\x01\xff\xff\xff" + bytes(16000)
        record = b"\x16\x03\x01" + len(body).to_bytes(2, "big") + body
        sent = 0
        try:
            while sent < 1 << 20:
                sent += connection.send(record)
        except OSError:
            pass
        assert sent < 1 << 20 or is_closed_by_peer(connection)
    assert server.next_event().reason


def test_renegotiation_is_rejected(server):
    # With TLS 1.2, the last version that has renegotiation; s_client starts it with the letter R.
    with subprocess.Popen(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-tls1_2"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as client:
        out, _ = client.communicate(b"R\n", timeout=WAIT_S)
    assert b"no renegotiation" in out, out
    with server.connect() as connection:
        assert server.ask(connection, b"x") == b"x"


def test_no_compression_is_agreed_on_and_old_versions_are_not_offered(server):
    for option, refused in (("-tls1", True), ("-tls1_1", True), ("-tls1_2", False),
                            ("-tls1_3", False)):
        done = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-comp", option],
            input=b"Q\n", capture_output=True, timeout=WAIT_S)
        assert (b"Cipher is (NONE)" in done.stdout) == refused, (option, done.stdout)
        assert b"Compression: NONE" in done.stdout


# The groups of cipher suites that testssl.sh checks, by OpenSSL's names.
@pytest.mark.parametrize("weak", ["eNULL", "aNULL", "EXPORT", "LOW", "RC4", "3DES", "IDEA", "SEED",
                                  "MD5", "PSK", "SRP", "kRSA"])
def test_weak_cipher_suites_are_rejected(server, weak):
    done = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-tls1_2", "-cipher",
         f"{weak}:@SECLEVEL=0"], input=b"Q\n", capture_output=True, timeout=WAIT_S)
    none_known = b"no cipher match" in done.stderr
    assert none_known or b"Cipher is (NONE)" in done.stdout, done.stdout


def test_strong_cipher_suites_have_forward_secrecy_and_authenticated_encryption(server):
    """Return the cipher that a client without restrictions gets, in either version."""
    for version, wanted in (("-tls1_3", b"TLS_AES_128_GCM_SHA256"),
                            ("-tls1_2", b"ECDHE-ECDSA-AES")):
        done = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", version, "-cipher",
             "ALL:@SECLEVEL=0"], input=b"Q\n", capture_output=True, timeout=WAIT_S)
        assert b"Cipher is " + wanted in done.stdout, done.stdout
        assert b"GCM" in done.stdout or b"CHACHA20" in done.stdout


def test_library_version_is_reported():
    assert library().startswith("OpenSSL 3.")


# ---- stores


def test_pkcs12_files_contain_a_key_pair_or_trusted_certificates():
    key, chain, trusted = open_pkcs12(OWN.pkcs12("secret"), b"secret")
    assert trusted is None
    with Server(chain=chain, key=key) as server, server.connect() as connection:
        assert server.ask(connection, b"x") == b"x"
    key, chain, trusted = open_pkcs12(CA.trust_store("secret"), b"secret")
    assert (key, chain, trusted) == (None, None, CA.pem)
    for data, password, why in ((CA.trust_store("secret"), b"other", "password is wrong"),
                                (b"no store", b"", "not a PKCS12 file"),
                                (OWN.pkcs12("secret")[:200], b"secret", "not a PKCS12 file")):
        with pytest.raises(TlsError, match=why):
            open_pkcs12(data, password)


@pytest.mark.memory
def test_idle_connection_uses_little_memory(server):
    with server.connect(), server.connect():
        before = resident_bytes()
    count, context, held = 200, trusting(CA), []
    try:
        for _ in range(count):
            connection = server.connect(context)
            server.ask(connection, b"x" * 1000)
            # Only our side is measured: the client's session is dropped, its socket remains.
            held.append(connection.detach())
            del connection
        each = (resident_bytes() - before) / count
        assert server.stat("connections") == count
    finally:
        for descriptor in held:
            os.close(descriptor)
    assert each < 48 << 10, each


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
