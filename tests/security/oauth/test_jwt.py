"""Validation of bearer tokens."""

import base64
import hmac
import json
import math
import time

import pytest

from pylog.security.oauth import jwks
from pylog.security.errors import TokenRefused
from pylog.security.oauth.jwt import Rules, Token, Tokens, judged
from tests.security.issuer import Issuer, unsigned

NOW_S = 1_800_000_000
RULES = Rules(None, (), (), "scope", "sub", 30)
CLAIMS = {"sub": "alice", "iat": NOW_S - 100, "exp": NOW_S + 60}


@pytest.fixture(scope="module", params=["RS256", "PS512", "ES256"])
def issuer(request):
    return Issuer(kind=request.param)


def tokens(issuer, tmp_path, rules=RULES):
    path = tmp_path / "keys.json"
    path.write_text(issuer.published)
    keys = jwks.Keys(f"file://{path}", 3_600_000, 100, None, time.monotonic)
    keys.load()
    return Tokens(rules, keys, lambda: int(time.time() * 1000))


def counts(checker, text) -> bool:
    try:
        checker.check(text)
    except TokenRefused as refused:
        # It is not in any log line.
        assert len(text) < 20 or text not in str(refused)
        return False
    return True


def test_token_signed_with_a_published_key_is_valid_until_it_expires(issuer, tmp_path):
    checked = tokens(issuer, tmp_path).check(issuer.token("alice", 100))
    assert checked.name == "alice" and 95_000 < checked.expires_ms - time.time() * 1000 <= 100_000


def test_altered_signature_or_content_is_invalid(issuer, tmp_path):
    checker, good = tokens(issuer, tmp_path), issuer.token("alice")
    header, claims, signature = good.split(".")
    other = issuer.token("bob").split(".")
    forged = Issuer(kind=issuer.kind).token("alice")
    for text in (f"{header}.{other[1]}.{signature}", f"{header}.{claims}.{other[2]}", forged,
                 f"{header}.{claims}.", f"{header}.{claims}", good[:-8], good[8:], "", "a", "a.b.c",
                 "..", "...."):
        assert not counts(checker, text), text


def test_a_token_without_a_signature_does_not_count(issuer, tmp_path):
    now = int(time.time())
    claims = {"sub": "alice", "iat": now, "exp": now + 100}
    for header in ({}, {"kid": "first"}, {"alg": "None"}, {"alg": "NONE"}, {"alg": ""}):
        assert not counts(tokens(issuer, tmp_path), unsigned(claims, header))


def test_a_public_key_is_no_secret_to_sign_with(tmp_path):
    """CVE-2015-9235: HS256 with the published key as its secret."""
    issuer = Issuer()
    now = int(time.time())
    head, body = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
                  for part in ({"alg": "HS256", "kid": "first"},
                               {"sub": "alice", "iat": now, "exp": now + 100}))
    for secret in (issuer.keys["first"].as_pem(private=False), b""):
        signature = hmac.digest(secret, f"{head}.{body}".encode(), "sha256")
        forged = f"{head}.{body}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"
        assert not counts(tokens(issuer, tmp_path), forged)


def test_the_header_is_not_believed(issuer, tmp_path):
    other = Issuer(kind=issuer.kind)
    embedded = other.token("alice", header={"jwk": other.keys["first"].as_dict(private=False)})
    assert not counts(tokens(issuer, tmp_path), embedded)
    for header in ({"kid": "another"}, {"kid": 7}, {"kid": ["first"]}, {"crit": 5}):
        text = issuer.token("alice")
        head = json.loads(base64.urlsafe_b64decode(text.partition(".")[0] + "==")) | header
        forged = base64.urlsafe_b64encode(json.dumps(head).encode()).decode().rstrip("=")
        assert not counts(tokens(issuer, tmp_path), f"{forged}.{text.partition('.')[2]}")


@pytest.mark.parametrize(("changed", "rules"), [
    ({}, {}), ({"exp": NOW_S - 29}, {}), ({"nbf": NOW_S + 29}, {}),
    ({"iss": "i"}, {"issuer": "i"}),
    ({"aud": "a"}, {"audience": ("a", "b")}), ({"aud": ["x", "b"]}, {"audience": ("a", "b")}),
    ({"aud": "x"}, {}), ({"scope": "w  r"}, {"scope": ("r", "w")}),
    ({"scope": ["r", "w x"]}, {"scope": ("r", "x")}),
    ({"scp": "r"}, {"scope": ("r",), "scope_claim": "scp"}),
    ({"sub": None, "user": "alice"}, {"name_claim": "user"}), ({"exp": NOW_S + 0.5}, {})])
def test_claims_that_are_as_wanted_count(changed, rules):
    assert judged({**CLAIMS, **changed}, RULES._replace(**rules), NOW_S).name == "alice"


@pytest.mark.parametrize(("changed", "rules"), [
    ({"exp": NOW_S - 30}, {}), ({"exp": None}, {}), ({"iat": None}, {}),
    ({"iat": NOW_S + 61}, {}), ({"nbf": NOW_S + 31}, {}), ({"exp": "soon"}, {}),
    ({"exp": True}, {}), ({"exp": math.inf}, {}), ({"exp": math.nan}, {}), ({"exp": 1e30}, {}),
    ({"exp": -1}, {}), ({"exp": [NOW_S]}, {}),
    ({}, {"issuer": "i"}), ({"iss": ["i"]}, {"issuer": "i"}),
    ({}, {"audience": ("a",)}), ({"aud": "ab"}, {"audience": ("a",)}),
    ({"aud": {"a": 1}}, {"audience": ("a",)}),
    ({"scope": "r"}, {"scope": ("r", "w")}), ({"scope": 5}, {"scope": ("r",)}),
    ({"sub": None}, {}), ({"sub": ""}, {}), ({"sub": "  "}, {}), ({"sub": 5}, {}),
    ({"sub": ["alice"]}, {})])
def test_missing_or_expired_claims_are_invalid(changed, rules):
    with pytest.raises(TokenRefused):
        judged({**CLAIMS, **changed}, RULES._replace(**rules), NOW_S)


def test_unsigned_tokens_are_valid_only_if_enabled():
    checker = Tokens(RULES, None, lambda: NOW_S * 1000)
    assert checker.check(unsigned(CLAIMS)) == Token("alice", (NOW_S + 60) * 1000)
    for text in (unsigned(CLAIMS) + "x", unsigned(CLAIMS, {"alg": "RS256"}), unsigned([1]),
                 Issuer().token(), "\xff.e30.", unsigned(CLAIMS)[:-1], "[" * 9999 + ".."):
        assert not counts(checker, text), text
