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
