"""The open transactions of a cluster, complete enough to abort one that is not among them.

Owns: nothing.
Invariants: the list contains the transactions of all coordinators, or an error is raised; a user
  sees only the ids that he may describe.
Source: KIP-664 (ListTransactions, hanging transactions).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pylog.client.errors import UnknownTopicOrPartitionError, error
from pylog.config.internal_topics import TRANSACTIONS
from pylog.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from pylog.client.admin.admin import Admin
    from pylog.client.admin.types import TransactionListing

OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
STATES = ("Empty", *OPEN_STATES, "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead")


async def open_transactions(admin: Admin) -> list[TransactionListing]:
    """Return the open transactions of all coordinators. Raises KafkaError.

    No broker lists the transactions of a partition of `__transaction_state` without a leader, and
    none reports an error, so that case is an error here. A partition whose leader changed in the
    meantime may be missing in both leaders' lists.
    """
    before = await _leaders(admin)
    found = await admin.list_transactions(OPEN_STATES)
    after = await _leaders(admin)
    missing = [number for number, leader in after.items()
               if leader[0] < 0 or before.get(number) != leader]
    if missing:
        raise error(ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    context=f"the coordinator of {TRANSACTIONS}-{min(missing)}")
    return found


async def _leaders(admin: Admin) -> dict[int, tuple[int, int]]:
    """Return {partition of __transaction_state: (leader, -1 for none, leader epoch)}."""
    try:
        topic = (await admin.describe_topics([TRANSACTIONS]))[TRANSACTIONS]
    except UnknownTopicOrPartitionError:
        return {}
    return {number: (info.leader, info.leader_epoch) for number, info in topic.partitions.items()}
