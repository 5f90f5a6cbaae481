"""Load on the control plane of pylog and of Apache Kafka: `python -m bench.control`."""
