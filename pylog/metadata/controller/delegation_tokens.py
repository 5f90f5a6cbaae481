"""Decisions on delegation tokens: creation, renewal and expiry.

Owns: nothing; the time is passed in.
Invariants: renewals never extend a token beyond its maximum lifetime; only its owner and its
  renewers can change it, and must present its HMAC.
Source: KIP-48, KIP-900; error codes and their order as Kafka 4.4's DelegationTokenControlManager.
"""

import hmac
from collections import namedtuple

from pylog.metadata.image.image import DELEGATION_TOKEN, Image
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from pylog.security.sasl.delegation_token import proof
from pylog.security.principals import USER

REMOVED_MAX = 1000  # per decision; later decisions remove the rest

Limits = namedtuple("Limits", ("secret", "life_ms", "renewal_ms"))
Limits.__doc__ = "secret: None if tokens are disabled."
Decided = namedtuple("Decided", ("record", "error", "message"), defaults=(ErrorCode.NONE, None))
Decided.__doc__ = "record: the resulting token, None if there is none."


def of(image: Image) -> list:
    """Return the DelegationTokenRecords of an image."""
    return [record for key, record in image.security.items() if key[0] == DELEGATION_TOKEN]


def create(image: Image, limits: Limits, token_id: str, owner: str, requester: str, renewers,
           life_ms: int, now_ms: int):
    """Create a token. owner, requester: `kind:name`. renewers: [(kind, name)]. Returns (records,
    [Decided]).
    """
    if limits.secret is None:
        return [], [Decided(None, ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)]
    if any(kind != USER for kind, _ in renewers):
        return [], [Decided(None, ErrorCode.INVALID_PRINCIPAL_TYPE)]
    longest_ms = now_ms + (min(limits.life_ms, life_ms) if life_ms > 0 else limits.life_ms)
    record = messages.DelegationTokenRecord(
        owner=owner, requester=requester, renewers=[f"{kind}:{name}" for kind, name in renewers],
        issue_timestamp=now_ms, max_timestamp=longest_ms,
        expiration_timestamp=min(longest_ms, now_ms + limits.renewal_ms), token_id=token_id)
    return [record], [Decided(record)]


def renew(image: Image, limits: Limits, shown: bytes, requester: str, period_ms: int, now_ms: int):
    """Renew a token. Returns (records, [Decided])."""
    record, error = _found(image, limits, shown, requester, now_ms)
    if record is None:
        return [], [Decided(None, error)]
    wanted_ms = min(limits.renewal_ms, period_ms) if period_ms > 0 else limits.renewal_ms
    return _until(record, now_ms + wanted_ms)


def expire(image: Image, limits: Limits, shown: bytes, requester: str, period_ms: int, now_ms: int):
    """Change a token's expiry; a negative period removes it. Returns (records, [Decided])."""
    record, error = _found(image, limits, shown, requester, now_ms)
    if record is None:
        return [], [Decided(None, error)]
    if period_ms < 0:
        return [messages.RemoveDelegationTokenRecord(token_id=record.token_id)], [Decided(None)]
    return _until(record, now_ms + period_ms)


def expired(image: Image, now_ms: int):
    """Remove expired tokens. Returns (records, [])."""
    over = [record for record in of(image) if record.expiration_timestamp < now_ms]
    return [messages.RemoveDelegationTokenRecord(token_id=record.token_id)
            for record in over[:REMOVED_MAX]], []


def _until(record, end_ms: int):
    # A renewal never exceeds the maximum lifetime.
    new = messages.DelegationTokenRecord(
        owner=record.owner, requester=record.requester, renewers=record.renewers,
        issue_timestamp=record.issue_timestamp, max_timestamp=record.max_timestamp,
        expiration_timestamp=min(record.max_timestamp, end_ms), token_id=record.token_id)
    return [new], [Decided(new)]


def _found(image: Image, limits: Limits, shown: bytes, requester: str, now_ms: int) -> tuple:
    """Return (the record whose HMAC is `shown`, error). Only the owner and renewers get it."""
    if limits.secret is None:
        return None, ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    for record in of(image):
        if hmac.compare_digest(proof(limits.secret, record.token_id), shown):
            if record.expiration_timestamp < now_ms:
                return None, ErrorCode.DELEGATION_TOKEN_EXPIRED
            if requester not in (record.owner, *record.renewers):
                return None, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
            return record, ErrorCode.NONE
    return None, ErrorCode.DELEGATION_TOKEN_NOT_FOUND
