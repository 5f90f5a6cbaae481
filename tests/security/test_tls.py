"""A broker's TLS as its settings say, told by clients over it."""

import socket
import ssl
import subprocess
import time

import pytest

from pylog.testing import Broker, BrokerFailed
from pylog.testing.certificates import Authority, write
from tests.wire import raw

CA, OTHER_CA = Authority(), Authority("another authority")
OWN = CA.issue()
WAIT_S = 20.0


def of_files(tmp_path, **more) -> dict:
    """PEM files of a certificate and of whom to trust."""
    return {"ssl.keystore.type": "PEM",
            "ssl.keystore.location": write(tmp_path, "own.pem", OWN.chain + OWN.key),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": write(tmp_path, "ca.pem", CA.pem), **more}


def started(settings: dict, names: str = "SSL") -> Broker:
    listeners = ",".join(f"{name}://127.0.0.1:0" for name in names.split(","))
    return Broker(settings={"listeners": listeners, **settings})


def trusting(authority: Authority = CA, own=None, tmp_path=None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.pem.decode())
    if own is not None:
        context.load_cert_chain(write(tmp_path, f"{own.serial}.pem", own.chain + own.key))
    return context


class Connection(raw.Connection):
    def __init__(self, port: int, context: ssl.SSLContext | None = None):
        super().__init__(port, WAIT_S)
        self.socket = (context or trusting()).wrap_socket(self.socket, server_hostname="localhost")

    def works(self) -> bool:
        return self.call(raw.API_VERSIONS, 0, b"")[:2] == b"\0\0"


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with started(of_files(tmp_path_factory.mktemp("tls"))) as running:
        yield running


def test_a_listener_speaks_tls_with_the_certificate_of_its_settings(broker):
    with Connection(broker.port) as connection:
        assert connection.socket.getpeercert(True) == ssl.PEM_cert_to_DER_cert(OWN.chain.decode())
        assert connection.works()


def with_java_store(tmp_path) -> dict:
    own = write(tmp_path, "own.p12", OWN.pkcs12("secret"))
    target = str(tmp_path / "own.jks")
    subprocess.run(
        ["keytool", "-importkeystore", "-srckeystore", own, "-srcstorepass", "secret",
         "-destkeystore", target, "-deststoretype", "JKS", "-deststorepass", "other secret",
         "-destkeypass", "key secret", "-noprompt"], check=True, capture_output=True)
    return {"ssl.keystore.location": target, "ssl.keystore.password": "other secret",
            "ssl.key.password": "key secret"}


@pytest.mark.parametrize("made", [
    lambda path: {"ssl.keystore.type": "PKCS12", "ssl.keystore.password": "secret",
                  "ssl.keystore.location": write(path, "own.p12", OWN.pkcs12("secret"))},
    # Java takes PKCS12 for its own kind too.
    lambda path: {"ssl.keystore.password": "secret",
                  "ssl.keystore.location": write(path, "own.p12", OWN.pkcs12("secret"))},
    lambda path: {"ssl.keystore.type": "PEM", "ssl.key.password": "secret",
                  "ssl.keystore.key": OWN.locked_key("secret").decode(),
                  "ssl.keystore.certificate.chain": OWN.chain.decode()},
    lambda path: {"ssl.keystore.type": "PEM",
                  "ssl.keystore.key": OWN.key.decode().replace("\n", " "),
                  "ssl.keystore.certificate.chain": OWN.chain.decode().replace("\n", " ")},
    with_java_store,
], ids=["pkcs12", "pkcs12 by content", "encrypted inline", "inline in one line", "jks"])
def test_certificates_come_from_every_kind_of_store(tmp_path, made):
    with started(made(tmp_path)) as broker, Connection(broker.port) as connection:
        assert connection.works()


def test_each_listener_has_its_own_settings(tmp_path):
    other = OTHER_CA.issue()
    settings = of_files(tmp_path, **{
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:SSL,OUTSIDE:SSL",
        "inter.broker.listener.name": "INSIDE",
        "listener.name.inside.ssl.keystore.location":
            write(tmp_path, "other.pem", other.chain + other.key)})
    with started(settings) as broker:
        (_, _, inside), (_, _, outside) = broker.call("addresses")
        with Connection(inside, trusting(OTHER_CA)) as connection:
            assert connection.works()
        with Connection(outside, trusting(CA)) as connection:
            assert connection.works()


@pytest.mark.parametrize("settings, why", [
    ({}, "has no certificate"),
    ({"ssl.keystore.location": "/none"}, "/none: No such file"),
    ({"ssl.keystore.type": "PEM", "ssl.keystore.key": OWN.key.decode()},
     "certificate chain is not specified"),
    ({"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": OWN.chain.decode()},
     "private key is not specified"),
    ({"ssl.keystore.type": "PEM", "ssl.keystore.key": CA.issue().key.decode(),
      "ssl.keystore.certificate.chain": OWN.chain.decode()}, "does not belong"),
    ({"ssl.keystore.type": "BCFKS", "ssl.keystore.location": "/x"}, "BCFKS"),
])
def test_a_broker_without_a_usable_certificate_does_not_start_and_says_why(settings, why):
    with pytest.raises(BrokerFailed, match=why):
        started(settings).start()


def test_clients_are_known_by_their_certificate_where_one_is_required(tmp_path):
    with started(of_files(tmp_path, **{"ssl.client.auth": "required"})) as broker:
        with Connection(broker.port, trusting(CA, CA.issue("alice", ()), tmp_path)) as connection:
            assert connection.works()
        with pytest.raises((ssl.SSLError, raw.Closed)):
            with Connection(broker.port) as connection:
                connection.works()


def test_a_name_that_no_rule_fits_ends_its_connection(tmp_path):
    with started(of_files(tmp_path, **{
            "ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=(a.*)$/$1/"})) as broker:
        with Connection(broker.port, trusting(CA, CA.issue("alice", ()), tmp_path)) as connection:
            assert connection.works()
        with pytest.raises(raw.Closed):
            with Connection(broker.port, trusting(CA, CA.issue("bob", ()), tmp_path)) as connection:
                connection.works()


def test_a_revoked_certificate_does_not_pass(tmp_path):
    good, bad = CA.issue("good", ()), CA.issue("bad", ())
    with started(of_files(tmp_path, **{
            "ssl.client.auth": "required",
            "ssl.crl.location": write(tmp_path, "crl.pem", CA.revoke([bad]))})) as broker:
        with Connection(broker.port, trusting(CA, good, tmp_path)) as connection:
            assert connection.works()
        with pytest.raises((ssl.SSLError, raw.Closed)):
            with Connection(broker.port, trusting(CA, bad, tmp_path)) as connection:
                connection.works()


def test_a_file_that_changed_is_read_again_and_no_connection_is_cut(tmp_path):
    with started(of_files(tmp_path)) as broker, Connection(broker.port) as old:
        assert old.works()
        renewed = CA.issue()
        path = tmp_path / "own.pem"
        path.write_bytes(b"half a file")      # Not usable: the old one stays.
        time.sleep(0.01)
        path.write_bytes(renewed.chain + renewed.key)
        wanted, end_s = ssl.PEM_cert_to_DER_cert(renewed.chain.decode()), time.monotonic() + WAIT_S
        while True:
            with Connection(broker.port) as fresh:
                if fresh.socket.getpeercert(True) == wanted:
                    break
            assert time.monotonic() < end_s
            time.sleep(0.05)
        assert old.works()


def altered(connection: Connection, **configs) -> int:
    """The error code of IncrementalAlterConfigs of broker 1."""
    rows = [raw.string(name) + b"\0" + raw.string(value) for name, value in configs.items()]
    body = raw.array([b"\x04" + raw.string("1") + raw.array(rows)]) + b"\0"
    answer = connection.call(44, 0, body)
    return int.from_bytes(answer[8:10], "big", signed=True)


def test_a_key_store_altered_at_run_time_is_for_new_connections(tmp_path):
    renewed = CA.issue()
    path = write(tmp_path, "renewed.pem", renewed.chain + renewed.key)
    wanted = ssl.PEM_cert_to_DER_cert(renewed.chain.decode())
    with started(of_files(tmp_path, **{"node.id": "1"})) as broker:
        with Connection(broker.port) as old:
            location = "listener.name.ssl.ssl.keystore.location"
            invalid_request = 42
            assert altered(old, **{location: "/none"}) == invalid_request
            assert altered(old, **{location: write(tmp_path, "bad.pem", CA.pem)}) == invalid_request
            assert altered(old, **{location: path}) == 0
            end_s = time.monotonic() + WAIT_S
            while True:
                with Connection(broker.port) as fresh:
                    if fresh.socket.getpeercert(True) == wanted:
                        break
                assert time.monotonic() < end_s
                time.sleep(0.02)
            assert old.works()
        broker.restart()
        with Connection(broker.port) as connection:
            assert connection.socket.getpeercert(True) == wanted


def test_records_pass_through_tls_unchanged(broker, random_source):
    topic = broker.create_topic(partitions=1)
    batches = [raw.batch([raw.record(value=random_source.randbytes(size))])
               for size in (10, 40_000, 900_000)]
    with Connection(broker.port) as connection:
        for batch in batches:
            body = raw.produce_body(9, topic.name, [(0, batch)])
            connection.call(raw.PRODUCE, 9, body)
        records = [record.value for record in topic.records()]
        assert [len(value) for value in records] == [10, 40_000, 900_000]
        answer = connection.call(
            raw.FETCH, 12, raw.fetch_body(12, [(topic.name, [(0, 0, 10_000_000, -1)])]))
        assert all(value in answer for value in records)


def test_a_plain_client_on_a_tls_port_is_told_apart_in_the_log(broker, caplog):
    with socket.create_connection(("127.0.0.1", broker.port), timeout=WAIT_S) as connection:
        connection.sendall(raw.frame(raw.header(raw.API_VERSIONS, 3)))
        try:
            while connection.recv(1000):
                pass
        except ConnectionError:
            pass
    end_s = time.monotonic() + WAIT_S
    while not any(getattr(record, "reason", "") == "plain text on a TLS port"
                  for record in caplog.records):
        assert time.monotonic() < end_s
        time.sleep(0.02)
