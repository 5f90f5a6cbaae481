"""Loads keys and certificates as Kafka's settings configure them: PEM, PKCS12 or JKS, in files or
inline in the settings.

Owns: nothing.
Invariants: the output is always PEM; no exception contains a secret; for a PKCS12 or JKS file, the
  content decides the format, because Java accepts either.
Source: KIP-651 (PEM), Kafka's DefaultSslEngineFactory; checks and error texts as observed.
"""

from __future__ import annotations

import base64
import os
import re
from collections import namedtuple

from pylog.config import ConfigError
from pylog.security.tls import jks

FILE_BYTES_MAX = 16 << 20
PEM = "PEM"
TYPES = ("JKS", "PKCS12", PEM)
# All settings that own() and trusted() read.
SETTINGS = ("ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.password",
            "ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.key.password",
            "ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.password",
            "ssl.truststore.certificates")

_BLOCK = re.compile(r"-+BEGIN ([A-Z0-9 ]+)-+(.*?)-+END \1-+", re.DOTALL)

_CERTIFICATE = re.compile(b"-+BEGIN CERTIFICATE-+(.*?)-+END CERTIFICATE-+", re.DOTALL)
# Validity in a certificate's DER: two times, with a year of two or four digits.
_VALIDITY = re.compile(rb"\x30[\x1e\x20\x22](?:\x17\x0d|\x18\x0f)\d{12,14}Z"
                       rb"(?:\x17\x0d|\x18\x0f)(\d{12,14})Z")

Own = namedtuple("Own", ("chain", "key", "key_password"))
Own.__doc__ = "A certificate with its key, PEM; key_password: bytes or None."

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Get = Callable[[str], Any]


def own(get: Get) -> Own | None:
    """Return the certificate of `ssl.keystore.*`, None if not configured. Raises ConfigError."""
    location, inline = get("ssl.keystore.location"), get("ssl.keystore.key")
    chain, kind = get("ssl.keystore.certificate.chain"), _kind(get, "ssl.keystore.type")
    password = get("ssl.key.password")
    if kind != PEM:
        if inline or chain:
            raise ConfigError("SSL private key and certificate chain can be specified only for PEM "
                              "format. ssl.keystore.type is " + kind)
        return None if not location else _own_of_store(
            location, _read(location), get("ssl.keystore.password"), password)
    secret = password.encode() if password else None
    if inline:
        if location:
            raise ConfigError("Both SSL key store location and separate private key are specified.")
        if not chain:
            raise ConfigError("SSL private key is specified, but certificate chain is not "
                              "specified.")
        return Own(_pem(chain, "ssl.keystore.certificate.chain"),
                   _pem(inline, "ssl.keystore.key"), secret)
    if chain:
        raise ConfigError("SSL certificate chain is specified, but private key is not specified")
    if not location:
        return None
    if get("ssl.keystore.password"):
        raise ConfigError("SSL key store password cannot be specified with PEM format, only key "
                          "password may be specified.")
    text = _pem(_read(location), location)
    return Own(text, text, secret)


def own_chain(get: Get) -> bytes:
    """Return the chain of own() as PEM, empty if there is none or it cannot be read any more."""
    try:
        found = own(get)
    except ConfigError:
        return b""
    return b"" if found is None else found.chain


def trusted(get: Get) -> bytes | None:
    """Return the certificates of `ssl.truststore.*` as PEM, None if not configured. Raises
    ConfigError.
    """
    location, inline = get("ssl.truststore.location"), get("ssl.truststore.certificates")
    kind, password = _kind(get, "ssl.truststore.type"), get("ssl.truststore.password")
    if kind == PEM and inline:
        if location:
            raise ConfigError("Both SSL trust store location and separate trust certificates are "
                              "specified.")
        return _pem(inline, "ssl.truststore.certificates")
    if inline:
        raise ConfigError("SSL trust store certs can be specified only for PEM format. "
                          "ssl.truststore.type is " + kind)
    if not location:
        return None
    data = _read(location)
    if kind == PEM:
        if password:
            raise ConfigError("SSL trust store password cannot be specified for PEM format.")
        return _pem(data, location)
    found = _store(location, data, password, None)[2]
    if not found:
        raise ConfigError(f"{location}: there are no trusted certificates in it")
    return found


