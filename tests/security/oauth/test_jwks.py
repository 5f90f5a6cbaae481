"""An issuer's published keys."""

import json

import pytest

from pylog.config import ConfigError
from pylog.security.oauth import jwks
from tests.fixtures.waits import until
from tests.security.issuer import NO_ANSWERS, Issuer, answered, served


class Clock:
    s = 1000.0

    def __call__(self):
        return self.s


@pytest.fixture
def clock():
    return Clock()


def loaded(url, clock, refresh_ms=3_600_000, retry_ms=1000):
    keys = jwks.Keys(url, refresh_ms, retry_ms, None, clock)
    keys.load()
    return keys


@pytest.mark.parametrize("data", NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
def test_invalid_response_has_no_keys(clock, data):
    with answered(data) as url, pytest.raises(ConfigError, match="no keys from"):
        loaded(url, clock)


def test_new_key_is_loaded_soon_after_a_token_uses_it(clock):
    issuer = Issuer()
    with served(issuer) as server:
        keys = loaded(f"{server.url}/keys", clock)
        assert keys.find("first") is not None and keys.find(None) is not None
        issuer.new_key("second")
        clock.s += 2
        assert keys.find("second") is None
        until(lambda: keys.find("second") is not None)
        # A token without a key id could mean either.
        assert keys.find(None) is None
        assert keys.find(["first"]) is None


def test_unknown_keys_do_not_trigger_unlimited_issuer_requests(clock, monkeypatch):
    with served(Issuer()) as server:
        keys = loaded(f"{server.url}/keys", clock)
        begun = []
        monkeypatch.setattr(keys, "_load_again", lambda: begun.append(clock.s))
        for _ in range(100):
            keys.find("unknown")
        assert not begun
        clock.s += 1
        keys.find("unknown")
        assert len(begun) == 1


def test_keys_are_refreshed_and_kept_while_the_issuer_is_unreachable(clock, caplog):
    issuer = Issuer()
    with served(issuer) as server:
        keys = loaded(f"{server.url}/keys", clock, refresh_ms=60_000)
        del issuer.keys["first"]
        issuer.new_key("second")
        clock.s += 61
        assert keys.find("first") is not None
        until(lambda: keys.find("first") is None)
    clock.s += 61
    assert keys.find("second") is not None
    until(lambda: "not be reloaded" in caplog.text)
    assert keys.find("second") is not None


def test_changed_key_file_is_read_again(tmp_path, clock):
    issuer, path = Issuer(), tmp_path / "keys.json"
    path.write_text(issuer.published)
    keys = loaded(f"file://{path}", clock)
    issuer.new_key("second")
    path.write_text(issuer.published)
    clock.s += 2
    keys.find("first")
    until(lambda: keys.find("second") is not None)


@pytest.mark.parametrize("content", [
    "", "no json", "[]", '{"keys": []}', '{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}',
    '{"keys": [5]}', '{"keys": [{"kty": "RSA"}]}', "[" * 100_000,
    json.dumps({"keys": [], "more": "x" * jwks.BYTES_MAX})], ids=lambda text: text[:30])
def test_invalid_key_set_stops_the_start_with_one_line(tmp_path, clock, content):
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="no keys from file://"):
        loaded(f"file://{path}", clock)


@pytest.mark.parametrize("odd", [
    {"kty": "EC", "crv": "P-9", "x": "AA", "y": "AA"}, {"kty": "RSA", "kid": "x"},
    {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}, {"kty": "RSA", "n": "!!", "e": "AQAB"},
    {"kty": "RSA", "n": 5, "e": "AQAB"}], ids=json.dumps)
def test_unsupported_key_does_not_affect_the_others(tmp_path, clock, odd):
    path = tmp_path / "keys.json"
    published = json.loads(Issuer().published)
    path.write_text(json.dumps({"keys": [odd, *published["keys"]]}))
    assert loaded(f"file://{path}", clock).find("first") is not None


def test_a_thread_that_the_system_has_not_now_is_begun_later(clock, monkeypatch, caplog):
    class Supervisor:
        @staticmethod
        def thread_once(*arguments):
            raise RuntimeError("can't start new thread")

    issuer = Issuer()
    with served(issuer) as server:
        keys = loaded(f"{server.url}/keys", clock)
        issuer.new_key("second")
        clock.s += 2
        with monkeypatch.context() as shortage:
            shortage.setattr(jwks, "supervisor", Supervisor)
            assert keys.find("second") is None
        assert "can't start new thread" in [
            getattr(one, "reason", "") for one in caplog.records]
        clock.s += 2
        until(lambda: keys.find("second") is not None)


@pytest.mark.parametrize("url", ["/keys.json", "ftp://x/keys", "", "data:,x"])
def test_unsupported_url_scheme_is_rejected(url, clock):
    with pytest.raises(ConfigError, match="expected file:///path"):
        loaded(url, clock)


def test_unreachable_issuer_is_named(clock):
    with pytest.raises(ConfigError, match=r"no keys from http://127\.0\.0\.1:9/"):
        loaded("http://127.0.0.1:9/keys", clock)
