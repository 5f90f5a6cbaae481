"""Damage in a log directory: what recovery cut off, and what readers skip.

Owns: nothing; the LogDir owns the list.
Invariants: each damage is returned once.
Source: csrc/log/log.h.
"""

from collections import namedtuple

from pylog._native.log cimport csrc
from pylog._native.log.log_dir cimport LogDir

# In the order of log_damage_kind and log_damage_why.
KINDS = ("cut", "dropped", "kept", "epochs")
REASONS = ("a batch that is cut short", "zeros", "bytes that are not a batch",
           "a batch with a wrong CRC", "offsets that decrease", "offsets are missing after it",
           "it follows truncated data", "records that cannot be decompressed", "not the text of a "
                                                                               "checkpoint")

Damage = namedtuple("Damage", (
    "partition", "segment", "offset", "position", "bytes", "kind", "reason"))
Damage.__doc__ = """One place. partition: its directory's name; segment: a base offset; offset: of
the first record that is missing; kind: cut (a log's end), dropped (a segment behind a cut), kept
(amid good batches), epochs (the partition's leader-epoch-checkpoint; its bytes)."""


def take(LogDir directory not None) -> list:
    """Return the damages found since the last call, oldest first."""
    cdef csrc.log_damage one
    found = []
    while csrc.log_dir_fetch_damages(directory.dir, &one, 1):
        found.append(Damage(one.partition.decode(), one.segment, one.offset, one.position,
                            one.bytes, KINDS[one.kind], REASONS[one.why]))
    return found


def figures(LogDir directory not None) -> dict:
    """Return counters since the start."""
    cdef csrc.log_dir_stats told
    csrc.log_dir_read_stats(directory.dir, &told)
    return {"recovered_bytes": told.recovered_bytes, "trusted_bytes": told.trusted_bytes,
            "damages_cut": told.damages_cut, "damages_kept": told.damages_kept,
            "bytes_cut": told.bytes_cut}


def stop_recovery(LogDir directory not None) -> None:
    """Stop recovery, for shutdown: opening a log here raises StorageError from now on."""
    csrc.log_dir_stop_recovery(directory.dir)
