"""Commands on records: produce, consume, offsets, perf, registry.

Owns: nothing.
For: `app` loads its commands by name.
"""
