"""Hand out long test files before short ones, and all of Spark's to one worker.

pytest-xdist hands out the files with the most tests first. The files that take longest start
clusters and JVMs and have few tests: one of them would begin last, and the other workers would wait
for it.

Owns: nothing.
Invariants: all workers sort their tests in the same order, which pytest-xdist checks.
"""

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling

# Each worker that runs some of them starts a JVM for Spark.
TOGETHER = "tests/spark/"
# Their files start clusters, Apache Kafka, other clients or many brokers.
LONG = (TOGETHER, "tests/cluster/", "tests/replication/", "tests/clients/", "tests/compat/",
        "tests/chaos/", "tests/durability/", "tests/testing/", "tests/wire/", "tests/client/",
        "tests/tools/", "tests/share/")


def rank(nodeid: str) -> int:
    """Return the position of a test's folder in LONG, which is the order of running."""
    return next((at for at, folder in enumerate(LONG) if nodeid.startswith(folder)), len(LONG))


def unit(nodeid: str) -> str:
    """Return the tests that one worker runs together: a file, or all of the folder TOGETHER."""
    return TOGETHER if nodeid.startswith(TOGETHER) else nodeid.partition("::")[0]


class LongFilesFirst(LoadFileScheduling):
    """Hands out units in the order of the workers' tests."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Sort the tests of a worker by folder. Within a folder they stay shuffled."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return LongFilesFirst(config, log)
