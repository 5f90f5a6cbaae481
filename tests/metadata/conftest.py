import pytest

from tests.etcds import Etcds


@pytest.fixture(scope="module")
def etcds(tmp_path_factory):
    """Three members of an etcd, which a test may kill."""
    found = Etcds(tmp_path_factory.mktemp("etcd"))
    try:
        yield found.start()
    finally:
        found.close()


@pytest.fixture(scope="module", params=["etcd", "zookeeper"])
def servers(request, tmp_path_factory):
    """Three of what a quorum is kept in, which a test may kill."""
    if request.param == "etcd":
        yield request.getfixturevalue("etcds")
        return
    from tests.zookeepers import ZooKeepers

    found = ZooKeepers(tmp_path_factory.mktemp("zookeeper"))
    try:
        yield found.start()
    finally:
        found.close()
