"""What a principal may do: rules, custom authorizers, and the audit log.

Owns: nothing.
"""
