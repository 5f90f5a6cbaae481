"""Fixtures. `broker` is brokerd, then Apache Kafka: both run the same tests."""

import contextlib
import signal

import pytest


@pytest.fixture(scope="module", params=["pylog", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker(request):
    return request.getfixturevalue("brokerd" if request.param == "pylog" else "kafka")


@pytest.fixture
def virtual_time(monkeypatch):
    """Return a virtual clock for these modules of the client: `virtual_time(module, ...)`."""
    from tests.client.virtual_time import VirtualTime

    clock = VirtualTime()

    def of(*modules) -> VirtualTime:
        for module in modules:
            monkeypatch.setattr(module, "time", clock.module())
        return clock

    return of


@pytest.fixture
def play(virtual_time, monkeypatch):
    """`play(steps, **settings)`: a consumer's core on a simulated cluster."""
    from tests.client.played_consumer import player

    return player(virtual_time, monkeypatch)


@pytest.fixture
def play_member(virtual_time, monkeypatch):
    """`play_member(steps, **settings)`: a member with a simulated coordinator."""
    from tests.client.played_group import member_player

    return member_player(virtual_time, monkeypatch)


@pytest.fixture
def fetch(virtual_time):
    """`fetch(steps, **settings)`: a fetcher with simulated brokers."""
    from tests.client.played_fetches import fetch_player

    return fetch_player(virtual_time)


@pytest.fixture
def interrupted_after():
    """`with interrupted_after(seconds):` fails after that time, also in a busy loop."""
    @contextlib.contextmanager
    def limit(seconds: float):
        def spins(*_):
            raise AssertionError(f"not over after {seconds} s: a loop does not yield")

        before = signal.signal(signal.SIGALRM, spins)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    return limit
