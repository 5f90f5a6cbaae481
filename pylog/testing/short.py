"""Short names of the fixtures: `pytest_plugins = ["pylog.testing.short"]` in conftest.py.

Owns: nothing.
Invariants: each name is that of the fixture pylog_NAME of pylog.testing.plugin.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pylog.client import Consumer, Producer, aio
    from pylog.testing import Broker, Cluster, Topic


@pytest.fixture
def broker(pylog_broker: Broker) -> Broker:
    """Return a broker without topics and groups."""
    return pylog_broker


@pytest.fixture
def cluster(pylog_cluster: Cluster) -> Cluster:
    """Return a new cluster of three brokers."""
    return pylog_cluster


@pytest.fixture
def topic(pylog_topic: Topic) -> Topic:
    """Return a topic named after the test."""
    return pylog_topic


@pytest.fixture
def producer(pylog_producer: Producer) -> Producer:
    """Return a pylog.client.Producer for the broker."""
    return pylog_producer


@pytest.fixture
def consumer(pylog_consumer: Consumer) -> Consumer:
    """Return a pylog.client.Consumer for the broker, subscribed to the topic."""
    return pylog_consumer


@pytest.fixture
def aio_producer(pylog_aio_producer: aio.Producer) -> aio.Producer:
    """Return a pylog.client.aio.Producer that is not started."""
    return pylog_aio_producer


@pytest.fixture
def aio_consumer(pylog_aio_consumer: aio.Consumer) -> aio.Consumer:
    """Return a pylog.client.aio.Consumer that is not started."""
    return pylog_aio_consumer


@pytest.fixture
def make_producer(pylog_make_producer: Callable[..., Producer]) -> Callable[..., Producer]:
    """Create pylog.client.Producers for the broker."""
    return pylog_make_producer


@pytest.fixture
def make_consumer(pylog_make_consumer: Callable[..., Consumer]) -> Callable[..., Consumer]:
    """Create pylog.client.Consumers for the broker."""
    return pylog_make_consumer


@pytest.fixture(scope="module")
def module_broker(pylog_module_broker: Broker) -> Broker:
    """Return one broker for a module."""
    return pylog_module_broker


@pytest.fixture(scope="session")
def session_broker(pylog_session_broker: Broker) -> Broker:
    """Return one broker for the whole run."""
    return pylog_session_broker
