"""Selects how an account's tokens are obtained, by Kafka's settings: from a file, or from an issuer
with a client secret, a client assertion, or an assertion as grant.

Owns: nothing.
Invariants: incomplete or contradictory settings are rejected before a token is requested.
Source: Kafka's DefaultJwtRetriever, ClientCredentialsJwtRetriever, JwtBearerJwtRetriever and
  FileJwtRetriever (KIP-768, KIP-1139): which settings select which retriever.
"""

from __future__ import annotations

from collections import namedtuple
from functools import partial
from urllib.parse import unquote, urlsplit

from pylog.config.errors import ConfigError
from pylog.security.oauth import client_assertions, token_source

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from typing import Any

ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
SECRET = "sasl.oauthbearer.client.credentials.client.secret"
RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"
RETRIEVERS = ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "JwtBearerJwtRetriever",
              "FileJwtRetriever")
_, CREDENTIALS, GRANT, FILE = RETRIEVERS

Retrieval = namedtuple("Retrieval", ("name", "get"))
Retrieval.__doc__ = """name: the client that gets the tokens. get: returns a new token; blocks, and
raises AuthenticationFailed."""


def of(get: Callable[[str], Any], options: dict[str, str], clock: Callable[[], float],
       tls: ssl.SSLContext | None) -> Retrieval:
    """Return the Retrieval. get: returns a setting by Kafka's name. options: of a login module;
    used where settings are missing. clock: returns Unix time in seconds. tls: for https; None: the
    system's trust store. Raises ConfigError.
    """
    url, kind = get(ENDPOINT), (get(RETRIEVER) or RETRIEVERS[0]).rpartition(".")[2]
    if kind not in RETRIEVERS:
        raise ConfigError(f"{RETRIEVER}={kind}: expected one of {', '.join(RETRIEVERS)}")
    if url is None:
        raise ConfigError(f"{ENDPOINT} is not set: it is the URL that issues tokens")
    scheme = urlsplit(url).scheme
    if scheme == "file" and kind in (RETRIEVERS[0], FILE):
        path = unquote(urlsplit(url).path)
        return Retrieval(path, partial(token_source.read, path))
    if kind == FILE or scheme not in ("http", "https"):
        wanted = "file:///path" if kind == FILE else "https://… or http://…"
        wanted += ", or file:///path" if kind == RETRIEVERS[0] else ""
        raise ConfigError(f"{ENDPOINT}={url}: expected {wanted}")
    return _token_request(kind, url, get, options, clock, tls)


def _token_request(kind: str, url: str, get: Callable[[str], Any], options: dict[str, str],
           clock: Callable[[], float], tls: ssl.SSLContext | None) -> Retrieval:
    client = get(CLIENT_ID) or options.get("clientId")
    secret, proof = get(SECRET) or options.get("clientSecret"), None
    if kind == GRANT or get(client_assertions.FILE) or get(client_assertions.ISSUER):
        _check_assertion(get)
        proof, secret = partial(client_assertions.made, get, clock), None
    elif not client or not secret:
        missing = [name for name, value in ((CLIENT_ID, client), (SECRET, secret)) if not value]
        raise ConfigError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set, nor "
            f"{client_assertions.FILE}, nor {client_assertions.ISSUER} with "
            f"{client_assertions.KEY}")
    name = client or get(client_assertions.CLAIMS["sub"]) or get(client_assertions.ISSUER) \
        or "its assertion"
    return Retrieval(name, partial(token_source.request_token, token_source.Endpoint(
        url, client, secret, get("sasl.oauthbearer.scope") or options.get("scope"), tls,
        proof, kind == GRANT), clock))


def _check_assertion(get: Callable[[str], Any]) -> None:
    if not get(client_assertions.FILE) and not get(client_assertions.KEY):
        raise ConfigError(f"neither {client_assertions.KEY} nor {client_assertions.FILE} is set: "
                          "set the key that signs assertions, or the file that contains one")
