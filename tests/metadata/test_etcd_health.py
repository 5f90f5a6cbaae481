"""What a member of etcd says of itself, and what is made of that."""

import pytest

from pylog.metadata.etcd_health import NO_LEADER, understood

SOUND = {"header": {"member_id": "7"}, "version": "3.5.9", "dbSize": "4096", "leader": "7"}


def state(answer, status=200):
    return understood("h1:2379", status, answer)


def test_a_sound_member_answers_and_the_one_that_leads_is_known():
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
def test_whatever_is_answered_nothing_raises(answer):
    assert state(answer).address == "h1:2379"
    assert not state(answer, 503).answers
