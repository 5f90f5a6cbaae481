"""OAuth tokens: verification, keys of issuers, and how clients get tokens.

Owns: nothing.
"""
