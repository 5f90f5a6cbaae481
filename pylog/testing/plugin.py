"""The pytest plugin: fixtures for brokers, topics and clients.

Owns: the brokers of one pytest run, which stop with it.
Invariants: nothing of the broker is imported before a fixture is used; tests do not see each
  other's changes: topics and groups are removed, and a broker with a changed clock, disk or
  settings is not reused.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

TYPE_CHECKING = False  # Nothing of the broker is imported before a fixture is used.
if TYPE_CHECKING:
    from pylog.client import Consumer, Producer, aio
    from pylog.testing import Broker, Cluster, Topic

THREAD, PROCESS = "thread", "process"
MEMORY, TMP_PATH = "memory", "tmp_path"
NAME_CHARACTERS_MAX = 200
IDLE_MAX = 4  # Idle brokers kept for reuse, one per settings.
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9._-]+")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pylog", "a pylog broker for tests")
    group.addoption("--pylog-broker", choices=[THREAD, PROCESS], default=None,
                    help="brokers on threads of this process (default), or as child processes")
    parser.addini("pylog_broker", "thread or process; --pylog-broker takes precedence",
                  default=THREAD)
    parser.addini("pylog_broker_directory", "where brokers keep their data: memory, tmp_path "
                  "(which pytest keeps for a while), or a directory", default=MEMORY)
    parser.addini("pylog_broker_settings", "settings of every broker, key=value a line",
                  type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "pylog_broker(own=False, process=None, **settings): configure the broker of "
                   "pylog_broker; settings have Kafka's names, with underscores")
    config.addinivalue_line(
        "markers", "pylog_topic(name=None, partitions=1, **settings): configure the topic of "
                   "pylog_topic")
    config.addinivalue_line(
        "markers", "pylog_cluster(count=3, processes=False, **settings): configure the cluster of "
                   "pylog_cluster")


class Brokers:
    """The brokers of a run. Idle ones are reused by tests with the same settings."""

    def __init__(self, config: pytest.Config, tmp_path_factory: pytest.TempPathFactory):
        self._kind = config.getoption("--pylog-broker") or config.getini("pylog_broker")
        self._directory_kind = config.getini("pylog_broker_directory")
        self._settings = dict(_setting(line) for line in config.getini("pylog_broker_settings"))
        self._tmp_path_factory = tmp_path_factory
        self._idle: dict[tuple[Any, ...], Broker] = {}
        self._all: list[Broker] = []

    def make(self, settings: dict[str, Any], process: bool | None = None) -> Broker:
        """Start a new broker."""
        from pylog.testing.broker import Broker

        made = Broker(self._directory(), settings={**self._settings, **settings},
                      process=self._kind == PROCESS if process is None else process)
        self._all.append(made)
        return made.start()

    def _directory(self) -> Any:
        if self._directory_kind == MEMORY:
            return None
        if self._directory_kind == TMP_PATH:
            return self._tmp_path_factory.mktemp("pylog")
        return tempfile.mkdtemp(prefix="pylog-", dir=self._directory_kind)

    def acquire(self, settings: dict[str, Any], process: bool | None) -> Broker:
        """Return an idle broker without topics and groups, or a new one."""
        found = self._idle.pop(_options(settings, process), None)
        return found if found is not None else self.make(settings, process)

    def release(self, broker: Broker, settings: dict[str, Any], process: bool | None) -> None:
        """Keep a test's broker for reuse if it can be reset, otherwise stop it."""
        options = _options(settings, process)
        if options in self._idle or not broker.reset():
            self.stop(broker)
            return
        if len(self._idle) == IDLE_MAX:
            self.stop(self._idle.pop(next(iter(self._idle))))
        self._idle[options] = broker

    def stop(self, broker: Broker) -> None:
        """Stop a broker and remove its data."""
        broker.close()
        self._all.remove(broker)

    def close(self) -> None:
        for broker in list(self._all):
            self.stop(broker)


@pytest.fixture(scope="session")
def pylog_brokers(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
                  ) -> Iterator[Brokers]:
    """Create brokers: `pylog_brokers.make({"message.max.bytes": 1000})`. All stop with the run."""
    brokers = Brokers(pytestconfig, tmp_path_factory)
    yield brokers
    brokers.close()


@pytest.fixture(scope="session")
def pylog_session_broker(pylog_brokers: Brokers) -> Broker:
    """Return one broker for the whole run, without cleanup between tests."""
    return pylog_brokers.make({})


@pytest.fixture(scope="module")
def pylog_module_broker(pylog_brokers: Brokers) -> Iterator[Broker]:
    """Return one broker for a module, without cleanup between its tests."""
    made = pylog_brokers.make({})
    yield made
    pylog_brokers.stop(made)


@pytest.fixture
def pylog_broker(request: pytest.FixtureRequest, pylog_brokers: Brokers) -> Iterator[Broker]:
    """Return a broker without topics and groups; configure it with @pytest.mark.pylog_broker."""
    settings = _marked(request, "pylog_broker")
    own, process = settings.pop("own", False), settings.pop("process", None)
    if own:
        made = pylog_brokers.make(settings, process)
        yield made
        pylog_brokers.stop(made)
    else:
        acquired = pylog_brokers.acquire(settings, process)
        yield acquired
        pylog_brokers.release(acquired, settings, process)


