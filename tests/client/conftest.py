"""`broker` is brokerd, then Apache Kafka: the same tests for both."""

import pytest


@pytest.fixture(scope="module", params=["pylog", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker(request):
    return request.getfixturevalue("brokerd" if request.param == "pylog" else "kafka")


@pytest.fixture
def virtual_time(monkeypatch):
    """A clock for these modules of the client: `virtual_time(module, ...)`."""
    from tests.client.virtual_time import VirtualTime

    clock = VirtualTime()

    def of(*modules) -> VirtualTime:
        for module in modules:
            monkeypatch.setattr(module, "time", clock.module())
        return clock

    return of
