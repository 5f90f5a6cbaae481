"""Connections to brokers, logins, and metadata of the cluster.

Owns: connections and their buffers.
For: the other folders of `client`, and `tools`.
"""
