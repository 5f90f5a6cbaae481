"""Client tokens from an issuer, a file or generated locally: lifetime and errors."""

import threading

import pytest

from pylog.security.oauth import jwt, token_source
from pylog.security.errors import AuthenticationFailed
from tests.security.issuer import NO_ANSWERS, Issuer, answered, served

RULES = jwt.Rules(issuer=None, audience=(), scope=(), scope_claim="scope", name_claim="sub",
                  skew_s=0)


class Giver:
    """Returns a new token each time, valid for `lasts_s`."""

    def __init__(self, lasts_s: float = 100.0):
        self.now_s, self.given, self.lasts_s, self.fails = 1000.0, 0, lasts_s, False

    def get(self):
        self.given += 1
        if self.fails:
            raise AuthenticationFailed("no")
        return token_source.Issued(f"t{self.given}", self.lasts_s and self.now_s + self.lasts_s)

    def source(self, *pauses):
        return token_source.Source(self.get, lambda: self.now_s, *pauses)


def test_token_is_refreshed_after_four_fifths_of_its_lifetime():
    giver = Giver()
    source = giver.source()
    assert source.current is None and source.token() == "t1" and source.current == "t1"
    giver.now_s += 79.9
    assert source.token() == "t1" and giver.given == 1
    giver.now_s += 0.1
    assert source.current is None and source.token() == "t2"


def test_token_is_used_until_expiry_if_the_issuer_fails():
    giver = Giver()
    source = giver.source(1, 1)
    assert source.token() == "t1"
    giver.fails = True
    for passed_s in (90, 9.9):
        giver.now_s += passed_s
        assert source.token() == "t1"
    assert giver.given == 3
    giver.now_s += 0.1
    with pytest.raises(AuthenticationFailed, match="no"):
        source.token()
    giver.now_s, giver.fails = giver.now_s + 1, False
    assert source.token() == "t4"


def test_token_without_expiry_is_requested_each_time():
    giver = Giver(lasts_s=0)
    source = giver.source()
    assert [source.token(), source.token()] == ["t1", "t2"]


def test_failing_issuer_is_retried_with_backoff():
    giver = Giver()
    giver.fails, source = True, giver.source(1, 3)
    asked = []
    for _ in range(90):
        with pytest.raises(AuthenticationFailed, match="no"):
            source.token()
        asked.append(giver.given)
        giver.now_s += 0.1
    # At 0 s, 1 s, 3 s, and every 3 s from then on.
    assert [asked.count(number) for number in (1, 2, 3, 4)] == [10, 20, 30, 30]
    giver.fails = False
    giver.now_s += 3
    assert source.token() == "t5"


def test_concurrent_threads_request_one_token():
    giver = Giver()
    source, found = giver.source(), []
    threads = [threading.Thread(target=lambda: found.append(source.token())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["t1"] * 8


def test_client_credentials_are_exchanged_for_a_token():
    with served(Issuer(), {"me": "s3cret"}, lasts_s=60) as server:
        found = token_source.request_token(
            token_source.Endpoint(f"{server.url}/token", "me", "s3cret"), lambda: 5.0)
    assert found.expires_s == 65 and token_source.end_of(found.token) > 65
    assert server.asked == [{"grant_type": ["client_credentials"]}]


def test_token_expiring_before_the_issuers_time_is_used_until_it_expires():
    """The token's expiry is in whole seconds."""
    with served(Issuer(), {"me": "s3cret"}, lasts_s=60) as server:
        found = token_source.request_token(
            token_source.Endpoint(f"{server.url}/token", "me", "s3cret"), lambda: 1e11)
    assert found.expires_s == token_source.end_of(found.token) < 1e11


def test_a_refusal_names_the_issuer_and_its_reason_and_no_secret():
    with served(Issuer(), {"me": "s3cret"}) as server:
        with pytest.raises(AuthenticationFailed,
                           match="/token returned no token: 401 invalid_client") as caught:
            token_source.request_token(token_source.Endpoint(f"{server.url}/token", "me", "0ther"),
                                       lambda: 5.0)
    assert "0ther" not in str(caught.value)
    with pytest.raises(AuthenticationFailed, match="returned no token: URLError: .*refused"):
        token_source.request_token(token_source.Endpoint(f"{server.url}/token", "me", "0ther"),
                                   lambda: 5.0)


@pytest.mark.parametrize("data", NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
def test_invalid_issuer_response_counts_as_a_failure(data):
    with answered(data) as url, pytest.raises(AuthenticationFailed, match="returned no token"):
        token_source.request_token(token_source.Endpoint(url, "me", "s3cret"), lambda: 5.0)


def test_a_file_is_read_for_each_login(tmp_path):
    path = tmp_path / "token"
    for wrong in (None, "", "\N{SNOWMAN}"):
        if wrong is not None:
            path.write_text(wrong)
        with pytest.raises(AuthenticationFailed, match=f"no token in {path}: "):
            token_source.read(str(path))
    path.write_text("a.b.c\n")
    assert token_source.read(str(path)) == ("a.b.c", 0)


def test_unsigned_token_has_the_login_modules_claims():
    found = token_source.unsigned({
        "unsecuredLoginStringClaim_sub": "me", "unsecuredLoginListClaim_scope": "|a|b",
        "unsecuredLoginNumberClaim_n": "1.5", "unsecuredLoginLifetimeSeconds": "60"}, lambda: 500.0)
    assert found.expires_s == 560
    source = jwt.Tokens(RULES._replace(scope=("b",)), None, lambda: 500_000)
    assert source.check(found.token) == ("me", 560_000)
    with pytest.raises(AuthenticationFailed, match="unsecuredLogin"):
        token_source.unsigned({"unsecuredLoginLifetimeSeconds": "long"}, lambda: 500.0)


@pytest.mark.parametrize("token", ["", "a.b", "a.!.c", "a.W10.c", "a.e30.c"])
def test_token_without_an_expiry_claim_does_not_expire(token):
    assert token_source.end_of(token) == 0
