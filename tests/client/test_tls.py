"""Our client over TLS, and its messages when TLS fails."""

import ssl

import pytest
from cryptography import x509

from pylog.client import Admin, Consumer, Producer, TopicPartition, errors
from pylog.testing import Broker
from pylog.testing.certificates import Authority, write
from tests.client.support import collect, new_name

OTHER = Authority("another authority")


@pytest.fixture(scope="module")
def broker():
    with Broker(tls=True) as running:
        yield running


@pytest.fixture(scope="module")
def mutual():
    with Broker(tls="mutual") as running:
        yield running


def ask(settings: dict) -> str:
    with Admin({**settings, "default.api.timeout.ms": 3000}) as admin:
        return admin.describe_cluster().cluster_id


def refusal(settings: dict) -> str:
    with pytest.raises(errors.KafkaError) as caught:
        ask(settings)
    return str(caught.value)


def test_records_of_any_size_go_to_and_fro(broker):
    topic, values = new_name("tls"), [b"%06d" % number * 100 for number in range(3000)]
    broker.create_topic(topic)
    with Producer(broker.client_settings()) as producer:
        for value in values:
            producer.send(topic, value)
        producer.flush(60)
    with Consumer(broker.client_settings(), auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert [one.value for one in collect(consumer, len(values))] == values


@pytest.mark.parametrize("trust", ["pem file", "pkcs12", "librdkafka's name"])
def test_trusted_authorities_come_from_files_too(broker, tmp_path, trust):
    settings = {name: value for name, value in broker.client_settings().items()
                if "truststore" not in name}
    pem = write(tmp_path, "ca.pem", broker.authority.pem)
    store = write(tmp_path, "ca.p12", broker.authority.trust_store("secret"))
    settings |= {
        "pem file": {"ssl.truststore.type": "PEM", "ssl.truststore.location": pem},
        "pkcs12": {"ssl.truststore.location": store, "ssl.truststore.password": "secret"},
        "librdkafka's name": {"ssl.ca.location": pem}}[trust]
    assert ask(settings)


@pytest.mark.parametrize("own", ["inline", "pkcs12", "librdkafka's names"])
def test_client_presents_its_certificate(mutual, tmp_path, own):
    settings, mine = mutual.client_settings(), mutual.authority.issue("alice", ())
    store = write(tmp_path, "own.p12", mine.pkcs12("secret"))
    chain, key = write(tmp_path, "own.pem", mine.chain), write(tmp_path, "key.pem", mine.key)
    assert ask({"inline": mutual.client_settings("alice"),
                "pkcs12": {**settings, "ssl.keystore.location": store,
                           "ssl.keystore.password": "secret"},
                "librdkafka's names": {**settings, "ssl.certificate.location": chain,
                                       "ssl.key.location": key}}[own])


def test_a_failure_names_its_cause(broker, mutual, tmp_path):
    settings = broker.client_settings()
    assert "not trusted" in refusal(
        {**settings, "ssl.truststore.certificates": OTHER.pem.decode()})
    assert "check whether this port uses TLS" in refusal({"bootstrap.servers": broker.bootstrap})
    with Broker() as plain:
        assert "this port speaks TLS" in refusal({**settings, "bootstrap.servers": plain.bootstrap})
    assert "requires a client certificate" in refusal(mutual.client_settings())
    stranger = OTHER.issue("mallory", ())
    assert "does not trust the client's certificate" in refusal({
        **mutual.client_settings(), "ssl.keystore.type": "PEM",
        "ssl.keystore.key": stranger.key.decode(),
        "ssl.keystore.certificate.chain": stranger.chain.decode()})
    text = refusal({**settings, "ssl.keystore.password": "wr0ng", "ssl.keystore.location": write(
        tmp_path, "own.p12", stranger.pkcs12("secret"))})
    assert "password is wrong" in text and "wr0ng" not in text


@pytest.mark.parametrize("own", ["inline", "librdkafka's names"])
def test_expired_client_certificate_is_reported_with_its_date(mutual, tmp_path, own):
    late = mutual.authority.issue("late", (), days=-2)
    day = x509.load_pem_x509_certificate(late.chain).not_valid_after_utc.date()
    given = {"ssl.keystore.type": "PEM", "ssl.keystore.key": late.key.decode(),
             "ssl.keystore.certificate.chain": late.chain.decode()} if own == "inline" else {
        "ssl.certificate.location": write(tmp_path, "late.pem", late.chain),
        "ssl.key.location": write(tmp_path, "late.key", late.key)}
    assert refusal({**mutual.client_settings(), **given}).endswith(
        f"the client's certificate has expired, on {day}")


def test_certificate_with_a_wrong_name_or_date_is_reported_with_both(tmp_path):
    authority = Authority()
    for made, words in ((authority.issue(hosts=["other.example"]), "for another name"),
                        (authority.issue(days=-2), "expired, on 20")):
        settings = {"listeners": "SSL://127.0.0.1:0", "inter.broker.listener.name": "SSL",
                    "ssl.keystore.type": "PEM", "ssl.keystore.key": made.key.decode(),
                    "ssl.keystore.certificate.chain": made.chain.decode()}
        client = {"security.protocol": "SSL", "ssl.truststore.type": "PEM",
                  "ssl.truststore.certificates": authority.pem.decode()}
        with Broker(settings=settings) as broker:
            client["bootstrap.servers"] = broker.bootstrap
            assert words in refusal(client)
            if "name" in words:
                assert ask({**client, "ssl.endpoint.identification.algorithm": ""})
    with Broker(settings={**settings, "ssl.keystore.key": made.key.decode()}) as broker:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        assert ask({"bootstrap.servers": broker.bootstrap, "security.protocol": "SSL",
                    "ssl.context": context})
