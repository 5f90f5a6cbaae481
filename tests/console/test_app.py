"""The checks that each request passes: headers, Host, CSRF, sessions, errors."""

import re

import pytest

from pylog.console.session import SESSIONS_WITHOUT_COOKIE_MAX
from tests.console.served import Served

TOPIC_CALL = "/preferences"


def test_every_response_has_the_security_headers(client):
    for path in ("/", "/about", "/healthz", "/no-such-page", "/static/x/y"):
        headers = client.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy, path
        assert headers["X-Content-Type-Options"] == "nosniff", path
        assert headers["Referrer-Policy"] == "same-origin", path
        assert headers["Cache-Control"] == "no-store", path
        assert "Server" not in headers


def test_static_files_are_cached_for_a_year(client):
    for path in re.findall(r'"(/static/[^"]+)"', client.get("/").text):
        response = client.get(path)
        assert response.status == 200
        assert response.headers["Cache-Control"] == "public, max-age=31536000, immutable"


def test_pages_contain_no_inline_script_style_or_event_attribute(client):
    for path in ("/", "/about", "/preferences", "/audit", "/no-such-page"):
        text = client.get(path).text
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text), path


def test_templates_never_mark_text_as_safe():
    from importlib import resources

    for file in resources.files("pylog.console").joinpath("templates").iterdir():
        assert not re.search(r"\|\s*safe|autoescape", file.read_text()), file.name


def test_a_foreign_host_header_is_rejected_on_loopback(client):
    """DNS rebinding: a web page whose name resolves to this machine."""
    assert client.get("/", Host="attacker.example").status == 421
    assert client.get("/", Host="localhost:1234").status == 200


def test_a_post_without_the_token_is_rejected(client):
    client.get("/")
    assert client.send("POST", "/preferences", {"theme": "dark"}).status == 403
    assert client.send("POST", "/preferences", {"theme": "dark", "csrf": "x"}).status == 403


def test_a_post_with_the_token_of_another_session_is_rejected(served, client):
    token = re.search(r'name="csrf" value="([^"]+)"', client.get("/preferences").text).group(1)
    other = served.client()
    other.get("/")
    assert other.send("POST", "/preferences", {"csrf": token}).status == 403


@pytest.mark.parametrize("headers", [
    {"Origin": "https://attacker.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"}])
def test_a_post_that_another_site_caused_is_rejected(client, headers):
    response = client.post("/preferences", {"theme": "dark"}, **headers)
    assert (response.status, "pylog-theme" in client.cookies) == (403, False)


def test_a_post_from_this_origin_is_accepted(served, client):
    assert client.post("/preferences", {"theme": "dark"}, Origin=served.url,
                       **{"Sec-Fetch-Site": "same-origin"}).status == 303
    assert 'data-theme="dark"' in client.get("/").text


def test_the_session_cookie_is_for_this_host_and_not_for_scripts(client):
    line, = client.get("/").set_cookies
    assert line.startswith("pylog=")
    for part in ("HttpOnly", "Path=/", "SameSite=strict"):
        assert part in line
    assert "Domain" not in line


def test_unknown_pages_and_methods_have_error_pages(client):
    response = client.get("/no/%3Cscript%3Ealert(1)%3C/script%3E")
    assert response.status == 404 and "<script>alert" not in response.text
    assert client.send("PUT", "/").status == 405


def test_a_long_body_is_rejected_before_it_is_read(client):
    response = client.send("POST", "/preferences", headers={"Content-Length": str(1 << 21)})
    assert response.status == 413


def test_a_cluster_that_cannot_be_reached_has_an_error_page():
    dead = {"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": 2000}
    with Served({"dead": dead}) as served:
        response = served.client().get("/")
    assert response.status == 502
    assert "could not answer" in response.text and "127.0.0.1:1" in response.text


def test_two_clusters_have_paths_of_their_own(broker):
    settings = {"bootstrap.servers": broker.bootstrap}
    with Served({"one": settings, "two": settings}) as served:
        client = served.client()
        assert client.get("/c/one").status == client.get("/c/two").status == 200
        assert "Cluster two" in client.get("/c/two").text
        assert client.get("/c/three").status == 404
        assert "/c/one" in client.get("/clusters").text


def test_a_cluster_of_brokerd_is_recognised(served, client):
    client.get("/")
    assert {one.is_brokerd for session in served.console.sessions._sessions.values()
            for one in session.clusters.values()} == {True}


def test_clients_without_cookies_end_no_session_of_others(served):
    kept = served.client()
    kept.get("/about")
    assert kept.get("/about").status == 200
    session = kept.cookies["pylog"]
    for _ in range(SESSIONS_WITHOUT_COOKIE_MAX + 5):
        served.client().get("/about")
    kept.get("/about")
    assert kept.cookies["pylog"] == session
