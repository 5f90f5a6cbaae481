"""Encrypts sensitive dynamic settings in the metadata.

Owns: the keys derived so far.
Invariants: an encrypted text can be decrypted only as the setting that it was encrypted for; no
  error text contains a secret or a value.
Source: AES-GCM (NIST SP 800-38D), scrypt (RFC 7914); Kafka 3's PasswordEncoder, for the settings.
"""

import os

from . import dynamic
from .errors import ConfigError

SECRET, OLD_SECRET, SECRET_FILE = (
    "password.encoder.secret", "password.encoder.old.secret", "password.encoder.secret.file")
PREFIX = "pylog:sealed:1:"
SALT_BYTES, NONCE_BYTES, KEY_BYTES = 16, 12, 32
# 16 MiB and about 40 ms per salt. An encrypting process creates one salt.
SCRYPT = {"n": 2**14, "r": 8, "p": 1}
KEYS_MAX = 64
MISSING = f"{SECRET} needs cryptography: pip install 'pylog-broker[secrets]'"


def is_sensitive(name: str) -> bool:
    """Return True if a broker setting's value must be hidden: passwords, and settings of unknown
    type.
    """
    setting = dynamic.setting(name)
    return setting is None or setting.type == "password"


def is_sealed(text: str) -> bool:
    return text.startswith(PREFIX)


class PasswordEncoder:
    """secret: None disables encryption. old: the previous secret, for decryption only."""

    def __init__(self, secret: str | None, old: str | None):
        self._secrets = [given for given in (secret, old) if given]
        self._seals = bool(secret)
        self._salt = b""
        self._keys: dict[tuple[str, bytes], bytes] = {}

    def sealed(self, name: str, text: str) -> str:
        """Return the stored form of a setting's text. Raises ConfigError."""
        if not self._seals or not is_sensitive(name):
            return text
        self._salt = self._salt or os.urandom(SALT_BYTES)
        nonce = os.urandom(NONCE_BYTES)
        from base64 import b64encode

        # The name is authenticated, so that the text cannot be used for another setting.
        data = self._cipher(self._secrets[0], self._salt).encrypt(
            nonce, text.encode(), name.encode())
        return PREFIX + b64encode(self._salt + nonce + data).decode()

    def opened(self, name: str, stored: str) -> str:
        """Return the text of a stored setting. Raises ConfigError."""
        if not is_sealed(stored):
            return stored
        for secret in self._secrets:
            found = self._opened_by(secret, name, stored)
            if found is not None:
                return found
        why = "does not decrypt it" if self._secrets else "is not set"
        raise ConfigError(f"{name} is encrypted, and {SECRET} {why}")

    def is_current(self, name: str, stored: str) -> bool:
        """Return True if the stored form needs no new encryption. Raises ConfigError."""
        if not self._seals or not is_sensitive(name):
            return True
        return is_sealed(stored) and self._opened_by(self._secrets[0], name, stored) is not None

    def _opened_by(self, secret: str, name: str, stored: str) -> str | None:
        # Imported here, as hashlib below, because few brokers have encrypted settings.
        from base64 import b64decode

        try:
            data = b64decode(stored[len(PREFIX):], validate=True)
        except ValueError:
            return None
        salt, nonce = data[:SALT_BYTES], data[SALT_BYTES:SALT_BYTES + NONCE_BYTES]
        if len(nonce) < NONCE_BYTES:
            return None
        cipher = self._cipher(secret, salt)
        from cryptography.exceptions import InvalidTag

        try:
            text: str = cipher.decrypt(
                nonce, data[SALT_BYTES + NONCE_BYTES:], name.encode()).decode()
        except InvalidTag:
            return None
        # Reuse the salt to encrypt, which saves the derivation of another key.
        self._salt = self._salt or (salt if secret == self._secrets[0] else b"")
        return text

    def _cipher(self, secret: str, salt: bytes):
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise ConfigError(f"{MISSING} ({error})") from error
        key = self._keys.get((secret, salt))
        if key is None:
            from hashlib import scrypt

            if len(self._keys) >= KEYS_MAX:
                self._keys.clear()
            key = self._keys[secret, salt] = scrypt(
                secret.encode(), salt=salt, dklen=KEY_BYTES, **SCRYPT)
        return AESGCM(key)


def with_file(texts: dict, origins: dict) -> None:
    """Read SECRET from the file SECRET_FILE. Raises ConfigError."""
    path = texts.get(SECRET_FILE)
    if not path:
        return
    if SECRET in texts:
        raise ConfigError(f"{SECRET} and {SECRET_FILE} exclude each other")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        # A decoding error would show the text.
        reason = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
        raise ConfigError(f"{SECRET_FILE}={path}: {reason}") from None
    if not text:
        raise ConfigError(f"{SECRET_FILE}={path}: the file is empty")
    texts[SECRET], origins[SECRET] = text, path
