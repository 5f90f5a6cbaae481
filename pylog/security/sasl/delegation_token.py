"""Login with a delegation token: SCRAM with the token id as user name and its HMAC as password.

Owns: a cache of SCRAM credentials of recently used tokens.
Invariants: a login with a token has the principal of the token's owner, until the token expires; a
  token that is expired or missing from the metadata image is rejected; the HMAC is never stored: it
  is derived from the token id with the nodes' shared secret.
Source: KIP-48; Kafka's ScramSaslServer (`tokenauth=true`).
"""

from __future__ import annotations

import base64
import functools
import hmac
from collections import namedtuple

from pylog.security import principals
from pylog.security.sasl import scram

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable

EXTENSION = "tokenauth"
KEPT = 4096

Found = namedtuple("Found", ("credential", "owner", "expires_ms"))
Found.__doc__ = "Data for a login with a token."


@functools.lru_cache(65536)
def proof(secret: str, token_id: str) -> bytes:
    """Return the HMAC that a client presents as password."""
    return hmac.digest(secret.encode(), token_id.encode(), "sha512")


class Delegation:
    """records: returns the current Image.security. secret: shared by the nodes. salt: of this
    process.
    """

    def __init__(self, records: Callable[[], dict], secret: str, salt: bytes,
                 now_ms: Callable[[], int]):
        self._records = records
        self._secret = secret
        self._salt = salt[:scram.SALT_BYTES]
        self._now_ms = now_ms
        self._credential = functools.lru_cache(KEPT)(self._made)

    def find(self, token_id: str, mechanism: int) -> Found | None:
        """Return the token, or None if it does not exist or has expired."""
        record = self._records().get(("DelegationTokenRecord", (token_id,)))
        if record is None or record.expiration_timestamp < self._now_ms():
            return None
        kind, _, name = record.owner.partition(":")
        return Found(self._credential(token_id, mechanism), principals.Principal(kind, name, True),
                     record.expiration_timestamp)

    def _made(self, token_id: str, mechanism: int) -> scram.Credential:
        """Compute the SCRAM credential. Takes some milliseconds, so it is cached per existing
        token.
        """
        password = base64.b64encode(proof(self._secret, token_id)).decode()
        return scram.credential(mechanism, self._salt, scram.salted(
            mechanism, password, self._salt, scram.ITERATIONS_MIN), scram.ITERATIONS_MIN)
