"""Logins with damaged messages, in every step of every mechanism: each is rejected or continues,
and no client without the secret is authenticated.
"""

import base64

import pytest

from pylog.security.sasl import kerberos, oauthbearer, plain, scram
from pylog.security.errors import AuthenticationFailed, TokenRefused
from tests.security.caller import ScramClient
from tests.security.sasl.test_kerberos import exchange  # noqa: F401

ROUNDS = 300
SECRET = bytes(32)
SALT, ITERATIONS = b"salt" * 4, 1


def spoiled(message: bytes, random) -> bytes:
    """Return a message that differs in a byte, a part, its length, or completely."""
    data = bytearray(message)
    kind = random.randrange(6)
    if kind == 0 and data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    elif kind == 1:
        del data[random.randrange(len(data) + 1):]
    elif kind == 2:
        at = random.randrange(len(data) + 1)
        data[at:at] = random.randbytes(random.choice((1, 3, 100, 70_000)))
    elif kind == 3:
        data += bytes(data)
    elif kind == 4:
        data = bytearray(random.choice((b"", b"\0", b",", b"=", b"n,,", b"r=", b"\xff" * 9)))
    else:
        data = bytearray(random.randbytes(random.randrange(200)))
    return bytes(data)


def talk(login, messages) -> bool:
    """Return True if the login is complete after these messages: functions of the last response."""
    answer = b""
    for message in messages:
        try:
            answer = login.step(message(answer))
        except AuthenticationFailed:
            return False
        assert isinstance(answer, bytes) and len(answer) < 1 << 16
        if login.is_complete:
            return True
    return False


@pytest.mark.parametrize("mechanism", scram.MECHANISMS)
@pytest.mark.parametrize("step", [0, 1])
def test_corrupt_scram_messages_never_log_in(mechanism, step, random_source):
    number = scram.MECHANISMS[mechanism]
    found = scram.credential(number, SALT, scram.salted(number, "right", SALT, ITERATIONS),
                             ITERATIONS)

    def made():
        return scram.Exchange(number, lambda name, extensions: found if name == "alice" else None,
                              lambda count: b"n" * count, SECRET)

    client = ScramClient("alice", "right", mechanism)
    assert talk(made(), [lambda _: client.first(), client.final])
    for _ in range(ROUNDS):
        wrong = ScramClient("alice", "wrong", mechanism)
        first = spoiled(wrong.first(), random_source) if step == 0 else wrong.first()

        def last(answer, wrong=wrong):
            try:
                final = wrong.final(answer)
            except (KeyError, ValueError):
                final = b"c=biws,r=n,p=" + base64.b64encode(bytes(32))
            return spoiled(final, random_source)

        assert not talk(made(), [lambda _, first=first: first, last, last])


def test_corrupt_plain_messages_never_log_in(random_source):
    known = {"alice": "right"}
    assert talk(plain.Exchange(known), [lambda _: b"\0alice\0right"])
    for _ in range(ROUNDS):
        message = spoiled(b"\0alice\0wrong", random_source)
        assert not talk(plain.Exchange(known), [lambda _, message=message: message])


def test_corrupt_bearer_messages_never_log_in(random_source):
    def check(text):
        raise TokenRefused("no token counts")

    for _ in range(ROUNDS):
        message = spoiled(b"n,,\x01auth=Bearer abc.def.ghi\x01\x01", random_source)
        assert not talk(oauthbearer.Exchange(check), [lambda _, message=message: message,
                                                      lambda _: random_source.randbytes(20)])


def test_kerberos_login_needs_a_valid_layer_choice(exchange, random_source):  # noqa: F811
    for _ in range(ROUNDS):
        choice = spoiled(b"w\x01\x00\x00\x00", random_source)
        login = exchange()
        # The test's context accepts every ticket: the damage is in the choice of a layer.
        let_in = talk(login, [lambda _: b"ticket", lambda _, choice=choice: choice])
        assert let_in == (choice[1:2] == b"\x01" and
                          kerberos.LAYER_BYTES < len(choice) <= kerberos.TOKEN_BYTES_MAX)
