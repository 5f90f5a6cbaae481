"""PLAIN's server side."""

import pytest

from pylog.security.sasl import plain
from pylog.security.errors import AuthenticationFailed

USERS = {"alice": "secret", "empty": ""}


def test_name_and_password_authenticate():
    for token in (b"\0alice\0secret", b"alice\0alice\0secret"):
        exchange = plain.Exchange(USERS)
        assert exchange.step(token) == b"" and exchange.is_complete and exchange.name == "alice"


@pytest.mark.parametrize("token", [
    b"\0alice\0wrong", b"\0alice\0", b"\0nobody\0secret", b"\0empty\0", b"\0\0", b"\0\0secret",
    b"\0\xff\0secret"])
def test_wrong_credentials_of_any_kind_have_one_answer(token):
    with pytest.raises(AuthenticationFailed, match="Invalid username or password"):
        plain.Exchange(USERS).step(token)


def test_acting_for_another_user_is_rejected():
    with pytest.raises(AuthenticationFailed, match="different from username"):
        plain.Exchange(USERS).step(b"bob\0alice\0secret")


@pytest.mark.parametrize("token", [b"", b"alice", b"a\0b", b"\0a\0b\0c", b"\0" * 1000])
def test_message_without_three_parts_is_rejected(token):
    with pytest.raises(AuthenticationFailed, match="expected 3 tokens"):
        plain.Exchange(USERS).step(token)


def test_users_come_from_the_login_modules_options():
    assert plain.passwords({"username": "a", "password": "b", "user_a": "b", "user_": "c"}) == \
        {"a": "b", "": "c"}
