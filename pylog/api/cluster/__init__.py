"""Requests on topics, settings, quotas and the cluster itself.

Owns: nothing. For: the tables of handlers in `api`.
"""
