"""Round trips through third-party clients and tools."""
