"""GSSAPI on a listener, with a library that accepts every ticket except one: effects of blocking
steps on the connection and on others.
"""

import struct
import threading

import pytest

from pylog.protocol.errors import ErrorCode
from pylog.security.sasl import kerberos
from pylog.testing import Broker
from pylog.testing.ports import free_port
from tests.security.caller import Caller
from tests.security.sasl.test_kerberos import Context
from tests.wire import raw

FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED
CHOICE = b"w\x01\x00\x00\x00"
BAD, SLOW = b"bad ticket", b"slow ticket"


class Refused(Exception):
    """The library's exception."""


class Steps(Context):
    """slow: a step with SLOW waits for it; begun: is set by that step."""

    slow, begun = threading.Event(), threading.Event()

    def step(self, token):
        if token == SLOW:
            self.begun.set()
            assert self.slow.wait(60)
        if token == BAD:
            raise Refused("no such ticket")
        return super().step(token)


class Acceptor:
    def __init__(self, options, short_name):
        assert options["keyTab"] == "/k"
        self._short_name = short_name

    def begin(self):
        return kerberos.Exchange(Steps(), self._short_name)


@pytest.fixture(scope="module")
def port():
    library = type("Library", (), {"exceptions": type("Errors", (), {"GSSError": Refused})})
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kerberos, "library", lambda: library)
        patch.setattr(kerberos, "Acceptor", Acceptor)
        patch.setattr(kerberos, "default_realm", lambda: "R")
        with Broker(settings={
                "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}",
                "sasl.enabled.mechanisms": "GSSAPI",
                "connection.failed.authentication.delay.ms": "10",
                "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": 'm required keyTab="/k";'}):
            yield port


def test_kerberos_ticket_authenticates(port):
    with Caller(port) as caller:
        assert caller.handshake("GSSAPI").error_code == 0
        answer = caller.token(b"ticket")
        assert (answer.error_code, answer.auth_bytes) == (0, CHOICE)
        answer = caller.token(CHOICE)
        assert (answer.error_code, answer.auth_bytes) == (0, b"")
        assert caller.metadata().brokers


@pytest.mark.parametrize("tokens", [(BAD,), (b"ticket", b"w\x02\x00\x00\x00"), (b"ticket", b"")])
def test_failed_step_closes_the_connection_without_a_reason(port, tokens):
    with Caller(port) as caller:
        caller.handshake("GSSAPI")
        answer = [caller.token(token) for token in tokens][-1]
        assert answer.error_code == FAILED and "ticket" not in answer.error_message
        assert caller.closed()


def test_tokens_without_headers_follow_the_oldest_handshake(port):
    with Caller(port) as caller:
        assert caller.handshake("GSSAPI", 0).error_code == 0
        for token, answer in ((b"ticket", CHOICE), (CHOICE, b"")):
            caller.send(struct.pack(">i", len(token)) + token)
            assert caller.receive() == answer
        assert caller.metadata().brokers
    with Caller(port) as caller:
        caller.handshake("GSSAPI", 0)
        caller.send(raw.frame(BAD))
        assert caller.closed()


def test_blocking_step_delays_no_other_client_and_ends_with_its_connection(port):
    Steps.slow.clear()
    try:
        waiting = Caller(port)
        with waiting:
            waiting.handshake("GSSAPI")
            gone = threading.Thread(target=lambda: _quietly(waiting))
            gone.start()
            assert Steps.begun.wait(30)
            test_kerberos_ticket_authenticates(port)
            waiting.close()
            gone.join(30)
    finally:
        Steps.slow.set()
    test_kerberos_ticket_authenticates(port)


def _quietly(caller) -> None:
    try:
        caller.token(SLOW)
    except (raw.Closed, OSError):
        pass
