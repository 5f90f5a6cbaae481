"""Benches and the side-by-side runs against Apache Kafka (`python -m bench.vs`)."""
