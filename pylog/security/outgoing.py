"""TLS towards a broker: the context of outgoing connections, and what went wrong in words.

Owns: nothing.
Called by: client.login, client.connection, peer.credentials, peer.accounts, peer.connection,
  peer.dial, security.sasl.
Invariants: (1) who is at the other end is checked, unless a setting says otherwise; (2) a text
  names the cause and the setting that mends it, and no secret.
Source: KIP-651, KIP-294 (names are checked); Python's ssl module.
"""

from __future__ import annotations

import os
import ssl

from pylog.security import stores

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

OWN_EXPIRED = "the client's certificate has expired"
STORES = {"ssl.truststore.type": "JKS", "ssl.keystore.type": "JKS"}
_ISSUERS = ("local issuer certificate", "self-signed certificate", "self signed certificate",
            "unable to get issuer")


def towards_issuer(options: dict[str, str]) -> ssl.SSLContext | None:
    """For connections to an issuer of tokens, None for the machine's trust. options: of a login
    module, where Kafka has the stores. Raises ConfigError."""
    given = {name: value for name, value in options.items() if name.startswith("ssl.")}
    return context(lambda name: given.get(name, STORES.get(name))) if given else None


def context(get: Callable[[str], Any]) -> ssl.SSLContext:
    """For connections to brokers. get: a setting by Kafka's name. Raises ConfigError."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = get("ssl.endpoint.identification.algorithm") != ""   # Keeps (1).
    trusted = stores.trusted(get)
    if trusted is None:
        made.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        made.load_verify_locations(cadata=trusted.decode("latin-1"))
        # As in Java, whatever is trusted ends a chain.
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    own = stores.own(get)
    if own is not None:
        _load(made, own)
    return made


def _load(made: ssl.SSLContext, own: stores.Own) -> None:
    # The module takes files only: one in memory, that nobody else can open.
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(own.chain if own.key in own.chain else own.chain + own.key)
        made.load_cert_chain(f"/proc/self/fd/{descriptor}", password=own.key_password or b"")
    except ssl.SSLError as error:
        raise stores.ConfigError(
            f"the client's certificate cannot be used: {error.reason or error}") from None
    finally:
        os.close(descriptor)


def is_tls(failure: BaseException) -> bool:
    """Whether a connection failed by TLS rather than on its way."""
    return isinstance(failure, (ssl.SSLError, ConnectionResetError))


def explained(failure: BaseException) -> str:
    """What a failed connection says to who has to mend it. Keeps (2)."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        return _distrusted(failure.verify_message)
    if isinstance(failure, (ssl.SSLEOFError, ConnectionError)):
        return explained_text("closed the connection")
    return explained_text(str(getattr(failure, "reason", None) or failure))


def explained_text(reason: str) -> str:
    """As explained(), of OpenSSL's words for it."""
    text = reason.replace("_", " ").lower()
    if any(words in text for words in ("wrong version number", "record layer failure",
                                       "plain text on a tls port")):
        return "the other side does not speak TLS on this port: is security.protocol right?"
    if "certificate required" in text or "handshake failure" in text:
        return "the broker wants a client's certificate: set ssl.keystore.location"
    if "unknown ca" in text or "bad certificate" in text or "certificate unknown" in text:
        return "the broker does not trust the client's certificate"
    if "certificate expired" in text:
        return OWN_EXPIRED
    if "certificate revoked" in text:
        return "the client's certificate was revoked"
    if "closed the connection" in text or "connection reset" in text:
        return "the other side ended the connection in the TLS handshake: does it speak TLS here?"
    if any(words in text for words in (*_ISSUERS, "mismatch", "certificate has expired")):
        return _distrusted(reason)
    return f"TLS failed: {text}"


def _distrusted(message: str) -> str:
    if "mismatch" in message:
        return ("the broker's certificate is for another name: "
                f"{message.rstrip('.')} (ssl.endpoint.identification.algorithm)")
    if any(words in message for words in _ISSUERS):
        return ("the broker's certificate is from an authority that is not trusted: "
                f"{message} (ssl.truststore.location)")
    return f"the broker's certificate is not good: {message}"
