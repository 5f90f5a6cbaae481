"""One change of a partition, for any reason: replicas, ISR, leader and directories together.

Owns: nothing.
Invariants: a leader is in the ISR of its record, unless the partition keeps both; an unclean leader
  is the only ISR member and marked as recovering; the ELR contains no ISR member, and no more
  replicas than the ISR is short of; a reassignment ends with the change that puts all of its new
  replicas in sync; replicas and directories are written together, in one order; only a replica
  becomes leader or last known leader.
Source: Kafka's PartitionChangeBuilder; KIP-455 (reassignments), KIP-704 (recovering leaders),
  KIP-858 (directories), KIP-966 (eligible leader replicas).
"""

from pylog.metadata.controller.partitions import topics
from pylog.metadata.controller.partitions.eligible_leader_replicas import ELR_FEATURE
from pylog.metadata.image.image import (
    LOST,
    MIGRATING,
    NO_LEADER,
    NO_LEADER_CHANGE,
    RESOURCE_BROKER,
    UNASSIGNED,
    Image,
)
from pylog.protocol import messages

# Election types; the first two have ElectLeadersRequest's numbers.
PREFERRED, UNCLEAN, ONLINE = 0, 1, 2
RECOVERED, RECOVERING = 0, 1


class Rules:
    """The inputs of decisions on partitions. settings: this node's, overridden by the image's.
    lost: (broker id, topic name, index) of replicas on failed disks.
    """

    def __init__(self, image: Image, settings, lost=frozenset()):
        self.image = image
        self.keeps_eligible = image.features.get(ELR_FEATURE, 0) > 0
        self._settings = settings
        self._lost = lost
        self._of_brokers = image.configs.get((RESOURCE_BROKER, ""), {})

    def min_in_sync(self, name: str) -> int:
        """Return the topic's min.insync.replicas, at most its first partition's replica count."""
        wanted = int(self._setting(name, "min.insync.replicas"))
        first = self.image.partition(name, 0)
        return wanted if first is None else min(wanted, len(first.replicas))

    def allows_unclean(self, name: str) -> bool:
        """Return the topic's `unclean.leader.election.enable`."""
        return str(self._setting(name, "unclean.leader.election.enable")).lower() == "true"

    def _setting(self, name: str, setting: str):
        found = self.image.topic_config(name).get(setting)
        if found is None:
            found = self._of_brokers.get(setting)
        return self._settings[setting] if found is None else found

    def has_disk(self, broker_id: int, name: str, index: int, directory: bytes) -> bool:
        """Return False if the directory of a replica is known to be offline."""
        return (broker_id, name, index) not in self._lost and is_online(
            self.image, broker_id, directory)


def is_online(image: Image, broker_id: int, directory: bytes) -> bool:
    """Return False if a broker is known not to have the log directory online."""
    broker = image.brokers.get(broker_id)
    if broker is None or directory == LOST:
        return False
    return directory in (UNASSIGNED, MIGRATING) or not broker.directories \
        or directory in broker.directories


