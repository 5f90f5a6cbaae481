"""The `pylog` command: what an operator or a script asks of a Kafka-protocol cluster."""
