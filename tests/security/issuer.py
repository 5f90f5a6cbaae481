"""A token issuer: published keys, and tokens signed with them."""

import base64
import http.server
import json
import socket
import ssl
import threading
import time
from contextlib import contextmanager
from urllib.parse import parse_qs

from joserfc import errors, jwk, jws, jwt

# Custom headers are allowed.
ASSERTIONS = jws.JWSRegistry(algorithms=["RS256", "ES256"], strict_check_header=False)


class Issuer:
    """keys: the published (kid -> key)."""

    def __init__(self, name="https://issuer.test", kind="RS256"):
        self.name = name
        self.kind = kind
        self.keys = {}
        self.new_key("first")

    def new_key(self, kid):
        made = jwk.RSAKey.generate_key(2048, {"kid": kid}) if self.kind[0] in "RP" \
            else jwk.ECKey.generate_key("P-256", {"kid": kid})
        self.keys[kid] = made
        return made

    @property
    def published(self) -> str:
        return json.dumps({"keys": [key.as_dict(private=False) for key in self.keys.values()]})

    def token(self, name="alice", lasts_s=3600, kid=None, header=None, **claims):
        """Return a signed token; a claim of None is omitted."""
        kid = kid or list(self.keys)[-1]
        now = int(time.time())
        found = {"sub": name, "iss": self.name, "iat": now, "exp": now + lasts_s, **claims}
        return jwt.encode({"alg": self.kind, "kid": kid, **(header or {})},
                          {key: value for key, value in found.items() if value is not None},
                          self.keys[kid], algorithms=[self.kind])


def unsigned(claims, header=None) -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": "none", **(header or {})}, claims)]
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), ""])


def claims_of(token) -> dict:
    return json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))


def _known(header, clients):
    """Return the client authenticated by its secret."""
    name, _, secret = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
    return name if clients.get(name) == secret else None


def _asserted(body, clients, taken):
    """RFC 7523: return the client that authenticates with an assertion, or the subject of a grant.
    """
    is_grant = body["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    [text] = body["assertion" if is_grant else "client_assertion"]
    claims = claims_of(text)
    try:
        found = jwt.decode(text, clients.get(claims["iss"]), registry=ASSERTIONS)
    except (errors.JoseError, TypeError, ValueError):
        return None
    taken.append((found.header, found.claims))
    return claims["sub" if is_grant else "iss"]


# Responses that an issuer never sends, but a proxy in front of it may.
NO_ANSWERS = {
    "no HTTP": b"busy\r\n\r\n",
    "cut short": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{",
    "nested": b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000}


@contextmanager
def answered(data):
    """Yield the URL of a server that responds with these bytes."""
    def answer():
        with server.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=answer)
        answering.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        answering.join()


@contextmanager
def served(issuer, clients=None, lasts_s=3600, tls=None):
    """Yield an HTTP server at `.url` with /keys and /token; its requests are in `.asked`, their
    assertions as (header, claims) in `.asserted`. clients: id -> secret, or the key that verifies
    their assertions. tls: a PEM file with a key and its certificate.
    """
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self._answer(200, issuer.published)

        def do_POST(self):
            body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            server.asked.append(body)
            name = _asserted(body, clients or {}, server.asserted) \
                if {"assertion", "client_assertion"} & body.keys() \
                else _known(self.headers.get("Authorization", ""), clients or {})
            if name is None:
                self._answer(401, '{"error": "invalid_client"}')
                return
            self._answer(200, json.dumps({
                "access_token": issuer.token(
                    name, lasts_s, scope=" ".join(body.get("scope", ["kafka"]))),
                "token_type": "Bearer", "expires_in": lasts_s}))

        def _answer(self, status, text):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked, server.asserted = [], []
    server.url = f"http://127.0.0.1:{server.server_port}"
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.url = f"https://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
