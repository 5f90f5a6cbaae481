"""The producer, including transactions.

Owns: batches that are not acknowledged yet.
For: users import `pylog.client.Producer`.
"""
