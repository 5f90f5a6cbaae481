"""Assertions of a client about itself: claims, signatures, and errors."""

import json

import pytest
from joserfc import errors, jwk, jws

from pylog.security.oauth import client_assertions
from pylog.security.errors import AuthenticationFailed

PREFIX = "sasl.oauthbearer.assertion."
DEFAULTS = {"algorithm": "RS256", "claim.exp.seconds": 300, "claim.nbf.seconds": 60,
            "claim.jti.include": False}
NOW_S = 1_700_000_000.9


@pytest.fixture(scope="module")
def rsa():
    return jwk.RSAKey.generate_key(2048)


@pytest.fixture
def key_file(rsa, tmp_path):
    path = tmp_path / "key.pem"
    path.write_bytes(rsa.as_pem(private=True))
    return path


def made(**given):
    """Return assertions. given: settings without their prefix, `_` for `.`."""
    found = {**DEFAULTS, **{name.replace("_", "."): str(value) if hasattr(value, "parts") else value
                            for name, value in given.items()}}
    return client_assertions.made(lambda name: found.get(name.removeprefix(PREFIX)), lambda: NOW_S)


def opened(text, key, algorithm="RS256"):
    """Return (header, claims) of a text signed with that key."""
    found = jws.deserialize_compact(text, key, registry=jws.JWSRegistry(
        algorithms=[algorithm], strict_check_header=False))
    return found.headers(), json.loads(found.payload)


def test_assertion_has_the_configured_claims_and_expiry(rsa, key_file):
    header, claims = opened(made(private_key_file=key_file, claim_iss="me", claim_sub="svc",
                                 claim_aud="https://issuer"), rsa)
    assert header == {"alg": "RS256", "typ": "JWT"}
    assert claims == {"iss": "me", "sub": "svc", "aud": "https://issuer", "iat": 1_700_000_000,
                      "nbf": 1_700_000_000 - 60, "exp": 1_700_000_000 + 300}


def test_each_assertion_has_a_unique_id_if_configured(rsa, key_file):
    ids = {opened(made(private_key_file=key_file, claim_jti_include=True), rsa)[1]["jti"]
           for _ in range(3)}
    assert len(ids) == 3


def test_assertion_template_overrides_settings(rsa, key_file, tmp_path):
    template = tmp_path / "template.json"
    template.write_text(json.dumps({
        "header": {"kid": "k1", "own": 7, "alg": "none"},
        "payload": {"sub": "other", "roles": ["a"], "exp": 1}}))
    header, claims = opened(made(private_key_file=key_file, claim_sub="svc", claim_iss="me",
                                 template_file=template), rsa)
    assert header == {"kid": "k1", "own": 7, "alg": "RS256", "typ": "JWT"}
    assert claims["sub"] == "other" and claims["roles"] == ["a"] and claims["iss"] == "me"
    assert claims["exp"] == 1_700_000_000 + 300


def test_a_key_that_is_encrypted_signs_with_its_passphrase(rsa, tmp_path):
    path = tmp_path / "key.pem"
    path.write_bytes(rsa.as_pem(private=True, password="open sesame"))
    opened(made(private_key_file=path, private_key_passphrase="open sesame"), rsa)
    with pytest.raises(AuthenticationFailed, match="key.pem does not fit RS256, or needs a pass"):
        made(private_key_file=path)
    with pytest.raises(AuthenticationFailed, match="or its passphrase is wrong") as caught:
        made(private_key_file=path, private_key_passphrase="wr0ng")
    assert "wr0ng" not in str(caught.value)


def test_a_key_without_the_lines_of_pem_signs_as_with_them(rsa, key_file):
    """Kafka's own clients require this form."""
    lines = key_file.read_text().strip().splitlines()
    key_file.write_text("".join(lines[1:-1]))
    opened(made(private_key_file=key_file), rsa)


def test_es256_signs_with_a_key_of_that_curve(rsa, tmp_path):
    curve, path = jwk.ECKey.generate_key("P-256"), tmp_path / "key.pem"
    path.write_bytes(curve.as_pem(private=True))
    opened(made(private_key_file=path, algorithm="es256"), curve, "ES256")
    with pytest.raises(AuthenticationFailed, match="does not fit RS256"):
        made(private_key_file=path)
    path.write_bytes(rsa.as_pem(private=True))
    with pytest.raises(AuthenticationFailed, match="does not fit ES256"):
        made(private_key_file=path, algorithm="ES256")


def test_a_public_key_signs_nothing(rsa, key_file):
    key_file.write_bytes(rsa.as_pem(private=False))
    with pytest.raises(AuthenticationFailed, match="cannot sign an assertion"):
        made(private_key_file=key_file)


def test_a_key_is_read_for_each_assertion(rsa, key_file):
    opened(made(private_key_file=key_file), rsa)
    newer = jwk.RSAKey.generate_key(2048)
    key_file.write_bytes(newer.as_pem(private=True))
    text = made(private_key_file=key_file)
    opened(text, newer)
    with pytest.raises(errors.BadSignatureError):
        opened(text, rsa)


def test_assertion_file_overrides_a_key(tmp_path):
    path = tmp_path / "assertion"
    path.write_text("a.b.c\n")
    assert made(file=path, private_key_file="/nowhere") == "a.b.c"


@pytest.mark.parametrize(("setting", "what"), [
    ("file", "assertion"), ("private_key_file", "private key"),
    ("template_file", "template of assertions")])
def test_a_file_that_cannot_be_used_is_named(key_file, tmp_path, setting, what):
    path = tmp_path / "given"
    for content, words in ((None, "FileNotFoundError"), (b"", "it is empty"),
                           (b"\xff", "UnicodeDecodeError")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(AuthenticationFailed, match=f"no {what} in {path}: {words}"):
            made(**{"private_key_file": key_file, setting: path})


@pytest.mark.parametrize("text", ["{", "[]", '{"header": 1}', '{"payload": []}', "[" * 100_000])
def test_invalid_template_is_reported_with_the_expected_format(key_file, tmp_path, text):
    path = tmp_path / "template"
    path.write_text(text)
    with pytest.raises(AuthenticationFailed, match=f"in {path}: expected .*header.*payload"):
        made(private_key_file=key_file, template_file=path)
