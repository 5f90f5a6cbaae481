"""The `pylog` command: operate and inspect any cluster that speaks Kafka's protocol."""
