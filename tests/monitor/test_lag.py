"""Samples of groups: the first one soon, the next ones rarely, at a bounded cost."""

import json
from collections import namedtuple
from types import SimpleNamespace

from pylog.coordinator.groups import metrics as group_metrics
from pylog.monitor import lag
from pylog.monitor.lag import FIRST_SAMPLE_SECONDS, SAMPLE_SECONDS, SAMPLES_MAX, GroupLags

Row = namedtuple("Row", ("id", "generation", "offsets"))


class Watched(GroupLags):
    """Groups and clock are simulated; a sample takes `spent` seconds."""

    def __init__(self):
        super().__init__(None, None, None, lambda: 0, self.clock, None)
        self.now, self.spent, self.groups = 100.0, 0.0, ["a"]

    def clock(self):
        self.now += self.spent / 2
        return self.now

    def _rows(self):
        return [Row(name, 1, {}) for name in self.groups]

    def _lags(self, rows):
        return NoLags

    def times(self, name):
        return [sample.seconds for sample in self._samples[name]]


class NoLags:
    parts = committed = ()

    class figures:
        @staticmethod
        def columns(*names):
            return (), ()


def test_new_group_is_sampled_at_the_next_check_and_rarely_later():
    lags = Watched()
    for look in range(12):
        if look == 3:
            lags.groups.append("b")
        assert lags.sample() == FIRST_SAMPLE_SECONDS
        lags.now += FIRST_SAMPLE_SECONDS
    assert lags.times("a") == [100.0, 110.0, 120.0]
    assert lags.times("b") == [106.0, 116.0]


def test_expensive_samples_are_taken_rarely():
    lags = Watched()
    lags.spent = 0.1
    assert lags.sample() > FIRST_SAMPLE_SECONDS
    lags.spent = 5.0
    assert lags.sample() == SAMPLE_SECONDS


def test_samples_are_bounded_and_end_with_their_group():
    lags = Watched()
    for _ in range(2 * SAMPLES_MAX):
        lags.sample()
        lags.now += SAMPLE_SECONDS
    assert len(lags.times("a")) == SAMPLES_MAX
    lags.groups = []
    lags.sample()
    assert lags._samples == {}


class Summarized(Watched):
    """Groups with these names; the later ones have the larger lag."""

    def __init__(self, names):
        super().__init__()
        self.groups = names

    def _rows(self):
        return [group_metrics.Row(name, "Empty", 1, 0, {}) for name in self.groups]

    def _aged(self, _lags):
        return SimpleNamespace(parts=[SimpleNamespace(group=name) for name in self.groups],
                               records=range(len(self.groups)), ages_ms=[1500] * len(self.groups))


def test_a_short_summary_of_groups_is_complete():
    assert Summarized(["a", "b"]).summary() == {
        "groups": [{"group": name, "state": "Empty", "members": 0, "lag_records": records,
                    "lag_seconds": 1.5} for name, records in (("b", 1), ("a", 0))],
        "left_out": 0, "truncated": False}


def test_a_summary_of_groups_with_long_names_is_truncated_to_the_largest_lags():
    names = [f"{number:04}" + "\x01" * 32_000 for number in range(500)]
    found = Summarized(names).summary()
    shown = len(found["groups"])
    assert [group["group"] for group in found["groups"]] == names[:-shown - 1:-1]
    assert 0 < shown < 500 and (found["left_out"], found["truncated"]) == (500 - shown, True)
    assert lag.SUMMARY_BYTES_MAX / 2 < len(json.dumps(found)) <= 1.1 * lag.SUMMARY_BYTES_MAX


def test_a_summary_has_at_most_the_limit_of_groups(monkeypatch):
    monkeypatch.setattr(lag, "GROUPS_MAX", 2)
    lags = Summarized(["a", "b", "c"])
    lags._left_out = [4, 5]
    found = lags.summary()
    assert [group["group"] for group in found["groups"]] == ["c", "b"]
    assert (found["left_out"], found["truncated"]) == (10, True)


def test_group_names_in_a_scrape_are_bounded():
    lags, rooms = Watched(), []
    lags._call_on_loop = lambda _make, room: rooms.append(room)
    GroupLags._rows(lags)
    name = "g" * 32_000
    assert sum(rooms[0].take(name, 1) for _ in range(100)) * 2 * len(name) \
        <= lag.NAME_CHARACTERS_MAX


def test_long_names_of_members_are_cut_in_an_explanation():
    lags = Summarized(["g"])
    member = {"member_id": "c" * 32_000 + "-unique", "client_id": "c" * 32_000, "host": "/h",
              "instance_id": None, "partitions": [("t", 0)]}
    lags._call_on_loop = lambda make, *_: [member] if make is group_metrics.members else None
    throttled = {"c" * 32_000: 7}
    lags._quotas = SimpleNamespace(throttled_ms=lambda client_id, _: throttled[client_id])
    lags._coordinator = SimpleNamespace(history=lambda *_: [])
    lags._aged = lambda _lags: SimpleNamespace(
        parts=[SimpleNamespace(key=("t", 0), committed=0, commit_ms=0)], records=[1], ages_ms=[0],
        figures=SimpleNamespace(row=lambda _: dict.fromkeys(
            ("start_offset", "high_watermark", "last_stable_offset", "cold_reads"), 0)))
    view = lags.explain("g")
    [shown] = view["members"]
    assert len(shown["member_id"]) < 500 and shown["member_id"].endswith("-unique")
    assert len(shown["client_id"]) < 500 and shown["instance_id"] is None
    assert shown["throttled_ms"] == 7 and shown["partitions"] == 1
    assert [part["member_id"] for part in view["partitions"]] == [shown["member_id"]]
