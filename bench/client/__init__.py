"""Clients side by side against one broker: `python -m bench.client`."""
