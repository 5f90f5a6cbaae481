"""Computes where to truncate a follower's log that diverges from its leader's.

Owns: nothing outside memory.
Invariants: the truncation point is never above the log's end; records stay unless the leader's
  response proves that they differ.
Source: KIP-101, KIP-279, KIP-595 (truncation on fetch); Kafka's AbstractFetcherThread.
"""

from collections import namedtuple

# Each may be None: then it requires no action.
Cut = namedtuple("Cut", ("truncate_to", "restart_at"))


def on_divergence(leader_end: int, leader_epoch: int, own_epoch: int, own_end: int,
                  log_end: int) -> int:
    """Return the end offset to truncate to; the next fetch shows if that was enough.

    leader_end: end of the leader's records of leader_epoch, or of the largest epoch below the
    requested one. own_epoch, own_end: the largest local epoch up to leader_epoch, -1 without one,
    and its end.
    """
    if leader_end < 0:
        return log_end  # The response proves nothing: keep all records.
    if own_epoch < 0:
        return min(leader_end, log_end)
    if own_epoch == leader_epoch:
        return min(leader_end, own_end, log_end)
    return min(own_end, log_end)


def out_of_range(leader_start: int, leader_end: int, log_end: int) -> Cut:
    """Return the Cut for a leader that lacks the next record of this log."""
    if leader_end < log_end:
        return Cut(max(leader_end, 0), None)
    if leader_start > log_end:
        return Cut(None, leader_start)
    return Cut(None, None)
