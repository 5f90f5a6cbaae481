"""Generate verifiable load and validate it through Spark."""
