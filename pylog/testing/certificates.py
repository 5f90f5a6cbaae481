"""Test certificates: a CA that issues and revokes them.

Owns: nothing; keys live as long as the objects.
Invariants: for tests only, because keys are chosen for speed.
Source: RFC 5280, with the library `cryptography`, which only this module needs.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass

from pylog.client.errors import MissingExtraError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import pkcs12
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError as _missing:
    raise MissingExtraError("TLS in pylog.testing", "cryptography", "test") from _missing

DAY = datetime.timedelta(days=1)
HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Certificate:
    """A certificate with its key, in PEM. chain: the certificate first, then its issuers."""

    chain: bytes
    key: bytes
    serial: int

    def pkcs12(self, password: str) -> bytes:
        """Return both in PKCS12 format."""
        key = serialization.load_pem_private_key(self.key, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        own, *others = x509.load_pem_x509_certificates(self.chain)
        return pkcs12.serialize_key_and_certificates(
            b"key", key, own, others or None,
            serialization.BestAvailableEncryption(password.encode()))

    def locked_key(self, password: str) -> bytes:
        """Return the key in encrypted PEM."""
        return serialization.load_pem_private_key(self.key, None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode()))


class Authority:
    """A certificate authority. Clients trust it through `pem`."""

    def __init__(self, name: str = "test authority"):
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        public = self._key.public_key()
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder().subject_name(self._name).issuer_name(self._name)
            .public_key(public).serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY).not_valid_after(now + 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .sign(self._key, hashes.SHA256()))
        self.pem = made.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str | x509.Name = "localhost", hosts: Iterable[str] = HOSTS, *,
              days: float = 10) -> Certificate:
        """Issue a certificate for servers and clients.

        name: its common name, or an x509.Name. days: until it expires; negative if already expired.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        subject = name if isinstance(name, x509.Name) else \
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder().subject_name(subject).issuer_name(self._name)
            .public_key(key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now - 20 * DAY).not_valid_after(now + days * DAY)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(
                self._key.public_key()), critical=False))
        names = [_general_name(host) for host in hosts]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        return Certificate(
            made.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                              serialization.NoEncryption()), made.serial_number)

    def trust_store(self, password: str) -> bytes:
        """Return a PKCS12 truststore with this CA, in keytool's format."""
        return pkcs12.serialize_java_truststore(
            [pkcs12.PKCS12Certificate(x509.load_pem_x509_certificate(self.pem), b"ca")],
            serialization.BestAvailableEncryption(password.encode()))

    def revoke(self, certificates: Iterable[Certificate]) -> bytes:
        """Return a revocation list for the certificates, in PEM."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (x509.CertificateRevocationListBuilder().issuer_name(self._name)
                   .last_update(now - DAY).next_update(now + 10 * DAY))
        for certificate in certificates:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder().serial_number(certificate.serial)
                .revocation_date(now - DAY).build())
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def write(directory: str | os.PathLike[str], name: str, data: bytes) -> str:
    """Write a file that only its owner can read; return the path."""
    path = os.path.join(directory, name)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
    return path


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=not signs,
        data_encipherment=False, key_agreement=False, key_cert_sign=signs, crl_sign=signs,
        encipher_only=False, decipher_only=False)
