"""TLS of outgoing connections: the context, and explanations of failures.

Owns: nothing.
Invariants: the server's certificate and name are verified unless a setting disables it; an
  explanation contains the cause and the setting to change, and no secret.
Source: KIP-651, KIP-294 (host name verification); Python's ssl module.
"""

from __future__ import annotations

import asyncio
import os
import ssl

from pylog.security.tls import key_stores

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

OWN_EXPIRED = "the client's certificate has expired"
CERTIFICATE_SECONDS = 5.0
STORES = {"ssl.truststore.type": "JKS", "ssl.keystore.type": "JKS"}
_ISSUERS = ("local issuer certificate", "self-signed certificate", "self signed certificate",
            "unable to get issuer")


def towards_issuer(options: dict[str, str]) -> ssl.SSLContext | None:
    """Return the context for connections to a token issuer, None for the system's trust store.
    options: of a login module, where Kafka configures the stores. Raises ConfigError.
    """
    given = {name: value for name, value in options.items() if name.startswith("ssl.")}
    return context(lambda name: given.get(name, STORES.get(name))) if given else None


def context(get: Callable[[str], Any]) -> ssl.SSLContext:
    """Return the context for connections to brokers. get: returns a setting by Kafka's name. Raises
    ConfigError.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = get("ssl.endpoint.identification.algorithm") != ""
    trusted = key_stores.trusted(get)
    if trusted is None:
        made.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        made.load_verify_locations(cadata=trusted.decode("latin-1"))
        # As in Java, any trusted certificate can end a chain.
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    own = key_stores.own(get)
    if own is not None:
        _load(made, own)
    return made


def _load(made: ssl.SSLContext, own: key_stores.Own) -> None:
    # The ssl module accepts only files. An in-memory file is not readable by other users.
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(own.chain if own.key in own.chain else own.chain + own.key)
        made.load_cert_chain(f"/proc/self/fd/{descriptor}", password=own.key_password or b"")
    except ssl.SSLError as error:
        raise key_stores.ConfigError(
            f"the client's certificate cannot be used: {error.reason or error}") from None
    finally:
        os.close(descriptor)


def is_tls(failure: BaseException) -> bool:
    """Return True if TLS failed, rather than the network."""
    return isinstance(failure, (ssl.SSLError, ConnectionResetError))


async def distrusted(failure: BaseException, host: str, port: int,
                     own_chain: Callable[[], bytes]) -> str:
    """As refused(); for an expired server certificate with the expiry date, which needs another
    connection.
    """
    text = refused(failure, own_chain)
    if "expired" in text and isinstance(failure, ssl.SSLCertVerificationError):
        return _with(key_stores.expiry(await _certificate(host, port)), text)
    return text


def refused(failure: BaseException, own_chain: Callable[[], bytes]) -> str:
    """As explained(); for the client's own expired certificate with the expiry date. own_chain:
    returns the client's chain as PEM.
    """
    return _with_own(explained(failure), own_chain)


def refused_text(reason: str, own_chain: Callable[[], bytes]) -> str:
    """As refused(), from OpenSSL's error text."""
    return _with_own(_explained_text(reason), own_chain)


def _with_own(text: str, own_chain: Callable[[], bytes]) -> str:
    return _with(key_stores.chain_expiry(own_chain()), text) if text == OWN_EXPIRED else text


def _with(day: str, text: str) -> str:
    return f"{text}, on {day}" if day else text


async def _certificate(host: str, port: int) -> bytes:
    """Return a broker's certificate in DER without verification, empty if that fails."""
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(CERTIFICATE_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=unchecked)
            certificate = writer.get_extra_info("ssl_object").getpeercert(True)
            writer.close()
    except OSError:
        return b""
    return certificate or b""


def explained(failure: BaseException) -> str:
    """Explain a failed connection: the cause and the setting to change."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        return _distrusted(failure.verify_message)
    if isinstance(failure, (ssl.SSLEOFError, ConnectionError)):
        return _explained_text("closed the connection")
    return _explained_text(str(getattr(failure, "reason", None) or failure))


def _explained_text(reason: str) -> str:
    """As explained(), from OpenSSL's error text."""
    text = reason.replace("_", " ").lower()
    if any(words in text for words in ("wrong version number", "record layer failure",
                                       "plain text on a tls port")):
        return "the peer does not speak TLS on this port; check security.protocol"
    if "certificate required" in text or "handshake failure" in text:
        return "the broker requires a client certificate: set ssl.keystore.location"
    if "unknown ca" in text or "bad certificate" in text or "certificate unknown" in text:
        return "the broker does not trust the client's certificate"
    if "certificate expired" in text:
        return OWN_EXPIRED
    if "certificate revoked" in text:
        return "the client's certificate was revoked"
    if "closed the connection" in text or "connection reset" in text:
        return ("the peer closed the connection during the TLS handshake; "
                "check that this port speaks TLS")
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
    return f"the broker's certificate is not valid: {message}"
