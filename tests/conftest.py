"""Fixtures for tests that need a running broker.

`brokerd` is ours, `kafka` is Apache Kafka, `target` is the broker named by --against: expectations
written for both are first verified on Kafka, then required of ours.
"""

import gc

import pytest

from bench import kafka as apache_kafka
from tests.fixtures.brokers import Brokerd, Kafka, answers

pytest_plugins = ["pytester", "tests.checks.hangs", "tests.checks.reruns", "tests.checks.schedule"]
SETTINGS = {"auto.create.topics.enable": "true"}
RUNS_BESIDE_KAFKA = 3


def pytest_addoption(parser):
    parser.addoption("--against", choices=["pylog", "kafka"], default="pylog",
                     help="which broker the wire, client and differential tests examine")
    parser.addoption("--seed", default=None, help="of the random tests: a number, or random; "
                                                 "by default each test has one of its own")
    parser.addoption("--slow", action="store_true", help="run the long variants too")


def pytest_configure(config):
    apache_kafka.start_quickly()
    config.addinivalue_line("markers", "kafka: needs Apache Kafka (Java and Maven)")
    config.addinivalue_line("markers", "slow: a long variant of a test that also runs short")


def pytest_collection_modifyitems(config, items):
    # On a busy machine, Kafka's responses vary with its timers and caches (quota windows, markers,
    # loading): random differences disappear in a rerun, real ones do not. The report lists reruns.
    for item in items:
        if item.get_closest_marker("kafka"):
            item.add_marker(pytest.mark.flaky(reruns=RUNS_BESIDE_KAFKA - 1, reruns_delay=1))
    if config.getoption("--slow"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


def pytest_collection_finish():
    # Thousands of tests stay until the end. Without this, each full collection examines them.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def against(request) -> str:
    return request.config.getoption("--against")


@pytest.fixture(scope="module")
def brokerd(request, tmp_path_factory):
    """A brokerd for one module, whose SETTINGS override the defaults. It must be running and quiet
    at the end.
    """
    settings = {**SETTINGS, **getattr(request.module, "BROKER_SETTINGS", {})}
    broker = Brokerd(tmp_path_factory.mktemp("brokerd"), settings).start()
    try:
        yield broker
        assert broker.alive(), f"brokerd ended with {broker.process.poll()}:\n{broker.tail()}"
        assert answers(broker.port), "brokerd no longer answers"
        assert broker.alarms() == []
    finally:
        broker.kill()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory):
    """One Apache Kafka for the whole run. It stays the only broker of its cluster."""
    from bench.kafka import KafkaMissing

    try:
        broker = Kafka(tmp_path_factory.mktemp("kafka"), SETTINGS).start()
        broker.is_shared = True
    except KafkaMissing as missing:
        pytest.fail(str(missing))
    try:
        yield broker
    finally:
        broker.kill()


@pytest.fixture(scope="module")
def target(request, against):
    """The broker under test."""
    return request.getfixturevalue("kafka" if against == "kafka" else "brokerd")


@pytest.fixture
def random_source(request):
    """A random.Random whose seed is printed, and set by --seed.

    Without --seed the seed depends on the test's name, so results are reproducible. --seed random
    draws new seeds, to search for faults.
    """
    import random
    import zlib

    given = request.config.getoption("--seed")
    if given is None:
        seed = zlib.crc32(request.node.nodeid.encode())
    elif given == "random":
        seed = random.SystemRandom().randrange(1 << 32)
    else:
        seed = int(given)
    print(f"--seed {seed}")
    return random.Random(seed)
