"""Commands on this host: doctor, systemd, adopt, config.

Owns: nothing.
For: `app` loads its commands by name.
"""
