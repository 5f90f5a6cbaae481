"""The share consumer (KIP-932).

Owns: acquired records.
For: users import `pylog.client.ShareConsumer`.
"""
