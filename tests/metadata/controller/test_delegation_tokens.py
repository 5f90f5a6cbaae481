"""Delegation tokens as decisions: lifetimes and permissions."""

import pytest

from pylog.metadata.controller import delegation_tokens
from pylog.metadata.controller.delegation_tokens import Decided, Limits
from pylog.metadata.image.image import Image, apply
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode as E
from pylog.security.sasl.delegation_token import proof

SECRET, OWNER, RENEWER, NOW = "secret", "User:owner", "User:renewer", 1000
LIMITS, OFF = Limits(SECRET, 500, 100), Limits(None, 500, 100)


def taken(image, decision):
    records, decided = decision
    return apply(image, records, image.offset + max(1, len(records)), 1), decided


def created(image=None, token_id="id", limits=LIMITS, life_ms=-1, renewers=(("User", "renewer"),)):
    return taken(image or Image(), delegation_tokens.create(
        image, limits, token_id, OWNER, "User:asks", renewers, life_ms, NOW))


def ask(decide, image, period_ms=-1, who=OWNER, now_ms=NOW, limits=LIMITS, token_id="id"):
    image, (decided,) = taken(image, decide(
        image, limits, proof(SECRET, token_id), who, period_ms, now_ms))
    return image, decided


def ends(image):
    return [record.expiration_timestamp for record in delegation_tokens.of(image)]


@pytest.mark.parametrize(("life_ms", "longest", "end"), [
    (-1, 1500, 1100), (0, 1500, 1100), (1, 1001, 1001), (50, 1050, 1050), (200, 1200, 1100),
    (9000, 1500, 1100)])
def test_a_new_token_lasts_as_long_as_is_wanted_and_allowed(life_ms, longest, end):
    image, (decided,) = created(life_ms=life_ms)
    record, = delegation_tokens.of(image)
    assert decided == Decided(record) and decided.error == E.NONE
    assert (record.owner, record.requester, record.renewers, record.token_id) == (
        OWNER, "User:asks", [RENEWER], "id")
    assert (record.issue_timestamp, record.max_timestamp, record.expiration_timestamp) == (
        NOW, longest, end)


def test_delegation_tokens_require_a_secret_key():
    image, (decided,) = created(limits=OFF)
    assert decided == Decided(None, E.DELEGATION_TOKEN_AUTH_DISABLED)
    assert not delegation_tokens.of(image)
    image, _ = created()
    for decide in (delegation_tokens.renew, delegation_tokens.expire):
        after, decided = ask(decide, image, limits=OFF)
        assert decided == Decided(None, E.DELEGATION_TOKEN_AUTH_DISABLED)
        assert ends(after) == [1100]


def test_only_users_renew():
    image, (decided,) = created(renewers=[("User", "renewer"), ("Group", "renewer")])
    assert decided == Decided(None, E.INVALID_PRINCIPAL_TYPE) and not delegation_tokens.of(image)


@pytest.mark.parametrize(("period_ms", "end"), [
    (-1, 1150), (0, 1150), (1, 1051), (30, 1080), (100, 1150), (400, 1150)])
@pytest.mark.parametrize("who", [OWNER, RENEWER])
def test_a_token_is_renewed_from_now_on(period_ms, end, who):
    image, decided = ask(delegation_tokens.renew, created()[0], period_ms, who, 1050)
    record, = delegation_tokens.of(image)
    assert decided == Decided(record) and record.expiration_timestamp == end
    assert (record.owner, record.renewers, record.issue_timestamp, record.max_timestamp) == (
        OWNER, [RENEWER], NOW, 1500)


def test_renewal_does_not_exceed_the_maximum_lifetime():
    image, _ = ask(delegation_tokens.renew, created(life_ms=120)[0], 100, now_ms=1090)
    assert ends(image) == [1120]


@pytest.mark.parametrize(("period_ms", "end"), [(0, 1050), (20, 1070), (9000, 1500)])
def test_token_ends_on_request(period_ms, end):
    image, decided = ask(delegation_tokens.expire, created()[0], period_ms, now_ms=1050)
    assert ends(image) == [end] and decided.record == delegation_tokens.of(image)[0]


def test_a_token_is_removed_at_once_by_a_negative_period_and_no_other_is():
    image, _ = created(created()[0], "other")
    image, decided = ask(delegation_tokens.expire, image, -1)
    assert decided == Decided(None)
    assert [row.token_id for row in delegation_tokens.of(image)] == ["other"]


@pytest.mark.parametrize("decide", [delegation_tokens.renew, delegation_tokens.expire])
@pytest.mark.parametrize(("fields", "error"), [
    ({"who": "User:asks"}, E.DELEGATION_TOKEN_OWNER_MISMATCH),
    ({"now_ms": 1101}, E.DELEGATION_TOKEN_EXPIRED),
    ({"token_id": "another"}, E.DELEGATION_TOKEN_NOT_FOUND)])
def test_unauthorized_requester_changes_nothing(decide, fields, error):
    image, _ = created()
    after, decided = ask(decide, image, 10, **fields)
    assert decided == Decided(None, error)
    assert delegation_tokens.of(after) == delegation_tokens.of(image)


def test_token_is_valid_until_it_expires():
    assert ask(delegation_tokens.renew, created()[0], 10, now_ms=1100)[1].error == E.NONE
    image, _ = created()
    assert delegation_tokens.expired(image, 1100) == ([], [])
    assert delegation_tokens.expired(image, 1101) == (
        [messages.RemoveDelegationTokenRecord(token_id="id")], [])


def test_expired_tokens_are_removed_in_limited_numbers(monkeypatch):
    monkeypatch.setattr(delegation_tokens, "REMOVED_MAX", 2)
    image = Image()
    for number in range(3):
        image, _ = created(image, f"id{number}")
    image, _ = created(image, "lives", Limits(SECRET, 5000, 5000))
    counts = []
    while (decision := delegation_tokens.expired(image, 2000))[0]:
        counts.append(len(decision[0]))
        image, _ = taken(image, decision)
    assert counts == [2, 1] and [row.token_id for row in delegation_tokens.of(image)] == ["lives"]


def test_other_secured_things_are_no_tokens():
    image = apply(created()[0], [messages.UserScramCredentialRecord(
        name="u", mechanism=1, salt=b"", stored_key=b"", server_key=b"", iterations=4096)], 5, 1)
    assert [row.token_id for row in delegation_tokens.of(image)] == ["id"]
