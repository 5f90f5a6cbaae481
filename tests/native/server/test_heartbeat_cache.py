"""Cached responses: the native table (heartbeat_cache_units.c), and its entries in Python."""

import subprocess

import pytest

from pylog._native.server.heartbeat_cache import Repeat, Repeats
from pylog._native.server.reactor import RequestContext
from tests.csrc.programs import SANITIZED, built

FRAME = bytes(12)


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_many_responses_and_threads_that_expire_them(sanitizer):
    program = built("heartbeat_cache_units", sanitizer, ("tables/heartbeat_cache.c",))
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, env=SANITIZED)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")


def _answered(repeat, body=b"body", **more):
    """A request whose response was FRAME."""
    context = RequestContext(token=1, api_key=68, api_version=1, **more)
    context.repeat = repeat
    if body is not None:
        context.take_body()
        context.keep_body(body)
        context.answer_again(FRAME)
    return context


@pytest.fixture
def table():
    return Repeats()


def test_table_contains_only_offered_responses_until_they_expire(table):
    one, other = Repeat(table), Repeat(table)
    assert not one.is_offered and one.end() == one.last_ms(0) == -1
    _answered(one)
    assert len(table) == 0
    one.offer(1000)
    other.offer(1000)
    _answered(one, client_id="me")
    _answered(other, b"other")
    assert len(table) == 2 and one.is_offered and one.last_ms(-2) == -1
    assert one.end() == -1 and len(table) == 1 and not one.is_offered
    _answered(one)
    assert len(table) == 1, "an answer that comes after the end"


def test_response_in_flight_during_an_acl_change_is_not_cached(table):
    before = Repeat(table)
    before.offer(1000)
    table.void()
    _answered(before)
    assert len(table) == 0
    after = Repeat(table)
    after.offer(1000)
    _answered(after)
    assert len(table) == 1


def test_released_entries_disappear_from_the_table(table):
    one = Repeat(table)
    one.offer(1000)
    context = _answered(one)
    assert len(table) == 1
    del one, context
    assert len(table) == 0


def test_missing_or_too_long_body_is_not_cached(table):
    one = Repeat(table)
    one.offer(1000)
    context = _answered(one, None)
    context.take_body()
    context.answer_again(FRAME)
    _answered(one, bytes(5000))
    assert len(table) == 0


def test_table_survives_its_creator(table):
    one = Repeat(Repeats())
    one.offer(1000)
    _answered(one)
    assert one.end() == -1
