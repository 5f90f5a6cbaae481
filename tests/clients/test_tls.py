"""Every Kafka client over TLS with its own settings, with a client certificate where required."""

import shutil
import ssl

import pytest

from pylog.testing import Broker
from pylog.testing.certificates import write
from tests.clients import round_trips
from tests.wire.talk import unique

VALUES = [b"%04d" % number * 300 for number in range(200)]
LINES = "".join(f"{number}\n" for number in range(500))


@pytest.fixture(scope="module", params=["tls", "mutual"])
def broker(request):
    with Broker(tls="mutual" if request.param == "mutual" else True,
                settings={"auto.create.topics.enable": "true"}) as running:
        yield running


@pytest.fixture(scope="module")
def files(broker, tmp_path_factory):
    """Paths of the trusted certificate, the client's certificate and key, and both as PKCS12."""
    root, own = tmp_path_factory.mktemp("files"), broker.authority.issue("client", ())
    return {"ca": write(root, "ca.pem", broker.authority.pem),
            "chain": write(root, "own.pem", own.chain), "key": write(root, "own.key", own.key),
            "store": write(root, "own.p12", own.pkcs12("secret")),
            "trust": write(root, "trust.p12", broker.authority.trust_store("secret"))}


def test_librdkafka_reads_what_it_wrote_over_tls(broker, files):
    settings = {"bootstrap.servers": broker.bootstrap, "security.protocol": "ssl",
                "ssl.ca.location": files["ca"], "ssl.certificate.location": files["chain"],
                "ssl.key.location": files["key"]}
    assert round_trips.librdkafka(settings, unique("tls-librdkafka"), VALUES) == VALUES


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat_reads_what_it_wrote_over_tls(broker, files):
    settings = {"security.protocol": "ssl", "ssl.ca.location": files["ca"],
                "ssl.certificate.location": files["chain"], "ssl.key.location": files["key"]}
    assert round_trips.kcat(broker.bootstrap, settings, unique("tls-kcat"), LINES) == LINES


def test_kafka_python_reads_what_it_wrote_over_tls(broker, files):
    settings = {"bootstrap_servers": broker.bootstrap, "security_protocol": "SSL",
                "ssl_cafile": files["ca"], "ssl_certfile": files["chain"],
                "ssl_keyfile": files["key"]}
    assert round_trips.kafka_python(settings, unique("tls-kafka-python"), VALUES) == VALUES


def test_aiokafka_reads_what_it_wrote_over_tls(broker, files):
    context = ssl.create_default_context(cafile=files["ca"])
    context.load_cert_chain(files["chain"], files["key"])
    settings = {"bootstrap_servers": broker.bootstrap, "security_protocol": "SSL",
                "ssl_context": context}
    assert round_trips.aiokafka(settings, unique("tls-aiokafka"), VALUES) == VALUES


@pytest.mark.kafka
@pytest.mark.slow
def test_java_tools_connect_over_tls_by_their_command_config(broker, files, tmp_path):
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SSL\nssl.truststore.password=secret\nssl.keystore.password=secret\n"
        f"ssl.truststore.location={files['trust']}\nssl.keystore.location={files['store']}\n")
    assert round_trips.java_tools(broker.bootstrap, config, unique("tls-java"), LINES) == LINES
