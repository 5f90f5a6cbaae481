"""Connects the parts of one running broker: network, dispatch, metadata, security."""
