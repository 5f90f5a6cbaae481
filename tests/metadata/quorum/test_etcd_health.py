"""An etcd member's health response, and its evaluation."""

import http.client
import json
from types import SimpleNamespace

import pytest

from pylog.metadata.quorum.etcd_health import NO_LEADER, state_of, understood
from pylog.metadata.quorum.key_value import MemberState

SOUND = {"header": {"member_id": "7"}, "version": "3.5.9", "dbSize": "4096", "leader": "7"}


def state(answer, status=200):
    return understood("h1:2379", status, answer)


def test_healthy_member_responds_and_the_leader_is_identified():
    found = state(SOUND)
    assert found.answers and found.leads and not found.reason
    assert (found.version, found.stored_bytes) == ("3.5.9", 4096)
    assert not state({**SOUND, "leader": "8"}).leads


@pytest.mark.parametrize("answer", [
    {**SOUND, "leader": "0"}, {key: SOUND[key] for key in SOUND if key != "leader"}])
def test_a_member_without_a_leader_cannot_be_used(answer):
    found = state(answer)
    assert not found.answers and not found.leads and found.reason == NO_LEADER


def test_an_alarm_is_the_reason():
    found = state({**SOUND, "errors": ["memberID:7 alarm:NOSPACE "]})
    assert not found.answers and "NOSPACE" in found.reason


@pytest.mark.parametrize("answer", [
    [], "no", {}, {"header": [], "leader": {}, "dbSize": "-"}, {"leader": "7", "errors": 5}])
def test_no_response_raises(answer):
    assert state(answer).address == "h1:2379"
    assert not state(answer, 503).answers


class Dial:
    """A connection to a member: its response, (status, bytes), or an exception."""

    def __init__(self, answer):
        self.answer, self.asked, self.is_closed = answer, [], False

    def request(self, *asked):
        self.asked.append(asked)

    def getresponse(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        status, data = self.answer
        return SimpleNamespace(status=status, read=lambda: data)

    def close(self):
        self.is_closed = True


@pytest.mark.parametrize(("token", "headers"), [
    ("", {"Content-Type": "application/json"}),
    ("word", {"Content-Type": "application/json", "Authorization": "word"})])
def test_member_is_queried_for_its_own_state(token, headers):
    dial = Dial((200, json.dumps(SOUND).encode()))
    assert state_of("h1:2379", lambda: dial, token) == state(SOUND)
    assert dial.asked == [("POST", "/v3/maintenance/status", "{}", headers)] and dial.is_closed


@pytest.mark.parametrize(("answer", "reason"), [
    (OSError("reset"), "reset"), (TimeoutError(), "TimeoutError"),
    (http.client.BadStatusLine("x"), "x"), ((200, b""), "Expecting value: line 1 column 1 (char 0)")
])
def test_member_with_an_unusable_response_counts_as_missing(answer, reason):
    dial = Dial(answer)
    assert state_of("h1:2379", lambda: dial, "") == MemberState(
        "h1:2379", False, False, "", -1, reason)
    assert dial.is_closed


def test_member_that_rejects_is_reported_as_unreachable():
    assert state({"error": "no"}, 503) == MemberState(
        "h1:2379", False, False, "", -1, "HTTP 503: {'error': 'no'}")


def test_non_numeric_database_size_is_reported_as_unknown():
    assert state({**SOUND, "dbSize": "many"}).stored_bytes == -1
