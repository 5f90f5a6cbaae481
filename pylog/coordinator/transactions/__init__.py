"""The transaction coordinator, markers and verification.

Owns: transactions.
For: `api`, `broker` and `server`. `service` is its entry.
"""
