"""Connects the parts of one running broker: network, requests, metadata, security."""