def files(get: Get) -> list[str]:
    """Return the files that own() and trusted() read."""
    return [path for name in ("ssl.keystore.location", "ssl.truststore.location")
            if (path := get(name))]


def state(get: Get) -> tuple:
    """Return a value that changes when a setting or file changes."""
    return tuple(get(name) for name in SETTINGS), stamp(files(get))


def stamp(paths: list[str]) -> tuple:
    """Return a value that changes when a file changes."""
    return tuple(_stamp_of(path) for path in paths)


def pem_file(path: str) -> bytes:
    """Read a PEM file. Raises ConfigError."""
    return _pem(_read(path), path)


def _stamp_of(path: str) -> tuple:
    try:
        found = os.stat(path)
    except OSError as error:
        return path, error.errno
    return path, found.st_mtime_ns, found.st_size, found.st_ino


def _kind(get: Get, name: str) -> str:
    kind = str(get(name)).upper()
    if kind not in TYPES:
        raise ConfigError(f"{name}={kind}: expected one of {', '.join(TYPES)}")
    return kind


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: it is too large for a key store")
    return data


def _pem(text: str | bytes, where: str) -> bytes:
    """Return the PEM blocks with the line breaks that OpenSSL requires. Kafka's settings may
    contain a block in one line.
    """
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    blocks = []
    for kind, body in _BLOCK.findall(text):
        if ":" in body:
            blocks.append(f"-----BEGIN {kind}-----{body}-----END {kind}-----\n")
            continue
        packed = "".join(body.split())
        lines = "\n".join(packed[at:at + 64] for at in range(0, len(packed), 64))
        blocks.append(f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n")
    if not blocks:
        raise ConfigError(f"{where}: there is no PEM text in it")
    return "".join(blocks).encode("latin-1")


def _own_of_store(location: str, data: bytes, password, key_password) -> Own:
    key, chain, _ = _store(location, data, password, key_password)
    if key is None:
        raise ConfigError(f"{location}: there is no private key in it")
    return Own(chain, key, None)


def _store(location: str, data: bytes, password: str | None, key_password: str | None):
    """Return (key, chain, trusted certificates) as PEM or None. The content decides the format."""
    if jks.is_jks(data):
        try:
            key, chain, others = jks.read(data, password, key_password)
        except jks.JksError as error:
            raise ConfigError(f"{location}: {error}") from None
        return (None if key is None else _of_der("PRIVATE KEY", [key]),
                _of_der("CERTIFICATE", chain), _of_der("CERTIFICATE", others))
    if _BLOCK.search(data[:FILE_BYTES_MAX].decode("latin-1")):
        raise ConfigError(f"{location}: it is PEM text, but its type is not set to {PEM}")
    # Imported here because it loads OpenSSL.
    from pylog._native.server.tls import TlsError, open_pkcs12

    try:
        return open_pkcs12(data, (password or "").encode())
    except TlsError as error:
        raise ConfigError(f"{location}: {error}") from None


def _of_der(kind: str, parts: list[bytes]) -> bytes | None:
    texts = [f"-----BEGIN {kind}-----{base64.b64encode(part).decode()}-----END {kind}-----"
             for part in parts]
    return _pem("\n".join(texts), kind) if texts else None


def chain_expiry(chain: bytes) -> str:
    """Return the expiry date of the first certificate in a PEM text, "" if it cannot be determined.
    """
    found = _CERTIFICATE.search(chain)
    try:
        return "" if found is None else expiry(base64.b64decode(found[1]))
    except ValueError:
        return ""


def expiry(certificate: bytes) -> str:
    """Return the expiry date of a certificate in DER, "" if it cannot be determined."""
    found = _VALIDITY.search(certificate)
    if found is None:
        return ""
    digits = found[1].decode()
    if len(digits) == 12:
        # RFC 5280: two digits mean 1950 to 2049.
        digits = ("19" if digits >= "50" else "20") + digits
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:8]}"
