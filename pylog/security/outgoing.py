"""TLS towards a broker: the context of outgoing connections, and what went wrong in words.

Owns: nothing.
Invariants: (1) who is at the other end is checked, unless a setting says otherwise; (2) a text
  names the cause and the setting that mends it, and no secret.
Source: KIP-651, KIP-294 (names are checked); Python's ssl module.
"""

from __future__ import annotations

import asyncio
import os
import ssl

from pylog.security import stores

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


async def distrusted(failure: BaseException, host: str, port: int,
                     own_chain: Callable[[], bytes]) -> str:
    """As refused(); of the other side's expired certificate with its day too, for which it is
    looked at again."""
    text = refused(failure, own_chain)
    if "expired" in text and isinstance(failure, ssl.SSLCertVerificationError):
        return _with(stores.expiry(await _certificate(host, port)), text)
    return text


def refused(failure: BaseException, own_chain: Callable[[], bytes]) -> str:
    """As explained(); of an expired certificate of one's own with its day. own_chain: what is
    shown, as PEM."""
    return _with_own(explained(failure), own_chain)


def refused_text(reason: str, own_chain: Callable[[], bytes]) -> str:
    """As refused(), of OpenSSL's words for it."""
    return _with_own(_explained_text(reason), own_chain)


def _with_own(text: str, own_chain: Callable[[], bytes]) -> str:
    return _with(stores.chain_expiry(own_chain()), text) if text == OWN_EXPIRED else text


def _with(day: str, text: str) -> str:
    return f"{text}, on {day}" if day else text


async def _certificate(host: str, port: int) -> bytes:
    """A broker's certificate, unchecked, in DER; empty when it cannot be had."""
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
    """What a failed connection says to who has to mend it. Keeps (2)."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        return _distrusted(failure.verify_message)
    if isinstance(failure, (ssl.SSLEOFError, ConnectionError)):
        return _explained_text("closed the connection")
    return _explained_text(str(getattr(failure, "reason", None) or failure))


def _explained_text(reason: str) -> str:
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
