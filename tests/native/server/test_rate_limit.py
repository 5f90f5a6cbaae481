"""A rate over sliding samples."""

import pytest

from pylog._native.server.rate_limit import NONE, Throttle


def test_no_rate_is_exceeded_without_a_limit():
    throttle = Throttle(11, 1000)
    throttle.count(1 << 40, 0)
    assert not throttle.is_over(0)
    throttle.set(1)
    assert throttle.is_over(0)
    throttle.set(NONE)
    assert not throttle.is_over(0)


def test_rate_covers_the_time_since_the_oldest_sample_and_at_least_one_window():
    throttle = Throttle(3, 1000)
    assert throttle.rate(0) == 0
    throttle.count(500, 0)
    assert throttle.rate(100) == 500
    assert throttle.rate(2000) == 250
    throttle.count(700, 2000)
    assert throttle.rate(2000) == 600


def test_samples_older_than_all_windows_expire():
    throttle = Throttle(3, 1000)
    for second in range(5):
        throttle.count(100, second * 1000)
    assert throttle.rate(4000) == 150
    assert throttle.rate(6999) == pytest.approx(100 / 2.999)
    assert throttle.rate(7000) == 0
    throttle.count(9, 100_000)
    assert throttle.rate(100_000) == 9


def test_rate_is_exceeded_until_it_falls_to_the_limit():
    throttle = Throttle(11, 1000)
    throttle.set(100)
    throttle.count(400, 0)
    assert throttle.is_over(3999) and not throttle.is_over(4000)
    throttle.set(0)
    assert throttle.is_over(4000)


@pytest.mark.parametrize("make", [
    lambda: Throttle(0, 1), lambda: Throttle(1, 0), lambda: Throttle(1, 1).set(-1),
    lambda: Throttle(1, 1).count(-1, 0)])
def test_invalid_settings_are_rejected(make):
    with pytest.raises(ValueError):
        make()
