"""Reasons for a failed connection, in the system's words."""

import socket

import pytest

from pylog.protocol.reasons import reason_of


@pytest.mark.parametrize(("error", "told"), [
    (OSError(111, "Connect call failed ('127.0.0.1', 9)"), "Connection refused"),
    (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
    (OSError("the name has no address"), "the name has no address"),
    (UnicodeEncodeError("idna", "x", 0, 1, "label too long"), "that is no host's name"),
    (ValueError("a certificate"), "a certificate")])
def test_reason_is_the_systems_message_without_an_address(error, told):
    assert reason_of(error) == told
