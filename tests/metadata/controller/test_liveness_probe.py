"""Verdict on a broker from the responses of its inter-broker listener, in virtual time."""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.metadata.controller import liveness_probe
from tests.metadata.virtual import run

ENDPOINTS = [SimpleNamespace(name="INTERNAL", host="a", port=1),
             SimpleNamespace(name="EXTERNAL", host="b", port=2)]
SILENT = "silent"


def judged(monkeypatch, answers, endpoints=ENDPOINTS):
    """Return (the verdict, the dials, connections left open, seconds). answers: results of the
    dials in order, the last one repeated: an exception, SILENT, or None if the listener accepts.
    """
    dials, opened = [], []

    async def go(loop):
        async def dial(host, port):
            answer = answers[min(len(dials), len(answers) - 1)]
            dials.append((host, port))
            if answer == SILENT:
                await loop.create_future()
            if answer is not None:
                raise answer
            opened.append(host)
            return None, SimpleNamespace(close=opened.pop)

        monkeypatch.setattr(asyncio, "open_connection", dial)
        began_s = loop.time()
        gone = await liveness_probe.is_gone(endpoints, "INTERNAL")
        return gone, dials, opened, round(loop.time() - began_s, 3)

    return run(go)


def test_refused_dial_is_an_immediate_verdict(monkeypatch):
    assert judged(monkeypatch, [ConnectionRefusedError()]) == (True, [("a", 1)], [], 0)


def test_a_listener_that_refuses_a_moment_later_is_a_verdict(monkeypatch):
    gone, dials, opened, seconds = judged(monkeypatch, [None] * 2 + [ConnectionRefusedError()])
    assert (gone, opened, seconds) == (True, [], 0.12)
    assert dials == [("a", 1)] * 3


def test_only_the_inter_broker_listener_is_probed(monkeypatch):
    external = [endpoint for endpoint in ENDPOINTS if endpoint.name == "EXTERNAL"]
    assert judged(monkeypatch, [ConnectionRefusedError()], external) == (False, [], [], 0)


@pytest.mark.parametrize(("answer", "seconds"), [
    (None, 0.52), (OSError("no route"), 0.52), (SILENT, 4.52)])
def test_broker_that_accepts_or_is_silent_counts_as_running(monkeypatch, answer, seconds):
    gone, dials, opened, took = judged(monkeypatch, [answer])
    assert (gone, len(dials), opened, took) == (False, 4, [], seconds)


def test_broker_without_listeners_counts_as_running(monkeypatch):
    assert judged(monkeypatch, [None], []) == (False, [], [], 0)
