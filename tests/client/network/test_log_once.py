"""Log messages of a client, and their frequency."""

import logging

import pytest

from pylog.client.network import log_once
from pylog.client.network.log_once import Notices


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(log_once.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, logger="pylog.client")
    return lambda: [record.getMessage() for record in caplog.records]


def test_cause_is_logged_once_a_minute_with_its_count(clock, said):
    told = Notices("producer p")
    for _ in range(5):
        told.warn("cause", "no connection to %s", "b:9092")
        clock[0] += 1
    assert said() == ["producer p: no connection to b:9092"]
    clock[0] += 60
    told.warn("cause", "no connection to %s", "b:9092")
    assert said()[1:] == [
        "producer p: no connection to b:9092 (4 times more in the last 65 s)"]


def test_causes_are_logged_separately_and_so_is_their_end(clock, said):
    told = Notices("consumer c")
    told.warn("one", "one")
    told.fail("other", "other")
    told.over("one", "one is over")
    told.over("never", "nothing was said of it")
    told.warn("one", "one again")
    assert said() == ["consumer c: one", "consumer c: other", "consumer c: one is over",
                      "consumer c: one again"]


def test_temporary_condition_is_logged_only_if_it_persists(clock, said):
    told = Notices("p")
    told.warn_if_it_stays("topic", "topic t is not there")
    clock[0] += 1
    told.warn_if_it_stays("topic", "topic t is not there")
    assert said() == []
    clock[0] += 1
    told.warn_if_it_stays("topic", "topic t is not there")
    assert said() == ["p: topic t is not there"]


def test_recovered_cause_is_logged_again(clock, said):
    told = Notices("p")
    told.warn_if_it_stays("topic", "topic t is not there")
    told.over("topic", "topic t is there")
    clock[0] += 5
    told.warn_if_it_stays("topic", "topic t is not there")
    assert said() == []


def test_causes_that_are_remembered_are_bounded(clock, said):
    told = Notices("p")
    for number in range(log_once.CAUSES_MAX * 2):
        told.warn(number, "cause %d", number)
        told.warn_if_it_stays(-number, "cause %d", -number)
    assert len(told._logged) <= log_once.CAUSES_MAX and len(told._since) <= log_once.CAUSES_MAX + 1
