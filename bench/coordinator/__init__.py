"""Groups under load, pylog beside Apache Kafka: `python -m bench.coordinator`."""
