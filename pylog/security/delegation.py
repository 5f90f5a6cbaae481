"""Logging in by a delegation token: SCRAM with the token's id and its proof as the password.

Owns: what SCRAM keeps of the tokens that were last used.
Invariants: (1) who logs in is the token's owner, until the token ends; (2) a token that is not in
  the image, or has ended, lets nobody in; (3) the proof is no record: it follows from the token's
  id by the nodes' secret.
Source: KIP-48; Kafka's ScramSaslServer (`tokenauth=true`).
"""

from __future__ import annotations

import base64
import functools
import hmac
from collections import namedtuple

from pylog.security import identities, scram

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable

EXTENSION = "tokenauth"
KEPT = 4096

Found = namedtuple("Found", ("credential", "owner", "expires_ms"))
Found.__doc__ = "What a login by a token needs."


@functools.lru_cache(65536)
def proof(secret: str, token_id: str) -> bytes:
    """What whoever has the token shows. Keeps (3)."""
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")


class Delegation:
    """records: Image.security, now. secret: the nodes', salt: of this process."""

    def __init__(self, records: Callable[[], dict], secret: str, salt: bytes,
                 now_ms: Callable[[], int]):
        self._records = records
        self._secret = secret
        self._salt = salt[:scram.SALT_BYTES]
        self._now_ms = now_ms
        self._credential = functools.lru_cache(KEPT)(self._made)

    def find(self, token_id: str, mechanism: int) -> Found | None:
        """Keeps (2)."""
        record = self._records().get(("DelegationTokenRecord", (token_id,)))
        if record is None or record.expiration_timestamp < self._now_ms():
            return None
        kind, _, name = record.owner.partition(":")
        return Found(self._credential(token_id, mechanism), identities.Principal(kind, name, True),
                     record.expiration_timestamp)

    def _made(self, token_id: str, mechanism: int) -> scram.Credential:
        """Some milliseconds, once for a token that is there."""
        password = base64.b64encode(proof(self._secret, token_id)).decode()
        return scram.credential(mechanism, self._salt, scram.salted(
            mechanism, password, self._salt, scram.ITERATIONS_MIN), scram.ITERATIONS_MIN)
