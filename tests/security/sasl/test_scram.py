"""SCRAM's server side against a client of the RFC, correct and incorrect."""

import pytest

from pylog.security.sasl import scram
from pylog.security.errors import AuthenticationFailed
from tests.security.caller import ScramClient

SECRET = bytes(32)


def kept(password: str, number: int = scram.SHA_256) -> scram.Credential:
    salt = b"a salt of some bytes"
    return scram.credential(number, salt, scram.salted(number, password, salt, 4096), 4096)


def exchange(number: int = scram.SHA_256, users=None) -> scram.Exchange:
    users = {"alice": kept("secret", number)} if users is None else users
    return scram.Exchange(number, lambda name, extensions: users.get(name),
                          lambda size: bytes(range(size)), SECRET)


@pytest.mark.parametrize("mechanism", scram.MECHANISMS)
def test_correct_password_authenticates(mechanism):
    server = exchange(scram.MECHANISMS[mechanism])
    client = ScramClient("alice", "secret", mechanism)
    answer = server.step(client.final(server.step(client.first())))
    assert server.is_complete and server.name == "alice" and answer.startswith(b"v=")


@pytest.mark.parametrize("header", ["y,,", "n,a=alice,", "n,,"])
def test_headers_without_channel_binding_are_accepted(header):
    server, client = exchange(), ScramClient("alice", "secret", header=header)
    server.step(client.final(server.step(client.first())))
    assert server.is_complete


def test_names_are_escaped():
    server = exchange(users={"a,b=c": kept("secret")})
    client = ScramClient("a=2Cb=3Dc", "secret")
    server.step(client.final(server.step(client.first())))
    assert server.name == "a,b=c"


@pytest.mark.parametrize("name", ["alice", "nobody"])
def test_a_wrong_password_and_an_unknown_user_fail_at_the_same_step(name):
    server, client = exchange(), ScramClient(name, "wrong")
    first = server.step(client.first())
    assert first.count(b",") == 2 and first.endswith(b"i=4096")
    with pytest.raises(AuthenticationFailed) as failed:
        server.step(client.final(first))
    assert failed.value.text is None and not server.is_complete


def test_unknown_user_costs_as_much_as_a_wrong_password(monkeypatch):
    """Measured in hashes, which dominate the time of a login here."""
    def hashes_of(name: str) -> list:
        done = []
        with monkeypatch.context() as counted:
            for owner, function in ((scram.hmac, "digest"), (scram.hashlib, "new")):
                real = getattr(owner, function)

                def count(*given, real=real, function=function):
                    done.append((function, given[-1] if function == "digest" else given[0]))
                    return real(*given)

                counted.setattr(owner, function, count)
            server, client = exchange(), ScramClient(name, "wrong")
            first = server.step(client.first())
            final = client.final(first)
            del done[:]
            again = exchange()
            again.step(client.first())
            with pytest.raises(AuthenticationFailed):
                again.step(final)
        return done

    assert hashes_of("alice") == hashes_of("nobody")


def test_unknown_user_always_gets_the_same_salt():
    salts = {exchange().step(ScramClient("nobody", "x").first()).split(b",")[1] for _ in range(3)}
    assert len(salts) == 1
    assert salts != {exchange().step(ScramClient("other", "x").first()).split(b",")[1]}


@pytest.mark.parametrize("changed", [
    {"nonce": "clientnonce"}, {"nonce": "another"}, {"binding": "y,,"}, {"binding": "p=x,,"}])
def test_a_last_message_that_is_not_bound_to_the_first_fails(changed):
    server, client = exchange(), ScramClient("alice", "secret")
    first = server.step(client.first())
    with pytest.raises(AuthenticationFailed):
        server.step(client.final(first, **changed))


def test_client_that_repeats_its_nonce_gets_the_reason():
    """librdkafka before 2.6.1, which kcat is often built with."""
    server, client = exchange(), ScramClient("alice", "secret")
    first = server.step(client.first())
    nonce = dict(part.split("=", 1) for part in first.decode().split(","))["r"]
    with pytest.raises(AuthenticationFailed, match=r"librdkafka before 2\.6\.1"):
        server.step(client.final(first, nonce=client.nonce + nonce))
    assert not server.is_complete


def test_message_of_another_login_fails():
    users = {"alice": kept("secret")}
    client = ScramClient("alice", "secret")
    numbers = iter(range(256))
    def made():
        return scram.Exchange(scram.SHA_256, lambda name, extensions: users.get(name),
                              lambda size: bytes([next(numbers)] * size), SECRET)
    one = made()
    last = client.final(one.step(client.first()))
    one.step(last)
    other = made()
    other.step(client.first())
    with pytest.raises(AuthenticationFailed):
        other.step(last)


@pytest.mark.parametrize("first", [
    b"", b"\xff\xfe", b"n", b"n,,", b"n,,n=,r=x", b"n,,n=alice,r=", b"p=tls-unique,,n=alice,r=x",
    b"n,a=bob,n=alice,r=x", b"n,,n=al=ice,r=x", b"n,,n=alice", b"n,,m=x,n=alice,r=x",
    b"n,,n=alice,r=x\0", b"n" * 100_000, b"n,,n=" + b"," * 10_000])
def test_hostile_first_messages_fail(first):
    with pytest.raises(AuthenticationFailed):
        exchange().step(first)


@pytest.mark.parametrize("last", [
    b"", b"\xff", b"c=biws", b"c=biws,r=x,p=!!", b"c=biws,r=%n,p=", b"c=biws,r=%n,p=AAAA",
    b"c=bi,r=%n,p=AAAA", b"c=biws,r=%n", b"=" * 100_000])
def test_hostile_last_messages_fail(last):
    server = exchange()
    nonce = server.step(ScramClient("alice", "secret").first()).split(b",")[0][2:]
    with pytest.raises(AuthenticationFailed):
        server.step(last.replace(b"%n", nonce))