class PartitionChange:
    """Set the fields to change, then call record(). may_lead: function of a broker id, by default
    True for active brokers.
    """

    def __init__(self, rules: Rules, topic, index: int, may_lead=None):
        state = topic.partitions[index]
        self.rules, self.topic, self.index, self.state = rules, topic, index, state
        self.isr, self.replicas = list(state.isr), list(state.replicas)
        self.adding, self.removing = list(state.adding_replicas), list(state.removing_replicas)
        self.eligible = list(state.eligible_leader_replicas)
        self.recovery = state.leader_recovery_state
        self.election = ONLINE
        self.crashed: list[int] = []  # may lack acknowledged records: never in the ELR
        self.directories: dict[int, bytes] = {}
        self._may_lead = may_lead or rules.image.broker_is_active
        # Earlier versions updated only the replicas: then the pairs are unknown.
        self._known = dict(zip(state.replicas, state.directories)) if (
            len(state.directories) == len(state.replicas)) else {}

    def record(self):
        """Return the PartitionChangeRecord, None if nothing changes."""
        new = messages.PartitionChangeRecord(partition_id=self.index, topic_id=self.topic.id)
        self._end_reassignment()
        self._fill_eligible()
        self._elect(new)
        if new.leader == NO_LEADER_CHANGE and not set(self.state.replicas) <= set(self.replicas):
            # Removed replicas must not be followed, nor follow, under the old leader epoch.
            new.leader = self.state.leader
        self._write_eligible(new)
        self._write_isr(new)
        self._write_last_known(new)
        self._write_assignment(new)
        if new.leader_recovery_state == -1 and self.recovery != self.state.leader_recovery_state:
            new.leader_recovery_state = self.recovery
        return new if _changes(new) else None

    def _end_reassignment(self) -> None:
        """End a reassignment whose new replicas are all in sync."""
        if not (self.adding or self.removing):
            return
        isr = [id_ for id_ in self.isr if id_ not in self.removing]
        replicas = [id_ for id_ in self.replicas if id_ not in self.removing]
        needed = self.adding if len(self.adding) >= len(self.removing) else replicas
        if isr and replicas and set(self.adding) <= set(isr) and set(needed) <= set(isr):
            self.isr, self.replicas, self.adding, self.removing = isr, replicas, [], []

    def _fill_eligible(self) -> None:
        """Fill the ELR: a replica that was in sync when the ISR fell below its minimum has every
        committed record.
        """
        if not self.rules.keeps_eligible:
            return
        if len(self.isr) >= min(self.rules.min_in_sync(self.topic.name),
                                len(self.state.replicas)):
            self.eligible = []
            return
        self.eligible = sorted({
            id_ for id_ in (*self.eligible, *self.state.isr)
            if id_ not in self.isr and id_ not in self.crashed and id_ in self.replicas})

    # ---- the leader -----------------------------------------------------------------------------

    def _elect(self, new) -> None:
        leader, is_unclean = self._leader()
        if leader == self.state.leader:
            return
        new.leader = leader
        if is_unclean:
            # An unclean leader becomes the only ISR member and is marked as recovering.
            new.isr = [leader]
            if self.state.leader_recovery_state != RECOVERING:
                new.leader_recovery_state = RECOVERING
        elif leader in self.eligible:
            # The leader must be in the ISR.
            self.isr = [leader]
            self.eligible = [id_ for id_ in self.eligible if id_ != leader]

    def _leader(self) -> tuple:
        """Return (leader id or NO_LEADER, True if the leader may lack records)."""
        first = self.replicas[0] if self.election == PREFERRED else self.state.leader
        for id_ in (first, self.state.leader, *self.replicas):
            if id_ != NO_LEADER and self._is_complete(id_) and self.can_lead(id_):
                return id_, False
        known = self.state.last_known_elr  # Only a replica may lead.
        if self.rules.keeps_eligible and not self.isr and not self.eligible and (
                len(known) == 1 and known[0] in self.replicas and self.can_lead(known[0])):
            return known[0], True
        if self.election == UNCLEAN:
            for id_ in self.replicas:
                if self.can_lead(id_):
                    return id_, True
        return NO_LEADER, False

    def _is_complete(self, broker_id: int) -> bool:
        return broker_id in self.isr or (
            self.rules.keeps_eligible and not self.isr and broker_id in self.eligible)

    def can_lead(self, broker_id: int) -> bool:
        """Return True if the broker is active and the disk with its replica is online."""
        # The current directory, not the one that this change assigns.
        directory = self._known.get(broker_id) or self._directory(broker_id)
        return self._may_lead(broker_id) and self.rules.has_disk(
            broker_id, self.topic.name, self.index, directory)

    # ---- the record -----------------------------------------------------------------------------

    def _write_isr(self, new) -> None:
        # Without ELR, the last in-sync replica stays in the ISR when it leaves.
        if new.isr is None and (self.isr or self.rules.keeps_eligible) and (
                self.isr != list(self.state.isr)):
            new.isr = self.isr

    def _write_eligible(self, new) -> None:
        if new.isr is not None or not self.rules.keeps_eligible:
            self.eligible = []
        if self.eligible != list(self.state.eligible_leader_replicas):
            new.eligible_leader_replicas = self.eligible

    def _write_last_known(self, new) -> None:
        """Write the last known leader while there is none, or else the last ELR. Without it, a
        partition after a power loss would wait for an administrator.
        """
        if not self.rules.keeps_eligible:
            return
        state = self.state
        known = [id_ for id_ in state.last_known_elr if id_ in self.replicas]
        if new.leader >= 0:
            known = []
        elif not known and new.leader == NO_LEADER and state.leader in self.replicas:
            known = [state.leader]
        elif not known and not self.isr and not self.eligible:
            known = [id_ for id_ in self.replicas if id_ in state.eligible_leader_replicas][:1]
        if known != list(state.last_known_elr):
            new.last_known_elr = known

    def _write_assignment(self, new) -> None:
        state = self.state
        if self.replicas != list(state.replicas) or any(
                self._known.get(id_) != directory for id_, directory in self.directories.items()):
            # Directories are in the order of the replicas. A cluster without assigned directories
            # has none.
            directories = [self._directory(id_) for id_ in self.replicas]
            if (state.directories or self.directories) and directories != list(state.directories):
                new.directories = directories
            if self.replicas != list(state.replicas):
                new.replicas = self.replicas
        if self.removing != list(state.removing_replicas):
            new.removing_replicas = self.removing
        if self.adding != list(state.adding_replicas):
            new.adding_replicas = self.adding

    def _directory(self, broker_id: int) -> bytes:
        for known in (self.directories, self._known):
            if broker_id in known:
                return known[broker_id]
        return topics.directory_of(self.rules.image, broker_id)


def _changes(new) -> bool:
    return new.leader != NO_LEADER_CHANGE or new.leader_recovery_state != -1 or any(
        getattr(new, field) is not None for field in (
            "isr", "replicas", "removing_replicas", "adding_replicas", "directories",
            "eligible_leader_replicas", "last_known_elr"))
