"""The in-sync replicas of one partition, from its leader's view.

Owns: nothing outside memory; no clock, no connection.
Invariants: `maximal` contains every replica that may be in the ISR, whatever the outcome of a
  proposal, and the high watermark waits for all of them; a proposal is repeated unchanged until its
  outcome is known, and a new one waits for that; a replica that the controller would reject is not
  proposed: fenced, in shutdown, or with another epoch; the leader itself stays; after a rejection,
  nothing is proposed until something changes or REFUSED_NS has passed.
Source: KIP-497 (AlterPartition), KIP-841 and KIP-903 (eligible replicas), Kafka's Partition and
  AlterPartitionManager.
"""

from __future__ import annotations

from collections import namedtuple

from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pylog.metadata.image.image import Partition

RECOVERING = 1
REFUSED_NS = 1_000_000_000  # pause after a rejection
ANY_EPOCH = -1

Follower = namedtuple("Follower", ("broker_id", "broker_epoch", "end_offset", "caught_up_ns"))
Follower.__doc__ = "A replica's state in the leader's log; caught_up_ns: CLOCK_MONOTONIC."

LeaderLog = namedtuple("LeaderLog", ("end_offset", "high_watermark", "epoch_start"))
LeaderLog.__doc__ = "The leader's log; epoch_start: the end offset at its election."

Proposal = namedtuple("Proposal", ("leader_epoch", "partition_epoch", "isr"))
Proposal.__doc__ = "isr: ((broker id, broker epoch), ...)."

# Partition errors that prove that no earlier attempt was executed, because the controller checks
# the epochs first. Nothing was changed, so there is nothing to wait for.
REVERTED = frozenset((ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED))
# The image has another state, or will have it. Until then the proposal may have been executed, so
# it still counts in `maximal`. As in Kafka, any other error leaves the outcome unknown.
OUTDATED = frozenset((
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_REQUEST,
    ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NEW_LEADER_ELECTED))


