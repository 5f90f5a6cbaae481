"""One broker and one registry for all modules of a worker. Each test uses subjects of its own."""

import itertools

import pytest

from pylog.testing import Broker
from tests.registry.served import Served

_numbers = itertools.count()


@pytest.fixture(scope="session")
def registry_broker():
    with Broker() as one:
        yield one


@pytest.fixture(scope="session")
def registry(registry_broker):
    with Served({"bootstrap.servers": registry_broker.bootstrap}) as one:
        yield one


@pytest.fixture
def client(registry):
    return registry.client()


@pytest.fixture
def subject():
    return f"subject-{next(_numbers)}"


@pytest.fixture
def context():
    """A context of its own, without its colons."""
    return f".context-{next(_numbers)}"


@pytest.fixture
def topic():
    """The name of a topic of schemas of its own."""
    return f"schemas-{next(_numbers)}"
