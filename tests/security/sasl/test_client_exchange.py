"""The client's side of logins, against the server's."""

import secrets

import pytest

from pylog.security.sasl import client_exchange, plain, scram
from pylog.security.errors import AuthenticationFailed

NAME, PASSWORD = "me,=too", "s3cret"
SALT = b"s" * 26


def kept(mechanism: str, password: str = PASSWORD) -> scram.Credential:
    number = scram.MECHANISMS[mechanism]
    return scram.credential(number, SALT, scram.salted(number, password, SALT, 4096), 4096)


def server(mechanism: str, known):
    return scram.Exchange(scram.MECHANISMS[mechanism], lambda name, extensions: known.get(name),
                          secrets.token_bytes, b"secret")


def log_in(steps, exchange) -> None:
    """Exchange messages until either side is complete."""
    token = next(steps)
    while True:
        answer = exchange.step(token)
        try:
            token = steps.send(answer)
        except StopIteration:
            return


@pytest.mark.parametrize("mechanism", scram.MECHANISMS)
def test_scram_logs_in_with_names_that_are_escaped(mechanism):
    exchange = server(mechanism, {NAME: kept(mechanism)})
    log_in(client_exchange.tokens(mechanism, NAME, PASSWORD), exchange)
    assert exchange.is_complete and exchange.name == NAME


@pytest.mark.parametrize("mechanism", scram.MECHANISMS)
def test_scram_with_a_wrong_password_is_rejected(mechanism):
    with pytest.raises(AuthenticationFailed):
        log_in(client_exchange.tokens(mechanism, NAME, "other"),
               server(mechanism, {NAME: kept(mechanism)}))


def test_plain_logs_in():
    exchange = plain.Exchange({NAME: PASSWORD})
    log_in(client_exchange.tokens("PLAIN", NAME, PASSWORD), exchange)
    assert exchange.is_complete and exchange.name == NAME


@pytest.mark.parametrize("challenge,words", [
    (b"", "cannot be read"), (b"\xff", "cannot be read"), (b"r=x,s=!,i=many", "cannot be read"),
    (b"r=other,s=c2FsdA==,i=4096", "does not continue"),
    (b"r=NONCE,s=c2FsdA==,i=2000000", "requires 2000000"),
    (b"r=NONCE,s=c2FsdA==,i=0", "requires 0")])
def test_invalid_challenge_ends_the_login(challenge, words):
    steps = client_exchange.tokens("SCRAM-SHA-256", NAME, PASSWORD)
    nonce = next(steps).rpartition(b"r=")[2]
    with pytest.raises(AuthenticationFailed, match=words):
        steps.send(challenge.replace(b"NONCE", nonce + b"more"))


@pytest.mark.parametrize("verdict", [b"", b"v=", b"v=AAAA", b"\xff", b"v=\xc3\xa9", b"e=other"])
def test_a_server_that_does_not_know_the_password_is_not_believed(verdict):
    steps = client_exchange.tokens("SCRAM-SHA-512", NAME, PASSWORD)
    nonce = next(steps).rpartition(b"r=")[2]
    steps.send(b"r=%smore,s=c2FsdA==,i=4096" % nonce)
    with pytest.raises(AuthenticationFailed, match="could not prove that it knows the password"):
        steps.send(verdict)
