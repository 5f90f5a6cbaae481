"""Load that can be checked and validation that can be believed, through Spark."""
