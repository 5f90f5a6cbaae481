"""SASL mechanisms, on the side of the broker and of clients. `api.security`, `peer`, `server` and
the client import its modules.

Owns: nothing.
"""
