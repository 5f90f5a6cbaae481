"""Kafka's own jars for the tests of the protocol: its schemas and its message classes."""

from pathlib import Path

import pytest

from bench.kafka import KafkaMissing, classpath


@pytest.fixture(scope="session")
def kafka_jars() -> list[Path]:
    """Return the jars of Apache Kafka, or skip with one line about the missing part."""
    try:
        folder = Path(classpath()).parent
    except KafkaMissing as missing:
        pytest.skip(str(missing))
    return sorted(folder.glob("kafka*.jar"))
