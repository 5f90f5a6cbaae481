"""Commands on brokers, controllers and replicas.

Owns: nothing.
For: `app` loads its commands by name.
"""
