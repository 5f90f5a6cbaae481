import pytest

from tests.fixtures.etcds import Etcds
from tests.metadata.memory_keys import MemoryServers


@pytest.fixture(scope="module")
def etcds(tmp_path_factory):
    """Three etcd members that a test may kill."""
    found = Etcds(tmp_path_factory.mktemp("etcd"))
    try:
        yield found.start()
    finally:
        found.close()


@pytest.fixture(scope="module", params=["etcd", "zookeeper"])
def servers(request, tmp_path_factory):
    """Three members of each kind of quorum store, which a test may kill."""
    yield from served(request, tmp_path_factory)


def served(request, tmp_path_factory):
    """Yield the quorum store named by `request.param`."""
    if request.param == "memory":
        yield MemoryServers()
        return
    if request.param == "etcd":
        yield request.getfixturevalue("etcds")
        return
    from tests.fixtures.zookeepers import ZooKeepers

    found = ZooKeepers(tmp_path_factory.mktemp("zookeeper"))
    try:
        yield found.start()
    finally:
        found.close()