@pytest.fixture
def pylog_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Return a new cluster of three brokers; configure it with @pytest.mark.pylog_cluster."""
    from pylog.testing.cluster import Cluster

    settings = _marked(request, "pylog_cluster")
    count, processes = settings.pop("count", 3), settings.pop("processes", False)
    with Cluster(count, processes=processes, settings=settings) as cluster:
        yield cluster


@pytest.fixture
def pylog_topic(request: pytest.FixtureRequest, pylog_broker: Broker) -> Topic:
    """Return a topic named after the test; configure it with
    `@pytest.mark.pylog_topic(partitions=3)`.
    """
    return pylog_broker.create_topic(**{"name": _name(request), **_marked(request, "pylog_topic")})


@pytest.fixture
def pylog_make_producer(pylog_broker: Broker) -> Iterator[Callable[..., Producer[Any, Any]]]:
    """Create pylog.client.Producers for the broker: `pylog_make_producer(linger_ms=5)`."""
    made: list[Producer[Any, Any]] = []

    def make(**settings: Any) -> Producer[Any, Any]:
        from pylog.client import Producer

        made.append(Producer(**{"bootstrap_servers": pylog_broker.bootstrap, **settings}))
        return made[-1]

    yield make
    _close_all(made)


@pytest.fixture
def pylog_make_consumer(request: pytest.FixtureRequest, pylog_broker: Broker
                        ) -> Iterator[Callable[..., Consumer[Any, Any]]]:
    """Create pylog.client.Consumers for the broker: `pylog_make_consumer("topic", group_id="g")`.

    By default they read from the beginning, in a group named after the test.
    """
    made: list[Consumer[Any, Any]] = []

    def make(*topics: Topic | str, **settings: Any) -> Consumer[Any, Any]:
        from pylog.client import Consumer

        made.append(Consumer(**{
            "bootstrap_servers": pylog_broker.bootstrap, "group_id": _name(request),
            "auto_offset_reset": "earliest", **settings}))
        if topics:
            made[-1].subscribe([str(name) for name in topics])
        return made[-1]

    yield make
    _close_all(made)


@pytest.fixture
def pylog_producer(pylog_make_producer: Callable[..., Producer]) -> Producer:
    """Return a pylog.client.Producer for the broker."""
    return pylog_make_producer()


@pytest.fixture
def pylog_consumer(pylog_make_consumer: Callable[..., Consumer], pylog_topic: Topic) -> Consumer:
    """Return a pylog.client.Consumer for the broker, subscribed to the topic."""
    return pylog_make_consumer(pylog_topic)


@pytest.fixture
def pylog_aio_producer(pylog_broker: Broker) -> aio.Producer:
    """Return a pylog.client.aio.Producer that is not started: `async with pylog_aio_producer:`."""
    from pylog.client import aio

    return aio.Producer(bootstrap_servers=pylog_broker.bootstrap)


@pytest.fixture
def pylog_aio_consumer(request: pytest.FixtureRequest, pylog_broker: Broker) -> aio.Consumer:
    """Return a pylog.client.aio.Consumer that is not started: `async with pylog_aio_consumer:`.

    It reads from the beginning, in a group named after the test. Subscribe it after the start.
    """
    from pylog.client import aio

    return aio.Consumer(bootstrap_servers=pylog_broker.bootstrap, group_id=_name(request),
                        auto_offset_reset="earliest")


# ---- Short names, which pylog.testing.short defines without the warning.


def _deprecated(name: str, scope: Any = "function") -> Any:
    """Return a fixture with the name that a fixture had before release 0.1."""

    @pytest.fixture(name=name, scope=scope)
    def short(request: pytest.FixtureRequest) -> Any:
        warnings.warn(
            f"the fixture {name} is now named pylog_{name}. To keep the short names, write "
            'pytest_plugins = ["pylog.testing.short"] in conftest.py', DeprecationWarning,
            stacklevel=1)
        return request.getfixturevalue(f"pylog_{name}")

    return short


broker = _deprecated("broker")
topic = _deprecated("topic")
producer = _deprecated("producer")
consumer = _deprecated("consumer")
make_producer = _deprecated("make_producer")
make_consumer = _deprecated("make_consumer")
module_broker = _deprecated("module_broker", "module")
session_broker = _deprecated("session_broker", "session")


def _marked(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    """Return the keywords of a test's marker."""
    marker = request.node.get_closest_marker(name)
    return {} if marker is None else dict(marker.kwargs)


def _close_all(clients: list[Any]) -> None:
    for client in reversed(clients):
        client.close()


def _name(request: pytest.FixtureRequest) -> str:
    return _NOT_IN_NAMES.sub("-", request.node.name).strip("-.")[:NAME_CHARACTERS_MAX] or "topic"


def _options(settings: dict[str, Any], process: bool | None) -> tuple[Any, ...]:
    return process, tuple(sorted((name, repr(value)) for name, value in settings.items()))


def _setting(line: str) -> tuple[str, str]:
    name, equals, text = line.partition("=")
    if not equals:
        raise pytest.UsageError(f"pylog_broker_settings: {line!r} is not key=value")
    return name.strip(), text.strip()
