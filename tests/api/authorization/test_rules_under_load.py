"""ACLs that change under load: every request sent after the response uses the new ACLs, and no
request in between fails for another reason.
"""

import threading

import pytest

from pylog.protocol import api, messages
from pylog.security import authorizer
from pylog.testing import Broker
from pylog.testing.ports import free_port
from tests.api.authorization.test_rules import (
    REFUSED,
    allow,
    fetched,
    produced,
    revoke,
    rule,
    settings,
)
from tests.security.caller import Caller
from tests.wire.talk import create_topic

CHANGES, CLIENTS = 30, 3
TOPIC = "changing"


class Rights:
    """Number of changes; odd while a change is in progress."""

    def __init__(self):
        self.changes, self.is_allowed, self.is_over = 0, False, False


def work(port: int, rights: Rights, ask, wrong: list, asked: list) -> None:
    with Caller(port) as caller:
        assert caller.plain("alice", "alice").error_code == 0
        while not rights.is_over:
            before, is_allowed = rights.changes, rights.is_allowed
            error = ask(caller, TOPIC)
            asked.append(error)
            if error not in (0, REFUSED):
                wrong.append((error, "neither"))
            elif before % 2 == 0 and rights.changes == before and (error == 0) != is_allowed:
                wrong.append((error, is_allowed, before))


@pytest.fixture
def ports():
    ports = free_port(), free_port()
    with Broker(settings=settings(ports)):
        create_topic(ports[0], TOPIC)
        yield ports


@pytest.mark.parametrize(("ask", "operation"), [
    (produced, authorizer.WRITE), (fetched, authorizer.READ)], ids=["produce", "fetch"])
def test_a_change_counts_for_every_request_after_it(ports, ask, operation):
    rights, wrong, asked = Rights(), [], []
    allow(ports, *[rule(f"other-{number}", operation) for number in range(2000)])
    threads = [threading.Thread(target=work, args=(ports[1], rights, ask, wrong, asked))
               for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for _ in range(CHANGES):
        rights.changes += 1
        if rights.is_allowed:
            revoke(ports, TOPIC)
        else:
            allow(ports, rule(TOPIC, operation))
        rights.is_allowed = not rights.is_allowed
        rights.changes += 1
        done = len(asked)
        # So that every change affects at least one request.
        while len(asked) < done + 2 * CLIENTS and any(thread.is_alive() for thread in threads):
            threads[0].join(0.001)
    rights.is_over = True
    for thread in threads:
        thread.join(60)
    assert not wrong and {0, REFUSED} == set(asked), (wrong[:5], len(asked))


def test_credentials_that_come_and_go_take_no_right_away(ports):
    allow(ports, rule(TOPIC, authorizer.WRITE))
    with Caller(ports[1]) as caller, Caller(ports[0]) as admin:
        assert caller.plain("alice", "alice").error_code == 0
        for number in range(5):
            new = messages.AlterUserScramCredentialsRequest
            admin.ask(api.ALTER_USER_SCRAM_CREDENTIALS, 0, new(deletions=[], upsertions=[
                new.ScramCredentialUpsertion(
                    name=f"user-{number}", mechanism=1, iterations=4096, salt=b"s" * 16,
                    salted_password=b"p" * 32)]))
            assert produced(caller, TOPIC) == 0
