"""An issuer of tokens: keys that it publishes, and tokens signed with them."""

import base64
import http.server
import json
import threading
import time
from contextlib import contextmanager
from urllib.parse import parse_qs

from joserfc import jwk, jwt


class Issuer:
    """keys: (kid -> key) of those that are published."""

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
        """A signed token; a claim of None is left out."""
        kid = kid or list(self.keys)[-1]
        now = int(time.time())
        found = {"sub": name, "iss": self.name, "iat": now, "exp": now + lasts_s, **claims}
        return jwt.encode({"alg": self.kind, "kid": kid, **(header or {})},
                          {key: value for key, value in found.items() if value is not None},
                          self.keys[kid], algorithms=[self.kind])


def unsigned(claims, header=None) -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": "none", **(header or {})}, claims)]
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), ""])


@contextmanager
def served(issuer, clients=None, lasts_s=3600):
    """Yields the address of an HTTP server with /keys and /token; what it was asked is in
    `.asked`. clients: id -> secret."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self._answer(200, issuer.published)

        def do_POST(self):
            body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            server.asked.append(body)
            given = self.headers.get("Authorization", "").removeprefix("Basic ")
            name, _, secret = base64.b64decode(given).decode().partition(":")
            if (clients or {}).get(name) != secret:
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
    server.asked = []
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
