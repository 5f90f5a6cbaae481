"""One broker and one console for each module."""

import pytest

from pylog.testing import Broker
from tests.console.served import Served


@pytest.fixture(scope="module")
def broker():
    with Broker() as one:
        yield one


@pytest.fixture(scope="module")
def served(broker):
    with Served({"test": {"bootstrap.servers": broker.bootstrap}}) as one:
        yield one


@pytest.fixture
def client(served):
    return served.client()
