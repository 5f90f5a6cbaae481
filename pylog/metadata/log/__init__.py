"""Storage of metadata records: a local log, or a copy of the controller's log.

Owns: the metadata log.
For: the metadata services.
"""
