"""Connections to brokers, authentication, and cluster metadata.

Owns: connections and their buffers.
For: the other folders of `client`, and `tools`.
"""
