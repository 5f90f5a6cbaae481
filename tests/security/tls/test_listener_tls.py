"""The TLS of a listener, as the broker describes it."""

import logging
import threading

import pytest

from pylog._native.tls import library
from pylog.config import ConfigError, Settings
from pylog.config.listeners import Listener
from pylog.security.tls import key_stores as stores, listener_tls as tls
from pylog.security.tls.listener_tls import ListenerTls
from pylog.testing import Broker


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
    assert tls.getter(settings, settings.listeners[0])("ssl.client.auth") == wanted


class Changing:
    """Settings whose key is `now`."""

    now = "first"

    def of_listener(self, listener, name):
        return self.now if name == "ssl.keystore.key" else None


def test_the_certificate_that_is_read_last_is_the_one_in_use(monkeypatch):
    """Config changes and the periodic file check run on two threads."""
    settings, used = Changing(), []
    begun, goes_on = threading.Event(), threading.Event()

    def use(server, given, listener):
        read = given.now
        if read == "first":
            begun.set()
            assert goes_on.wait(10)
        used.append(read)
        return stores.Own(b"", b"", None)

    monkeypatch.setattr(tls, "use", use)
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
