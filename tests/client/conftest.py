"""`broker` is brokerd, then Apache Kafka: the same tests for both."""

import pytest


@pytest.fixture(scope="module", params=["pylog", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker(request):
    return request.getfixturevalue("brokerd" if request.param == "pylog" else "kafka")
