"""Throttled partitions, by settings of topics and brokers."""

from types import SimpleNamespace

import pytest

from pylog._native.server.rate_limit import NONE
from pylog.config import ConfigError, Settings
from pylog.replication.throttles import Throttles

US = 2
LEADERS, FOLLOWERS = "leader.replication.throttled.replicas", \
    "follower.replication.throttled.replicas"
LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", \
    "follower.replication.throttled.rate"
TOPIC = SimpleNamespace(name="t", id=b"t" * 16, partitions=[None] * 3)


class Logs:
    """Three logs, of which the last is not open."""

    def __init__(self):
        self.marks = {}

    def get(self, name, index):
        if index == 2:
            return None
        return SimpleNamespace(set_throttled=lambda *marks: self.marks.__setitem__(index, marks))


def marked(throttles, logs, **configs) -> dict:
    logs.marks.clear()
    texts = {LEADERS: configs.get("leaders", ""), FOLLOWERS: configs.get("followers", "")}
    throttles.take(SimpleNamespace(topic_config=lambda name: texts), TOPIC)
    return dict(logs.marks)


@pytest.fixture
def logs():
    return Logs()


@pytest.fixture
def throttles(logs):
    return Throttles(Settings(), US, logs, lambda: 0)


def test_replicas_of_this_broker_count_that_are_named(throttles, logs):
    assert marked(throttles, logs, leaders="0:1,1:2", followers="0:2, 1:3") == {
        0: (False, True), 1: (True, False)}
    assert marked(throttles, logs, leaders="*") == {0: (True, False), 1: (True, False)}


def test_partitions_no_longer_throttled_are_unmarked_and_others_unchecked(throttles, logs):
    assert marked(throttles, logs) == {}
    marked(throttles, logs, followers="*")
    assert marked(throttles, logs) == {0: (False, False), 1: (False, False)}
    assert marked(throttles, logs) == {}
    assert marked(throttles, logs, leaders="0:1") == {}


def test_rates_are_those_of_this_broker_else_of_the_cluster_else_none(logs):
    settings = Settings()
    throttles = Throttles(settings, US, logs, lambda: 0)
    throttles.leading.count(1000, 0)
    for cluster, own, over in (({}, {}, False), ({LEADER_RATE: "10"}, {}, True),
                               ({LEADER_RATE: "10"}, {LEADER_RATE: "2000"}, False),
                               ({}, {FOLLOWER_RATE: "0"}, False)):
        settings.set_dynamic(cluster, own)
        throttles.take_settings()
        assert throttles.leading.is_over(0) == over, (cluster, own)
    assert throttles.stats() == {"throttled_leading": 1000, "throttled_following": 0}
    assert NONE == 2**63 - 1


@pytest.mark.parametrize("text,words", [
    ("-1", "Value must be at least 0"), ("many", "Not a number of type LONG")])
def test_invalid_rate_is_rejected(text, words):
    with pytest.raises(ConfigError, match=f"{LEADER_RATE}: {words}"):
        Settings().check_dynamic({LEADER_RATE: text}, True)


@pytest.mark.parametrize(("texts", "rates"), [
    ({}, (500, 200, 100, 0)),
    ({"replication.quota.window.num": "2", "replication.quota.window.size.seconds": "5"},
     (200, 200, 0, 0))])
def test_rate_is_measured_over_the_configured_windows(logs, texts, rates):
    rate = Throttles(Settings(texts), US, logs, lambda: 0).leading
    rate.count(1000, 0)
    assert tuple(round(rate.rate(now_ms)) for now_ms in (2000, 5000, 10_001, 12_000)) == rates
