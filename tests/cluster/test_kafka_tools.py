"""Kafka's own tools against three brokerds, one flow each."""

import pytest

from tests.compat import cluster_tools
from tests.fixtures.clusters import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), settings=cluster_tools.SETTINGS) as cluster:
        yield cluster_tools.Three(cluster)


@pytest.mark.parametrize("tool", sorted(cluster_tools.FLOWS))
def test_kafka_tool_works_with_three_brokers(three, tool):
    assert cluster_tools.FLOWS[tool](three)
