"""Commands on segment files, without a broker.

Owns: nothing.
For: `app` loads its commands by name.
"""