class Isr:
    """state: the partition in the image, led by `node_id`. epoch_of: function from a broker id to
    its broker epoch if it may be in an ISR, else None.
    """

    def __init__(self, state: Partition, node_id: int,
                 epoch_of: Callable[[int], int | None], now_ns: int):
        assert state.leader == node_id, (state.leader, node_id)
        self.committed: tuple = state.isr
        self.leader_epoch: int = state.leader_epoch
        self.partition_epoch: int = state.partition_epoch
        self.replicas: tuple = state.replicas
        self.directories: tuple = state.directories  # of the replicas, in order, if known
        self.is_recovering = state.leader_recovery_state == RECOVERING
        self.proposal: Proposal | None = None  # the proposal with unknown outcome
        self._node_id = node_id
        self._epoch_of = epoch_of
        self._elected_ns = now_ns
        self._refused_ns: int | None = None

    @property
    def maximal(self) -> frozenset:
        """Return every replica that may be in the ISR."""
        proposed = () if self.proposal is None else (id_ for id_, _ in self.proposal.isr)
        return frozenset(self.committed) | frozenset(proposed)

    @property
    def is_whole(self) -> bool:
        """Return True if every replica is in sync and nothing must be reported to the controller.
        """
        return len(self.committed) == len(self.replicas) and self.proposal is None \
            and not self.is_recovering

    def follow(self, state: Partition, now_ns: int) -> bool:
        """Take the image's state; return True if it is newer. This broker must still be the leader.
        """
        if state.partition_epoch <= self.partition_epoch:
            return False
        assert state.leader == self._node_id, (state.leader, self._node_id)
        if state.leader_epoch != self.leader_epoch:
            self._elected_ns = now_ns
        self._adopt(state.leader_epoch, state.partition_epoch, state.isr)
        self.replicas, self.directories = state.replicas, state.directories
        self.is_recovering = state.leader_recovery_state == RECOVERING
        return True

    def _adopt(self, leader_epoch: int, partition_epoch: int, isr) -> None:
        self.leader_epoch, self.partition_epoch = leader_epoch, partition_epoch
        self.committed, self.proposal, self._refused_ns = tuple(isr), None, None
        self.is_recovering = False  # Every proposal also reports recovery.

    def brokers_changed(self) -> None:
        """Allow proposals again: a rejected replica may be accepted now."""
        self._refused_ns = None

    # ---- proposals ------------------------------------------------------------------------------

    def join(self, follower: Follower, log: LeaderLog, now_ns: int) -> Proposal | None:
        """Return a proposal to add a follower that may have caught up, or None."""
        if not self._may_propose(now_ns) or follower.broker_id in self.committed \
                or follower.broker_id not in self.replicas \
                or follower.end_offset < max(log.high_watermark, log.epoch_start):
            return None
        epoch = self._epoch_of(follower.broker_id)
        # The controller would reject it.
        if epoch is None or follower.broker_epoch not in (epoch, ANY_EPOCH) \
                or self._epoch_of(self._node_id) is None:
            return None
        return self._propose({*self.committed, follower.broker_id}, follower)

    def tick(self, followers: Iterable[Follower], log: LeaderLog, now_ns: int,
             lag_ns: int) -> Proposal | None:
        """Return a proposal to remove replicas that lag too long, else to add one that has caught
        up, else None.
        """
        if not self._may_propose(now_ns):
            return None
        known = {follower.broker_id: follower for follower in followers}
        late = {id_ for id_ in self.committed if id_ != self._node_id and _lags(
            known.get(id_), self._elected_ns, log.end_offset, now_ns, lag_ns)}
        if late:
            return self._propose(set(self.committed) - late, None)
        for follower in known.values():
            found = self.join(follower, log, now_ns)
            if found is not None:
                return found
        return self.recovered(now_ns)

    def recovered(self, now_ns: int) -> Proposal | None:
        """Return a proposal that reports recovery after an unclean election: until then the
        controller accepts no other replica into the ISR (KIP-704).
        """
        if not self.is_recovering or not self._may_propose(now_ns):
            return None
        return self._propose(set(self.committed), None)

    def _may_propose(self, now_ns: int) -> bool:
        # One proposal at a time, and a pause after a rejection.
        return self.proposal is None and (
            self._refused_ns is None or now_ns - self._refused_ns >= REFUSED_NS)

    def _propose(self, members: set, joining: Follower | None) -> Proposal:
        assert self._node_id in members, members  # the leader stays
        epochs = []
        for id_ in self.replicas:
            if id_ in members:
                epoch = joining.broker_epoch if joining is not None and joining.broker_id == id_ \
                    else self._epoch_of(id_)
                epochs.append((id_, ANY_EPOCH if epoch is None else epoch))
        self.proposal = Proposal(self.leader_epoch, self.partition_epoch, tuple(epochs))
        return self.proposal

    def on_response(self, proposal: Proposal, error: int, row, now_ns: int) -> bool:
        """Process the controller's response to a proposal; row: leader_epoch, partition_epoch, isr.
        Returns True if the same proposal must be repeated.
        """
        if proposal is not self.proposal:
            return False
        if not error:
            if row.leader_epoch == self.leader_epoch and \
                    row.partition_epoch > self.partition_epoch:
                self._adopt(row.leader_epoch, row.partition_epoch, row.isr)
            elif row.partition_epoch == self.partition_epoch:
                self.proposal = None
        elif error in REVERTED:
            self.proposal, self._refused_ns = None, now_ns
        elif error not in OUTDATED:
            return True
        return False


def _lags(follower: Follower | None, elected_ns: int, end_offset: int, now_ns: int,
          lag_ns: int) -> bool:
    if follower is not None and follower.end_offset == end_offset:
        return False
    caught_up_ns = elected_ns if follower is None else max(follower.caught_up_ns, elected_ns)
    return now_ns - caught_up_ns > lag_ns
