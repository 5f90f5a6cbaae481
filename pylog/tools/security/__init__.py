"""Commands on ACLs, users and delegation tokens.

Owns: nothing.
For: `app` loads its commands by name.
"""
