"""A connection that exchanges message objects, and logs in with the steps that a test chooses."""

import base64
import hashlib
import hmac

from pylog.protocol import api, codec, messages
from tests.wire import raw

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class Caller(raw.Connection):
    """Sends and receives messages of pylog.protocol."""

    def ask(self, key: int, version: int, request):
        """Send a request and return the response. Raises raw.Closed."""
        self.send(codec.request_frame(key, version, 7, "caller", request))
        frame = self.receive()
        number, at = codec.decode_response_header(key, version, frame)
        assert number == 7
        return codec.decode_response(key, version, frame[at:])

    def handshake(self, mechanism: str, version: int = 1):
        return self.ask(api.SASL_HANDSHAKE, version,
                        messages.SaslHandshakeRequest(mechanism=mechanism))

    def token(self, token: bytes, version: int = 2):
        return self.ask(api.SASL_AUTHENTICATE, version,
                        messages.SaslAuthenticateRequest(auth_bytes=token))

    def plain(self, name: str, password: str):
        assert self.handshake("PLAIN").error_code == 0
        return self.token(b"\0%s\0%s" % (name.encode(), password.encode()))

    def scram(self, name: str, password: str, mechanism: str = "SCRAM-SHA-256"):
        """Return the last response."""
        assert self.handshake(mechanism).error_code == 0
        client = ScramClient(name, password, mechanism)
        answer = self.token(client.first())
        return answer if answer.error_code else self.token(client.final(answer.auth_bytes))

    def metadata(self):
        return self.ask(api.METADATA, 9, messages.MetadataRequest(topics=[]))


class ScramClient:
    """The client's side of RFC 5802, with parts that a test may override: header, nonce,
    extensions.
    """

    def __init__(self, name, password, mechanism="SCRAM-SHA-256", header="n,,", nonce="clientnonce",
                 extensions=""):
        self.hash, self.password, self.header = HASHES[mechanism], password, header
        self.nonce = nonce
        self.bare = f"n={name},r={nonce}{extensions}"

    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, server_first: bytes, **changed) -> bytes:
        text = bytes(server_first).decode()
        given = dict(part.split("=", 1) for part in text.split(","))
        binding = base64.b64encode(changed.get("binding", self.header).encode()).decode()
        without = f"c={binding},r={changed.get('nonce', given['r'])}"
        salted = hashlib.pbkdf2_hmac(self.hash, self.password.encode(),
                                     base64.b64decode(given["s"]), int(given["i"]))
        key = hmac.digest(salted, b"Client Key", self.hash)
        signed = f"{self.bare},{text},{without}".encode()
        signature = hmac.digest(hashlib.new(self.hash, key).digest(), signed, self.hash)
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
        return f"{without},p={proof.decode()}".encode()
