"""The transaction coordinator, transaction markers and verification.

Owns: transactions.
For: `api`, `broker` and `server`. The entry point is `service`.
"""
