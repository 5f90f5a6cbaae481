"""Shared by all commands: options, the session, output, arguments.

Owns: the session with the cluster.
For: the commands.
"""
