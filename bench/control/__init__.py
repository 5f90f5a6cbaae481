"""The control plane under load, pylog beside Apache Kafka: `python -m bench.control`."""
