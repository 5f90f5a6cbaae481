"""The pytest plugin: fixtures for brokers, topics and clients.

Owns: the brokers of one pytest run, which stop with it.
Invariants: nothing of the broker is imported before a fixture is used; tests do not see each
  other's changes: topics and groups are removed, and a broker with a changed clock, disk or
  settings is not reused.
"""

from __future__ import annotations

import re
import tempfile
from typing import Any

import pytest

THREAD, PROCESS = "thread", "process"
MEMORY, TMP_PATH = "memory", "tmp_path"
NAME_CHARACTERS_MAX = 200
AT_REST_MAX = 4  # Idle brokers kept for reuse, one per settings.
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
        "markers", "pylog_broker(own=False, process=None, **settings): how the broker fixture's "
                   "broker is to be; settings by Kafka's names with underscores")
    config.addinivalue_line(
        "markers", "pylog_topic(name=None, partitions=1, **settings): how the topic fixture's "
                   "topic is to be")


class Brokers:
    """The brokers of a run. Idle ones are reused by tests with the same settings."""

    def __init__(self, config: pytest.Config, tmp_path_factory: pytest.TempPathFactory):
        self._kind = config.getoption("--pylog-broker") or config.getini("pylog_broker")
        self._place = config.getini("pylog_broker_directory")
        self._settings = dict(_setting(line) for line in config.getini("pylog_broker_settings"))
        self._tmp_path_factory = tmp_path_factory
        self._at_rest: dict[Any, Any] = {}
        self._all: list[Any] = []

    def make(self, settings: dict[str, Any], process: bool | None = None) -> Any:
        """Start a new broker."""
        from pylog.testing.broker import Broker

        made = Broker(self._directory(), settings={**self._settings, **settings},
                      process=self._kind == PROCESS if process is None else process)
        self._all.append(made)
        return made.start()

    def _directory(self) -> Any:
        if self._place == MEMORY:
            return None
        if self._place == TMP_PATH:
            return self._tmp_path_factory.mktemp("pylog")
        return tempfile.mkdtemp(prefix="pylog-", dir=self._place)

    def take(self, settings: dict[str, Any], process: bool | None) -> Any:
        """Return an idle broker without topics and groups, or a new one."""
        found = self._at_rest.pop(_wish(settings, process), None)
        return found if found is not None else self.make(settings, process)

    def give(self, broker: Any, settings: dict[str, Any], process: bool | None) -> None:
        """Take a broker back from a test. Keeps it for reuse if it can be reset, otherwise stops
        it.
        """
        wish = _wish(settings, process)
        if wish in self._at_rest or not broker.reset():
            self.end(broker)
            return
        if len(self._at_rest) == AT_REST_MAX:
            self.end(self._at_rest.pop(next(iter(self._at_rest))))
        self._at_rest[wish] = broker

    def end(self, broker: Any) -> None:
        broker.close()
        self._all.remove(broker)

    def close(self) -> None:
        for broker in list(self._all):
            self.end(broker)


@pytest.fixture(scope="session")
def pylog_brokers(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Create brokers: `pylog_brokers.make({"message.max.bytes": 1000})`. All stop with the run."""
    brokers = Brokers(pytestconfig, tmp_path_factory)
    yield brokers
    brokers.close()


@pytest.fixture(scope="session")
def session_broker(pylog_brokers: Brokers) -> Any:
    """One broker for the whole run, without cleanup between tests."""
    return pylog_brokers.make({})


@pytest.fixture(scope="module")
def module_broker(pylog_brokers: Brokers) -> Any:
    """One broker for a module, without cleanup between its tests."""
    broker = pylog_brokers.make({})
    yield broker
    pylog_brokers.end(broker)


@pytest.fixture
def broker(request: pytest.FixtureRequest, pylog_brokers: Brokers) -> Any:
    """A broker without topics and groups, configured with @pytest.mark.pylog_broker."""
    marker = request.node.get_closest_marker("pylog_broker")
    wishes = dict(marker.kwargs) if marker is not None else {}
    own, process = wishes.pop("own", False), wishes.pop("process", None)
    if own:
        made = pylog_brokers.make(wishes, process)
        yield made
        pylog_brokers.end(made)
    else:
        taken = pylog_brokers.take(wishes, process)
        yield taken
        pylog_brokers.give(taken, wishes, process)


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: Any) -> Any:
    """A topic named after the test; configure it with `@pytest.mark.pylog_topic(partitions=3)`."""
    marker = request.node.get_closest_marker("pylog_topic")
    wishes = {"name": _name(request), **(marker.kwargs if marker is not None else {})}
    return broker.create_topic(**wishes)


@pytest.fixture
def make_producer(broker: Any) -> Any:
    """Create pylog.client.Producers for the broker: `make_producer(linger_ms=5)`."""
    made: list[Any] = []

    def make(**settings: Any) -> Any:
        from pylog.client import Producer

        made.append(Producer(**{"bootstrap_servers": broker.bootstrap, **settings}))
        return made[-1]

    yield make
    _close_all(made)


@pytest.fixture
def make_consumer(request: pytest.FixtureRequest, broker: Any) -> Any:
    """Create pylog.client.Consumers for the broker: `make_consumer("topic", group_id="g")`.

    By default they read from the beginning, in a group named after the test.
    """
    made: list[Any] = []

    def make(*topics: Any, **settings: Any) -> Any:
        from pylog.client import Consumer

        made.append(Consumer(**{"bootstrap_servers": broker.bootstrap, "group_id": _name(request),
                                "auto_offset_reset": "earliest", **settings}))
        if topics:
            made[-1].subscribe([str(name) for name in topics])
        return made[-1]

    yield make
    _close_all(made)


@pytest.fixture
def producer(make_producer: Any) -> Any:
    """A pylog.client.Producer for the broker."""
    return make_producer()


@pytest.fixture
def consumer(make_consumer: Any, topic: Any) -> Any:
    """A pylog.client.Consumer for the broker, subscribed to the topic."""
    return make_consumer(topic)


def _close_all(clients: list[Any]) -> None:
    for client in reversed(clients):
        client.close()


def _name(request: pytest.FixtureRequest) -> str:
    return _NOT_IN_NAMES.sub("-", request.node.name).strip("-.")[:NAME_CHARACTERS_MAX] or "topic"


def _wish(settings: dict[str, Any], process: bool | None) -> tuple:
    return process, tuple(sorted((name, repr(value)) for name, value in settings.items()))


def _setting(line: str) -> tuple[str, str]:
    name, equals, text = line.partition("=")
    if not equals:
        raise pytest.UsageError(f"pylog_broker_settings: {line!r} is not key=value")
    return name.strip(), text.strip()
