"""The consumer with both group protocols, and scan.

Owns: fetched records, positions.
For: users import `pylog.client.Consumer` and `scan`.
"""
