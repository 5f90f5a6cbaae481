"""Custom authorizers that fail, on a virtual clock."""

import logging

import pytest

from pylog.security import authorizer
from pylog.security.authorizer import Authorizer, Decision
from pylog.security.authorization.authorizer_guard import QUIET_NS, SLOW_NS, AuthorizerGuard
from pylog.security.principals import user

ALICE = user("alice")
WHAT = ALICE, "h", authorizer.READ, authorizer.TOPIC, "t"
YES = Decision(True, None, "the test")


class Scripted(Authorizer):
    """Returns a given result, or raises it; each decision takes `ns`."""

    from_image = True

    def __init__(self):
        self.answer, self.trouble, self.ns, self.now_ns = YES, None, 0, 0
        self.taken = []

    def authorize(self, principal, host, operation, resource_type, resource_name):
        return self._answered()

    def authorize_any(self, principal, host, operation, resource_type):
        return self._answered()

    def _answered(self):
        self.now_ns += self.ns
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def take(self, security, changed):
        if self.trouble is not None:
            raise self.trouble
        self.taken.append(changed)
        return False


@pytest.fixture
def held():
    return Scripted()


@pytest.fixture
def contained(held):
    return AuthorizerGuard(held, "acme:Rules", lambda: held.now_ns)


def test_valid_decision_is_returned_unchanged(held, contained):
    assert contained.authorize(*WHAT) is YES and contained.authorize_any(*WHAT[:4]) is YES
    assert contained.take({}, frozenset()) is False and contained.from_image


@pytest.mark.parametrize("answer,reason", [
    (RuntimeError("s3cret"), "the authorizer failed: RuntimeError"),
    (True, "the authorizer did not return a Decision"),
    (None, "the authorizer did not return a Decision"),
    (Decision("no", None, ""), "the authorizer did not return a Decision"),
    (Decision(True, "a rule", ""), "the authorizer did not return a Decision"),
    (Decision(True, None, None), "the authorizer did not return a Decision"),
], ids=["raises", "a bool", "nothing", "allowed is no bool", "no rule", "no reason"])
def test_invalid_decision_denies_and_is_not_cached(held, contained, answer, reason):
    held.answer = answer
    assert contained.authorize(*WHAT) == contained.authorize_any(*WHAT[:4]) \
        == Decision(False, None, reason)
    held.answer = YES
    assert contained.authorize(*WHAT) is YES
    assert not contained.from_image


def test_requests_are_denied_until_failed_acls_are_loaded(held, contained):
    held.trouble = RuntimeError("gone")
    assert contained.take({}, frozenset()) is None and contained.is_behind
    assert not contained.authorize(*WHAT).allowed and not contained.authorize_any(*WHAT[:4]).allowed
    held.trouble = None
    # It accepts all of the ACLs then, and no earlier permission counts.
    assert contained.take({}, frozenset()) is None and held.taken == [None]
    assert contained.authorize(*WHAT) is YES and not contained.is_behind
    assert contained.take({}, frozenset()) is False and held.taken[1:] == [frozenset()]


def test_failures_are_logged_once_a_minute_with_their_number(held, contained, caplog):
    caplog.set_level(logging.ERROR, "pylog.authorizer")
    held.answer = RuntimeError("gone")
    for _ in range(3):
        contained.authorize(*WHAT)
    held.now_ns += QUIET_NS
    contained.authorize(*WHAT)
    assert [(record.message, record.left_out, record.exc_info[1]) for record in caplog.records] == [
        ("the authorizer failed", 0, held.answer), ("the authorizer failed", 2, held.answer)]
    assert caplog.records[0].authorizer == "acme:Rules"


def test_slow_decision_counts_and_is_logged(held, contained, caplog):
    caplog.set_level(logging.ERROR, "pylog.authorizer")
    held.ns = SLOW_NS - 1
    contained.authorize(*WHAT)
    assert not caplog.records
    held.ns = SLOW_NS
    assert contained.authorize(*WHAT) is YES
    assert [record.ms for record in caplog.records] == [SLOW_NS // 1_000_000]
