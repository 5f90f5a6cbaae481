"""Ids of topics, directories, clusters and incarnations: 16 bytes, and their text form.

Owns: nothing.
Invariants: the text form of a new id does not start with '-'; a new id is none of Kafka's reserved
  ids.
Source: Kafka's Uuid.
"""

import base64
import os

# Ids that Kafka reserves, such as the zero id and the metadata topic's (KIP-516).
_RESERVED_IDS = frozenset(number.to_bytes(16, "big") for number in range(100))


def random_id(random) -> bytes:
    """Return a new 16-byte id like Kafka's: a UUID whose base64 form does not start with '-'."""
    while True:
        raw = bytearray(random.randbytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        # 62 is '-' in URL-safe base64, and a leading '-' would look like an option on a command
        # line.
        if raw[0] >> 2 != 62 and bytes(raw) not in _RESERVED_IDS:
            return bytes(raw)


def random_uuid() -> str:
    """Return a new random UUID as text (RFC 9562, version 4), as in Kafka's member ids.

    The module uuid is not used: it imports platform, and both cost 3 ms of a start.
    """
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def id_text(id_: bytes) -> str:
    """Return Kafka's text form of a 16-byte id: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(id_).decode("ascii").rstrip("=")


def id_from_text(text: str) -> bytes:
    """Return the 16 bytes of an id's text form. Raises ValueError if it is invalid."""
    raw = base64.b64decode(text.strip() + "==", altchars=b"-_", validate=True)
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not an id of 16 bytes")
    return raw
