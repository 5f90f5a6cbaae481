"""Login by a header of a trusted proxy."""

import json

import pytest

from pylog.config import Settings
from pylog.config.console_access import auth
from pylog.config.errors import ConfigError
from tests.console.served import Served

USER = "X-Forwarded-User"
GIVEN = {"console.listener": "127.0.0.1:0", "console.auth": "proxy",
         "console.proxy.principal.header": USER, "console.proxy.addresses": "127.0.0.1,10.0.0.0/24"}


@pytest.fixture(scope="module")
def served(broker, tmp_path_factory):
    path = tmp_path_factory.mktemp("proxy") / "permissions.toml"
    path.write_text('browse = ["*"]\nadminister = ["User:ann"]\n')
    with Served({"test": {"bootstrap.servers": broker.bootstrap}}, **{
            **GIVEN, "console.permissions.file": path,
            "console.url": "https://console.example.org"}) as one:
        yield one


def test_the_header_of_the_proxy_names_the_user(served, client):
    assert client.get("/topics", **{USER: "ann"}).status == 200
    first = client.cookies["__Host-pylog"]
    assert "Log out ann" in client.get("/topics", **{USER: "ann"}).text
    assert client.cookies["__Host-pylog"] == first
    assert "Log out bob" in client.get("/topics", **{USER: "bob"}).text
    assert client.cookies["__Host-pylog"] != first


def test_permissions_and_audit_lines_use_the_name(served, client):
    assert client.get("/topics/new", **{USER: "bob"}).status == 403
    assert client.get("/topics/new", **{USER: "ann"}).status == 200
    token = client.get("/topics/new", **{USER: "ann"}).text.partition('name="csrf" value="')[2]
    sent = client.send("POST", "/topics/new", {"csrf": token.partition('"')[0], "name": "by-ann"}, {
        USER: "ann", "X-Forwarded-For": "1.1.1.1, 10.9.8.7",
        "Origin": "https://console.example.org"})
    assert sent.status == 303
    line = served.console.audit.lines[-1]
    assert (line["principal"], line["host"]) == ("User:ann", "10.9.8.7")
    assert "by-ann" in [row["topic"] for row in json.loads(
        client.get("/topics?format=json", **{USER: "ann"}).text)["rows"]]


def test_requests_without_the_name_are_rejected(client):
    assert client.get("/topics").status == 401
    assert client.get("/topics", **{USER: " "}).status == 401
    assert client.get("/healthz").status == 200


def test_other_addresses_than_the_proxys_are_rejected(broker):
    with Served({"test": {"bootstrap.servers": broker.bootstrap}}, **{
            **GIVEN, "console.proxy.addresses": "10.0.0.0/24"}) as served:
        page = served.client().get("/topics", **{USER: "ann"})
        assert page.status == 403 and "proxy only" in page.text


@pytest.mark.parametrize(("changes", "reason"), [
    ({"console.proxy.addresses": ""}, "console.proxy.addresses"),
    ({"console.proxy.principal.header": ""}, "console.proxy.principal.header"),
    ({"console.proxy.addresses": "0.0.0.0/0"}, "trusts every address"),
    ({"console.proxy.addresses": "::/0"}, "trusts every address"),
    ({"console.proxy.addresses": "proxy.example.org"}, "expected an address"),
    ({"console.listener": "0.0.0.0:8080"}, "everyone reaches")])
def test_settings_that_would_trust_everyone_are_rejected(changes, reason):
    with pytest.raises(ConfigError, match=reason):
        auth(Settings({**GIVEN, **changes}), False)


def test_a_console_behind_a_proxy_needs_its_own_user_of_the_cluster():
    with pytest.raises(ConfigError, match="own user"):
        auth(Settings(GIVEN), True)
