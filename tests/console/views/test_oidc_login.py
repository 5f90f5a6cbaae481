"""Login by OpenID Connect: the user's token reaches the cluster."""

import base64
import hashlib
import http.server
import json
import re
import threading
import time
import urllib.parse

import pytest

from pylog.client import Admin
from pylog.client.admin.types import AclBinding
from pylog.config import Settings
from pylog.config.console_access import auth
from pylog.config.errors import ConfigError
from pylog.console.oidc import PENDING_S
from pylog.testing import Broker
from tests.console.served import Served
from tests.security.issuer import Issuer

CLIENT, SECRET = "console", "console's secret"


class Provider:
    """An issuer with a login page that accepts everyone. changed: claims of the next id token."""

    def __init__(self):
        self.issuer = Issuer()
        self.codes = {}
        self.changed = {}
        self.asked = []
        self.lasts_s = 3600
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                provider.answer(self, {
                    "issuer": provider.url, "authorization_endpoint": f"{provider.url}/login",
                    "token_endpoint": f"{provider.url}/token", "jwks_uri": f"{provider.url}/keys"}
                    if self.path.startswith("/.well-known") else json.loads(
                        provider.issuer.published))

            def do_POST(self):
                body = urllib.parse.parse_qs(
                    self.rfile.read(int(self.headers["Content-Length"])).decode())
                provider.asked.append(body)
                provider.answer(self, provider.tokens(
                    {name: texts[0] for name, texts in body.items()},
                    self.headers.get("Authorization", "")))

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = self.issuer.name = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, handler, document):
        data = json.dumps(document).encode()
        handler.send_response(200 if document else 400)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def log_in(self, location, user):
        """Return the code that the login page sends back."""
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(location).query))
        assert query["client_id"] == CLIENT and query["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = user, query
        return code, query["state"]

    def tokens(self, form, authorization):
        given = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        assert urllib.parse.unquote(given) == f"{CLIENT}:{SECRET}"
        if form["grant_type"] == "refresh_token":
            user, more = form["refresh_token"].removeprefix("refresh-"), {}
        else:
            user, query = self.codes.pop(form["code"])
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            if base64.urlsafe_b64encode(digest).decode().rstrip("=") != query["code_challenge"]:
                return {}
            # The console's clock in tests is ahead.
            claims = {"sub": user, "aud": CLIENT, "nonce": query["nonce"], "exp": 2_000_000_000,
                      **self.changed}
            more = {"id_token": self.issuer.token(**{"name": user, **claims})}
        return {"access_token": self.issuer.token(user), "expires_in": self.lasts_s,
                "refresh_token": f"refresh-{user}", **more}


@pytest.fixture(scope="module")
def provider():
    one = Provider()
    yield one
    one.server.shutdown()
    one.server.server_close()


@pytest.fixture(scope="module")
def broker(provider):
    with Broker(settings={
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": f"{provider.url}/keys",
            "sasl.oauthbearer.allow.unverified.audience": "true",
            "sasl.oauthbearer.allow.unverified.issuer": "true",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:root"}) as running:
        yield running


@pytest.fixture(scope="module")
def served(broker, provider):
    with Admin(bootstrap_servers=broker.bootstrap, security_protocol="SASL_PLAINTEXT",
               sasl_mechanism="OAUTHBEARER",
               oauth_cb=lambda _: (provider.issuer.token("root"), time.time() + 3600)) as admin:
        admin.create_topics(["orders-ann", "orders-bob"])
        admin.create_acls([
            AclBinding("TOPIC", f"orders-{user}", "LITERAL", f"User:{user}", "*", "ALL", "ALLOW")
            for user in ("ann", "bob")])
    with Served({"test": {"bootstrap.servers": broker.bootstrap,
                          "security.protocol": "SASL_PLAINTEXT"}}, **settings(provider)) as one:
        yield one


def settings(provider, **changes):
    return {"console.auth": "oidc", "console.oidc.issuer": provider.url,
            "console.oidc.client.id": CLIENT, "console.oidc.client.secret": SECRET,
            "console.oidc.scopes": "openid kafka", "console.oidc.principal.claim": "sub",
            "console.url": "http://localhost:8080", **changes}


@pytest.fixture
def client(served):
    served.clock.now_s += 61
    return served.client()


def begin(client, path="/topics"):
    """Follow the links to the issuer's page; return its address."""
    login = client.get(path)
    assert login.status == 303
    page = client.get(login.headers["Location"]).text
    target = re.search(r'href="(/oidc/login[^"]*)"', page)[1].replace("&amp;", "&")
    return client.get(target).headers["Location"]


def log_in(client, provider, user, path="/topics"):
    code, state = provider.log_in(begin(client, path), user)
    return client.get(f"/oidc/callback?code={code}&state={state}")


def topics(client):
    return [row["topic"] for row in json.loads(client.get("/topics?format=json").text)["rows"]]


def test_each_user_has_the_rights_of_the_own_token(served, client, provider):
    page = log_in(client, provider, "ann")
    assert page.status == 200 and 'content="0; url=/topics"' in page.text
    assert topics(client) == ["orders-ann"]
    other = served.client()
    log_in(other, provider, "bob")
    assert topics(other) == ["orders-bob"]
    assert provider.asked[-1].keys() >= {"code_verifier", "redirect_uri"}
    assert client.post("/logout").status == 303
    assert client.get("/topics").status == 303


def test_a_code_is_accepted_once_and_only_in_the_browser_that_began(served, client, provider):
    code, state = provider.log_in(begin(client), "ann")
    target = f"/oidc/callback?code={code}&state={state}"
    assert served.client().get(target).status == 400
    cookies = dict(client.cookies)
    assert client.get(target).status == 200
    client.cookies = cookies
    assert client.get(target).status == 401


def test_a_login_that_takes_too_long_fails(served, client, provider):
    code, state = provider.log_in(begin(client), "ann")
    served.clock.now_s += PENDING_S + 1
    assert client.get(f"/oidc/callback?code={code}&state={state}").status == 401


@pytest.mark.parametrize("changed", [
    {"aud": "another"}, {"iss": "http://another"}, {"nonce": "another"}, {"exp": 1}, {"sub": None},
    {"aud": [CLIENT, "another"]}])
def test_an_id_token_for_something_else_is_rejected(client, provider, changed, monkeypatch):
    monkeypatch.setattr(provider, "changed", changed)
    page = log_in(client, provider, "ann")
    assert page.status == 401 and "pylog" not in client.cookies


def test_an_id_token_with_another_key_is_rejected(client, provider, monkeypatch):
    location = begin(client)
    code, state = provider.log_in(location, "ann")
    monkeypatch.setattr(provider, "issuer", Issuer(provider.url))
    monkeypatch.setattr(Issuer, "published", property(lambda self: '{"keys": []}'))
    assert client.get(f"/oidc/callback?code={code}&state={state}").status == 401


def test_a_refusal_of_the_issuer_is_shown(client):
    begin(client)
    state = client.cookies["pylog-oidc"]
    page = client.get(f"/oidc/callback?error=access_denied&state={state}")
    assert page.status == 401 and "access_denied" in page.text


def test_a_token_is_refreshed_before_it_expires(served, client, provider):
    log_in(client, provider, "ann")
    [session] = [one for one in served.console.sessions._sessions.values()
                 if one.id == client.cookies["pylog"]]
    first, _ = session.tokens("")
    assert session.tokens("")[0] == first
    served.clock.now_s += 3590
    assert session.tokens("")[0] != first or provider.asked[-1]["grant_type"] == ["refresh_token"]


@pytest.mark.parametrize(("missing", "named"), [
    ({"console.oidc.issuer": ""}, "console.oidc.issuer"), ({"console.url": ""}, "console.url"),
    ({"console.oidc.client.id": ""}, "console.oidc.client.id"),
    ({"console.url": "http://console.example.org"}, "https")])
def test_settings_that_are_missing_are_named(provider, missing, named):
    with pytest.raises(ConfigError, match=named):
        auth(Settings({"console.listener": "127.0.0.1:0", **settings(provider, **missing)}), True)
