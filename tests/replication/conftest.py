"""A Kafka of their own for modules whose brokers join its cluster.

In the shared one, a partition of an internal topic may be placed on such a broker; it is lost when
the broker leaves, and with it every group whose coordinator it was.
"""

import pytest

from tests.conftest import SETTINGS
from tests.fixtures.brokers import Kafka


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    """One Apache Kafka for one module."""
    with Kafka(tmp_path_factory.mktemp("kafka"), SETTINGS) as broker:
        yield broker
