"""Where metadata records are: a log on disk, or a copy of the controller's log.

Owns: the metadata log.
For: the metadata services.
"""
