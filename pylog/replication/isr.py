"""The in-sync replicas of one partition, as its leader decides on them.

Owns: nothing outside memory; no clock, no connection.
Invariants: (1) `maximal` holds every replica that may be in the ISR, whatever became of a proposal:
  the high watermark waits for all of them; (2) a proposal is asked again, the same, until its
  outcome is known; a new one waits for that; (3) a replica that the controller would refuse is not
  proposed: fenced, leaving, of another epoch; (4) the leader itself stays; (5) after a refusal
  nothing is proposed until something has changed, or a while has passed.
Source: KIP-497 (AlterPartition), KIP-841 and KIP-903 (who may join), Kafka's Partition and
  AlterPartitionManager.
"""

from __future__ import annotations

from collections import namedtuple

from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pylog.metadata.image.image import Partition

RECOVERING = 1
REFUSED_NS = 1_000_000_000       # Keeps (5).
ANY_EPOCH = -1

Follower = namedtuple("Follower", ("broker_id", "broker_epoch", "end_offset", "caught_up_ns"))
Follower.__doc__ = "What the leader's log knows of a replica; caught_up_ns: CLOCK_MONOTONIC."

Log = namedtuple("Log", ("end_offset", "high_watermark", "epoch_start"))
Log.__doc__ = "The leader's own; epoch_start: the end offset at its election."

Proposal = namedtuple("Proposal", ("leader_epoch", "partition_epoch", "isr"))
Proposal.__doc__ = "isr: ((broker id, broker epoch), ...)."

# Of one partition, after the checks that an earlier try which was carried out would fail: nothing
# was changed, and nothing is to be waited for.
REVERTED = frozenset((ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED))
# The image has another state, or will: until then it may have been carried out (1). As in Kafka,
# any other error decides nothing.
OUTDATED = frozenset((
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_REQUEST,
    ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NEW_LEADER_ELECTED))


class Isr:
    """state: the partition as the image has it, led by `node_id`. epoch_of: (broker id) -> its
    broker epoch when it may be in an ISR, else None."""

    def __init__(self, state: Partition, node_id: int,
                 epoch_of: Callable[[int], int | None], now_ns: int):
        assert state.leader == node_id, (state.leader, node_id)
        self.committed: tuple = state.isr
        self.leader_epoch: int = state.leader_epoch
        self.partition_epoch: int = state.partition_epoch
        self.replicas: tuple = state.replicas
        self.directories: tuple = state.directories     # Of the replicas, in order, when known.
        self.is_recovering = state.leader_recovery_state == RECOVERING
        self.proposal: Proposal | None = None      # Its outcome is not known.
        self.asked = False                         # It is to be asked again by nobody else.
        self._node_id = node_id
        self._epoch_of = epoch_of
        self._elected_ns = now_ns
        self._refused_ns: int | None = None

    @property
    def maximal(self) -> frozenset:
        """Keeps (1)."""
        proposed = () if self.proposal is None else (id_ for id_, _ in self.proposal.isr)
        return frozenset(self.committed) | frozenset(proposed)

    @property
    def is_whole(self) -> bool:
        """Every replica is in sync, and the controller is to be told nothing."""
        return len(self.committed) == len(self.replicas) and self.proposal is None \
            and not self.is_recovering

    def follow(self, state: Partition, now_ns: int) -> bool:
        """The image has another state; whether that is news. It is led here still."""
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
        self.is_recovering = False      # Whatever is proposed says that the log is whole.

    def brokers_changed(self) -> None:
        """Who was refused may be let in now (5)."""
        self._refused_ns = None

    # ---- proposals ------------------------------------------------------------------------------

    def join(self, follower: Follower, log: Log, now_ns: int) -> Proposal | None:
        """A replica that may have caught up; what to ask the controller then."""
        if not self._may_propose(now_ns) or follower.broker_id in self.committed \
                or follower.broker_id not in self.replicas \
                or follower.end_offset < max(log.high_watermark, log.epoch_start):
            return None
        epoch = self._epoch_of(follower.broker_id)
        # Keeps (3).
        if epoch is None or follower.broker_epoch not in (epoch, ANY_EPOCH) \
                or self._epoch_of(self._node_id) is None:
            return None
        return self._propose({*self.committed, follower.broker_id}, follower)

    def tick(self, followers: Iterable[Follower], log: Log, now_ns: int,
             lag_ns: int) -> Proposal | None:
        """Takes out who has lagged for too long, else lets in who has caught up."""
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
        """After an unclean election the controller is to know that this log is all there is: it
        allows no other replica in sync before (KIP-704)."""
        if not self.is_recovering or not self._may_propose(now_ns):
            return None
        return self._propose(set(self.committed), None)

    def _may_propose(self, now_ns: int) -> bool:
        # Keeps (2), (5).
        return self.proposal is None and (
            self._refused_ns is None or now_ns - self._refused_ns >= REFUSED_NS)

    def _propose(self, members: set, joining: Follower | None) -> Proposal:
        assert self._node_id in members, members         # Keeps (4).
        epochs = []
        for id_ in self.replicas:
            if id_ in members:
                epoch = joining.broker_epoch if joining is not None and joining.broker_id == id_ \
                    else self._epoch_of(id_)
                epochs.append((id_, ANY_EPOCH if epoch is None else epoch))
        self.proposal = Proposal(self.leader_epoch, self.partition_epoch, tuple(epochs))
        return self.proposal

    def answered(self, proposal: Proposal, error: int, row, now_ns: int) -> bool:
        """The controller's answer to a proposal; row: leader_epoch, partition_epoch, isr. Whether
        the same is to be asked again."""
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
