"""Where a follower's log is cut when its leader's history is another.

Owns: nothing outside memory.
Invariants: (1) a cut never lies above the log's end; (2) what the leader's answer does not prove to
  differ stays.
Source: KIP-101, KIP-279, KIP-595 (truncation on fetch); Kafka's AbstractFetcherThread.
"""

from collections import namedtuple

# Either may be None: nothing is to be done then.
Cut = namedtuple("Cut", ("truncate_to", "restart_at"))


def on_divergence(leader_end: int, leader_epoch: int, own_epoch: int, own_end: int,
                  log_end: int) -> int:
    """Where to truncate, as an end offset; the next fetch tells whether that was enough.

    The leader's records of leader_epoch, or the largest one below the epoch that was asked for, end
    at leader_end. own_epoch, own_end: the largest epoch of ours up to leader_epoch, -1 when there
    is none, and where that ends.
    """
    if leader_end < 0:
        return log_end       # Keeps (2).
    if own_epoch < 0:
        return min(leader_end, log_end)
    if own_epoch == leader_epoch:
        return min(leader_end, own_end, log_end)
    return min(own_end, log_end)


def out_of_range(leader_start: int, leader_end: int, log_end: int) -> Cut:
    """What to do about a leader that has not the record which comes next here."""
    if leader_end < log_end:
        return Cut(max(leader_end, 0), None)
    if leader_start > log_end:
        return Cut(None, leader_start)
    return Cut(None, None)
