"""Settings of the console: TLS, lives of sessions, limits of searches."""

import http.client
import ssl
from types import SimpleNamespace

import pytest

from pylog.config import Settings
from pylog.console.records.filters import Filter
from pylog.console.records.search import Limits
from pylog.console.views import browse
from pylog.testing.certificates import Authority
from tests.console.served import Served


def test_with_a_key_store_pages_use_tls_and_cookies_are_secure(broker, tmp_path):
    authority = Authority()
    issued = authority.issue("localhost", ("localhost", "127.0.0.1"))
    path = tmp_path / "console.pem"
    path.write_bytes(issued.chain + issued.key)
    with Served({"test": {"bootstrap.servers": broker.bootstrap}},
                console_ssl_keystore_location=path) as served:
        assert served.url.startswith("https://")
        connection = http.client.HTTPSConnection(
            served.url.removeprefix("https://"), timeout=60,
            context=ssl.create_default_context(cadata=authority.pem.decode()))
        connection.request("GET", "/topics")
        response = connection.getresponse()
        cookie = response.headers["set-cookie"]
        assert response.status == 200
        assert cookie.startswith("__Host-pylog=") and "Secure" in cookie
        assert "strict-transport-security" in response.headers
        connection.close()


@pytest.mark.parametrize(("idle_s", "uses"), [(61, 1), (50, 3)])
def test_sessions_end_after_the_set_times(broker, idle_s, uses):
    with Served({"test": {"bootstrap.servers": broker.bootstrap}},
                console_session_idle_ms=60_000, console_session_max_ms=120_000) as served:
        client = served.client()
        client.get("/about")
        first = client.cookies["pylog"]
        served.clock.now_s += 50
        client.get("/about")
        assert client.cookies["pylog"] == first
        for _ in range(uses):
            served.clock.now_s += idle_s
            client.get("/about")
        assert client.cookies["pylog"] != first


def test_searches_of_a_page_have_the_set_limits():
    settings = Settings({"console.search.matches.max": "7", "console.search.seconds.max": "3",
                         "console.search.bytes.max": "1000"})
    console = SimpleNamespace(settings=settings)
    request = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(console=console)))
    chosen = Filter()
    assert browse.limits_of(request, chosen, 60.0) == Limits(7, 3, 1000)
    chosen.limit = 5
    assert browse.limits_of(request, chosen, 2.0) == Limits(5, 2.0, 1000)
