"""TLS contexts of listeners and clients, key stores, and principals from certificates.

Owns: nothing.
"""
