"""Samples of groups: the first one soon, the next ones rarely, at a bounded cost."""

from collections import namedtuple

from pylog.monitor.lag import LOOK_SECONDS, SAMPLE_SECONDS, SAMPLES_MAX, GroupLags

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


def test_a_new_group_is_noted_at_the_next_look_and_then_seldom():
    lags = Watched()
    for look in range(12):
        if look == 3:
            lags.groups.append("b")
        assert lags.sample() == LOOK_SECONDS
        lags.now += LOOK_SECONDS
    assert lags.times("a") == [100.0, 110.0, 120.0]
    assert lags.times("b") == [106.0, 116.0]


def test_expensive_samples_are_taken_rarely():
    lags = Watched()
    lags.spent = 0.1
    assert lags.sample() > LOOK_SECONDS
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
