"""Commands on groups and transactions.

Owns: nothing.
For: `app` loads its commands by name.
"""
