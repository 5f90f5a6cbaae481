"""Commands on topics, settings and quotas.

Owns: nothing.
For: `app` loads its commands by name.
"""
