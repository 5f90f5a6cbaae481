"""Round trips through clients and tools that others wrote."""
