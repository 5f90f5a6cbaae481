"""The Admin client, and the types of its requests and results.

Owns: nothing.
For: users import `pylog.client.Admin`.
"""
