"""The broker's metrics and status pages, served over HTTP and off the hot path."""
