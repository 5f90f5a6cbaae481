"""Access to the metrics endpoint: tokens, certificates, and the warning about an open endpoint."""

import http.client
import ssl
from pathlib import Path

import pytest

from pylog.log.errors import StartError
from pylog.monitor.admission import Admission
from pylog.testing.certificates import Authority, write
from pylog.tools.cluster.cluster_checks import _metrics
from tests.fixtures.brokers import Brokerd
from tests.monitor import scrape

TOKEN = "a-token-4711"


@pytest.fixture(scope="module")
def authority():
    return Authority()


def pem(authority, root) -> str:
    found = authority.issue("localhost", ("localhost", "127.0.0.1"))
    return write(root, "metrics.pem", found.chain + found.key)


@pytest.mark.parametrize(("headers", "admitted"), [
    ({}, False), ({"authorization": f"Bearer {TOKEN}"}, True),
    ({"authorization": f"bearer  {TOKEN} "}, True), ({"authorization": TOKEN}, False),
    ({"authorization": f"Basic {TOKEN}"}, False), ({"authorization": f"Bearer {TOKEN}x"}, False),
    ({"authorization": "Bearer \xff"}, False)])
def test_only_requests_with_the_token_are_admitted(headers, admitted):
    assert Admission("", TOKEN).admits(headers) is admitted
    assert Admission("", None).admits(headers)


@pytest.mark.parametrize(("keystore", "token", "said"), [
    ("/nowhere.pem", None, "No such file"), (__file__, None, "no PEM|PEM"), ("", "", "is empty")])
def test_unusable_configuration_stops_the_start(keystore, token, said):
    with pytest.raises(StartError, match=said):
        Admission(keystore, token).check()


def test_new_certificate_is_loaded_and_an_invalid_one_ignored(authority, tmp_path, caplog):
    path = Path(pem(authority, tmp_path))
    made = Admission(str(path), None)
    made.check()
    first = made._context
    made._refresh()
    assert made._context is first
    pem(authority, tmp_path)
    made._refresh()
    assert made._context is not first
    second = made._context
    path.write_text("no certificate")
    made._refresh()
    assert made._context is second and "cannot be used" in caplog.text


@pytest.fixture(scope="module")
def broker(authority, tmp_path_factory):
    root = tmp_path_factory.mktemp("metrics")
    with Brokerd(root, {"metrics.listener": "127.0.0.1:0", "metrics.token": TOKEN,
                        "metrics.ssl.keystore.location": pem(authority, root)}) as made:
        yield made


def asked(broker, authority, **headers) -> tuple[int, bytes]:
    context = ssl.create_default_context(cadata=authority.pem.decode())
    connection = http.client.HTTPSConnection(
        scrape.address_of(broker), context=context, timeout=30)
    try:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_scrape_requires_tls_and_the_token(broker, authority):
    status, text = asked(broker, authority, Authorization=f"Bearer {TOKEN}")
    assert status == 200 and b"pylog_" in text
    status, text = asked(broker, authority)
    assert status == 401 and b"pylog_" not in text
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        scrape.get(scrape.address_of(broker), "/metrics")
    told = broker.log.read_text()
    assert TOKEN not in told and "without authentication" not in told


@pytest.mark.parametrize(("listener", "source", "status"), [
    ("0.0.0.0:9644", 5, "warn"), (":9644", 5, "warn"), ("0.0.0.0:9644", 4, "ok"),
    ("127.0.0.1:9644", 5, "ok"), ("[::1]:9644", 5, "ok")])
def test_doctor_reports_an_open_metrics_endpoint(listener, source, status):
    class Row:
        def __init__(self, value, config_source):
            self.value, self.config_source = value, config_source

    found = _metrics("broker 1", {"metrics.listener": Row(listener, 4),
                                  "metrics.token": Row(None, source)})
    assert [row.status for row in found] == [status]
    assert _metrics("broker 1", {"metrics.listener": Row("", 5)}) == []
