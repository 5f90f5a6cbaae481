"""Reactors, the tables that they read, and the threads of followers.

Owns: reactors, grants, quotas, the heartbeat cache, TLS contexts, fetcher threads.
For: all packages above _native.
"""
