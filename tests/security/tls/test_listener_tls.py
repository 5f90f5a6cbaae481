"""The TLS of a listener, as the broker describes it."""

import logging
import socket
import ssl
import threading

import pytest

from pylog._native.server.tls import library
from pylog.config import ConfigError, Settings
from pylog.config.listeners import Listener
from pylog.security.tls import key_stores, listener_tls
from pylog.security.tls.listener_tls import ListenerTls
from pylog.testing import Broker
from pylog.testing.certificates import write


def test_start_logs_the_tls_library(caplog):
    with caplog.at_level(logging.INFO, "pylog.tls"), Broker(tls=True):
        [told] = [one for one in caplog.records if one.message == "the listener speaks TLS"]
    assert (told.library, told.listener) == (library(), "SSL")


@pytest.mark.parametrize("texts,words", [
    ({}, "speaks TLS and has no certificate: set listener.name.one.ssl.keystore.location"),
    ({"listener.name.one.ssl.keystore.key": "x"}, "certificate chain is not specified"),
    ({"listener.name.one.ssl.keystore.location": "/nowhere"}, "/nowhere: No such file"),
    ({"listener.name.one.ssl.principal.mapping.rules": "RULE:x"}, "invalid rule: RULE:x"),
])
def test_a_start_that_a_certificate_prevents_names_the_listener_once(texts, words):
    settings = Settings({
        "listeners": "ONE://127.0.0.1:9", "inter.broker.listener.name": "ONE",
        "listener.security.protocol.map": "ONE:SSL", "ssl.keystore.type": "PEM", **texts})
    with pytest.raises(ConfigError) as caught:
        ListenerTls(settings, settings.listeners[0]).load()
    told = str(caught.value)
    assert told.startswith("ONE://127.0.0.1:9") and told.count("ONE://") == 1 and words in told


@pytest.mark.parametrize(("texts", "wanted"), [
    ({"ssl.client.auth": "required"}, "none"),
    ({"listener.name.sasl_ssl.ssl.client.auth": "required "}, "required"),
    ({"ssl.client.auth": "required", "listener.name.sasl_ssl.ssl.client.auth": "none"}, "none")])
def test_listener_with_sasl_requires_client_certificates_only_by_its_own_setting(texts, wanted):
    settings = Settings({"listeners": "SASL_SSL://:9093", **texts})
    assert listener_tls.getter(settings, settings.listeners[0])("ssl.client.auth") == wanted


def greet(broker, chain: str = "", **limits) -> ssl.SSLSocket:
    """Return a connection after its TLS handshake.

    chain: file with a client certificate and its key. limits: attributes of the SSLContext.
    """
    context = ssl.create_default_context(cadata=broker.authority.pem.decode())
    if chain:
        context.load_cert_chain(chain)
    for name, value in limits.items():
        setattr(context, name, value)
    host, port = broker.bootstrap.split(":")
    return context.wrap_socket(socket.create_connection((host, int(port)), 30),
                               server_hostname=host)


@pytest.mark.parametrize(("protocols", "offered", "spoken"), [
    ("TLSv1.3", ssl.TLSVersion.TLSv1_2, None), ("TLSv1.3", ssl.TLSVersion.TLSv1_3, "TLSv1.3"),
    ("TLSv1.2", ssl.TLSVersion.TLSv1_3, "TLSv1.2")])
def test_listener_speaks_only_the_enabled_versions_of_tls(protocols, offered, spoken):
    with Broker(tls=True, settings={"ssl.enabled.protocols": protocols}) as broker:
        if spoken is None:
            with pytest.raises(ssl.SSLError, match="(?i)version"):
                greet(broker, maximum_version=offered)
        else:
            with greet(broker, maximum_version=offered) as connection:
                assert connection.version() == spoken


@pytest.mark.parametrize("suite", [
    "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-GCM-SHA256"])
def test_listener_uses_the_configured_cipher_suite(suite):
    with Broker(tls=True, settings={"ssl.cipher.suites": suite}) as broker, \
            greet(broker, maximum_version=ssl.TLSVersion.TLSv1_2) as connection:
        assert connection.cipher()[0] == suite


def test_listener_rejects_a_revoked_client_certificate(tmp_path):
    broker = Broker(tls="mutual")
    good, revoked = broker.authority.issue("good"), broker.authority.issue("revoked")
    broker.settings["ssl.crl.location"] = write(
        tmp_path, "revoked.pem", broker.authority.revoke([revoked]))
    chains = [write(tmp_path, f"{number}.pem", made.chain + made.key)
              for number, made in enumerate((good, revoked))]
    with broker:
        # Up to TLS 1.2 the handshake of a client includes the check of its certificate.
        greet(broker, chains[0], maximum_version=ssl.TLSVersion.TLSv1_2).close()
        with pytest.raises(ssl.SSLError, match="(?i)revoked"):
            greet(broker, chains[1], maximum_version=ssl.TLSVersion.TLSv1_2)


class Changing:
    """Settings whose key is `now`."""

    now = "first"

    def of_listener(self, listener, name):
        return self.now if name == "ssl.keystore.key" else None


def test_certificate_loaded_last_is_used(monkeypatch):
    """Config changes and the periodic file check run on two threads."""
    settings, used = Changing(), []
    begun, goes_on = threading.Event(), threading.Event()

    def use(server, given, listener):
        read = given.now
        if read == "first":
            begun.set()
            assert goes_on.wait(10)
        used.append(read)
        return key_stores.Own(b"", b"", None)

    monkeypatch.setattr(listener_tls, "use", use)
    changed = ListenerTls(settings, Listener("ONE", "", 0, "SSL"))
    earlier, later = (threading.Thread(target=changed.refresh) for _ in range(2))
    earlier.start()
    assert begun.wait(10)
    settings.now = "second"
    later.start()
    later.join(0.2)
    goes_on.set()
    earlier.join()
    later.join()
    assert used[-1] == "second"
