"""The invariants of a simulated cluster, checked at every event.

Owns: the history of commits, acknowledgements and leaders.
Invariants: durability: records below a leader's high watermark stay on every in-sync replica
  forever, unless an unclean election dropped them; equal logs: one leader appends per epoch, and
  records with equal offsets and epochs are equal; metadata: the metadata log is the same everywhere
  and has no gaps; elections: a replica that joins an ISR is neither fenced nor in shutdown, and an
  elected leader was in sync or eligible or is marked as unclean; reassignments: one ends when its
  new replicas are in sync, or when it is cancelled; members: an etcd member is removed only after
  no other member was connected to it for the configured time, and there is one etcd cluster.
Source: KIP-101, KIP-497, KIP-841, KIP-966, KIP-455.
"""

from collections import defaultdict

from pylog._native.records import batch
from pylog.metadata.image import snapshot
from pylog.metadata.image.image import NO_LEADER, Image
from pylog.metadata.image.loader import Tail
from pylog.metadata.log.metadata_log import MetadataBatch
from pylog.metadata.quorum.etcd_bootstrap import EXISTING
from tests.sim.loop import Wrong
from tests.sim.producers import Part

ABSENT_SLACK_S = 1.0  # The time between two samples of the connections.

class Watcher:
    """The checks. world: provides `nodes` and `keeps_eligible`."""

    def __init__(self, world):
        self._world = world
        self.committed: dict = defaultdict(list)     # key -> [Record]
        self.acked: dict = defaultdict(dict)         # key -> {offset: payload}
        self._records: dict = defaultdict(dict)      # key -> {(offset, epoch): payload}
        self._leaders: dict = {}                     # (key, epoch) -> node id
        self._unclean: dict = defaultdict(lambda: -1)    # key -> its newest unclean epoch
        self._may_lose: set = set()      # (key, epoch) of unclean elections
        self._batches: dict = {}                     # base offset -> bytes
        self._tail = Tail(Image())
        self._end = 0
        self.elections = self.moves = 0

    def of(self, node):
        return Seen(self, node)

    @property
    def image(self) -> Image:
        """Return the image of all records that any controller committed."""
        return self._tail.newest

    # ---- partitions -----------------------------------------------------------------------------

    def leads(self, node, log) -> None:
        key, epoch = log.key, log.leader_epoch
        leader = self._leaders.setdefault((key, epoch), node.id)
        if leader != node.id:
            raise Wrong(f"{_text(key)}: {leader} and {node.id} lead in epoch {epoch}")
        if epoch < self._unclean[key]:
            return
        state = self._state(key)
        # A leader that learns late of a newer epoch cannot commit anything.
        is_over = state is not None and state.leader_epoch > epoch
        if (key, epoch) in self._may_lose or key in node.disk.lost and not is_over:
            self._forgive(key, node, log)
        if is_over:
            return
        self._check_holds(key, node, f"leader of epoch {epoch}")

    def _check_holds(self, key, node, what: str) -> None:
        """Check that a replica has every committed record. Keeps durability."""
        files, committed = node.disk.partitions.get(key), self.committed[key]
        records = files.records if files is not None else []
        if records[:len(committed)] == committed or key in node.disk.lost:
            return
        at = next(offset for offset, record in enumerate(committed)
                  if offset >= len(records) or records[offset] != record)
        raise Wrong(f"{_text(key)}: {node.name}, {what}, lacks {committed[at]} at {at}: it has "
                    f"{records[at:at + 2]} and ends at {len(records)}; "
                    f"{self._state(key)}")

    def _state(self, key):
        topic = self.image.topics_by_id.get(key[0])
        return topic.partitions[key[1]] if topic is not None else None

    def committed_by(self, node, log, before: int) -> None:
        """Check a leader's high watermark that advanced from `before`."""
        key = log.key
        if log.leader_epoch < self._unclean[key] or key[0] not in self.image.topics_by_id:
            return
        self._compare(node, log, before, True)
        state = self._state(key)
        for id_ in () if state.leader_recovery_state else state.isr:
            self._check_holds(key, self._world.nodes[id_], f"in the ISR {state.isr}")

    def _compare(self, node, log, before: int, leads: bool) -> None:
        known, records = self.committed[log.key], log.files.records
        for offset in range(before, log.high_watermark):
            if offset == len(known) and leads:
                known.append(records[offset])
            elif offset >= len(known) or known[offset] != records[offset]:
                if log.key in node.disk.lost:
                    return
                raise Wrong(
                    f"{_text(log.key)}: {node.name} of epoch {log.leader_epoch} takes "
                    f"{records[offset]} at {offset} for committed, not {known[offset:offset + 1]}")

    def follows_to(self, node, log, before: int) -> None:
        if log.leader_epoch >= self._unclean[log.key] and log.key[0] in self.image.topics_by_id:
            self._compare(node, log, before, False)

    def appended(self, node, log, offset: int, record) -> None:
        known = self._records[log.key].setdefault((offset, record.epoch), record.payload)
        if known != record.payload:
            raise Wrong(f"{_text(log.key)}: {known} and {record.payload} at {offset} of epoch "
                        f"{record.epoch}")
        if log.is_leader and self._leaders.get((log.key, record.epoch)) != node.id:
            raise Wrong(f"{_text(log.key)}: {node.name} appends in epoch {record.epoch}")

    def acknowledged(self, key, offset: int, payload) -> None:
        """Record the acknowledgement of a producer with acks=all."""
        known = self.committed[key]
        topic = self.image.topics_by_id.get(key[0])
        if topic is None or self._unclean[key] >= 0 or self._anybody_lost(key):
            return
        if offset >= len(known) or known[offset].payload != payload:
            raise Wrong(f"{_text(key)}: {payload} was acknowledged at {offset} before it was "
                        f"committed: {known[offset:offset + 1]} of {len(known)}")
        self.acked[key][offset] = payload

    def _anybody_lost(self, key) -> bool:
        return any(key in node.disk.lost for node in self._world.nodes.values())

    def consumed(self, key, offset: int, records) -> None:
        """Check records that a consumer received from `offset` on."""
        if self._unclean[key] >= 0 or self._anybody_lost(key) \
                or key[0] not in self.image.topics_by_id:
            return
        known = self.committed[key]
        if known[offset:offset + len(records)] != records:
            raise Wrong(f"{_text(key)}: read at {offset}: {records}, not {known[offset:]}")

    # ---- the metadata log -----------------------------------------------------------------------

    def metadata(self, node, base: int, data: bytes) -> None:
        """Check a batch of the metadata log. Keeps the metadata."""
        known = self._batches.setdefault(base, data)
        if known != data:
            raise Wrong(f"{node.name} has another batch of metadata at {base}")
        if base != self._end:
            if base > self._end:
                raise Wrong(f"the metadata at {base} comes before that at {self._end}")
            return
        _, header = next(batch.walk(data))
        records = snapshot.decoded(data, header)
        before = self.image
        self._end = base + len(records)
        self._tail.push(self._tail.fold(MetadataBatch(
            self._end - 1, header.leader_epoch, records)))
        self._tail.begin()
        after = self.image
        for id_ in sorted(after.topics_by_id.keys() & before.topics_by_id.keys()):
            for index, state in enumerate(after.topics_by_id[id_].partitions):
                olds = before.topics_by_id[id_].partitions
                if index < len(olds) and olds[index] is not state:
                    self._check_change((id_, index), olds[index], state, after)
        for id_ in sorted(before.topics_by_id.keys() - after.topics_by_id.keys()):
            for known in (self.committed, self.acked, self._records):
                for key in [key for key in known if key[0] == id_]:
                    del known[key]

    # ---- etcd's members -------------------------------------------------------------------------

    def member_removed(self, member) -> None:
        """Check the removal of an etcd member. Keeps members."""
        node = next(node for node in self._world.controllers if node.name == member.address)
        absent_s = self._world.loop.time() - member.connected_at
        if absent_s < node.settings["quorum.etcd.replace.after.ms"] / 1000 - ABSENT_SLACK_S:
            raise Wrong(f"the etcd member of {member.address} is removed, and another member was "
                        f"connected to it {absent_s:.1f} s ago")

    def member_starts(self, process, state: str) -> None:
        """Check how an etcd without data starts. Keeps members."""
        if state != EXISTING:
            raise Wrong(f"{process.name} starts a second etcd cluster")

    def _check_change(self, key, old, new, image) -> None:
        if new.leader != old.leader or new.leader_epoch != old.leader_epoch:
            self._check_election(key, old, new)
        for id_ in set(new.isr) - set(old.isr):
            # Keeps elections.
            broker = image.brokers.get(id_)
            if broker is None or broker.fenced or broker.in_controlled_shutdown:
                raise Wrong(f"{_text(key)}: {id_} is in the ISR and {broker}")
            node = self._world.nodes[id_]
            if id_ != new.leader and node.alive and node.process.membership is not None \
                    and node.process.membership.channel.broker_epoch == broker.epoch:
                # It has fetched any record that it had lost.
                node.disk.lost.discard(key)
        if not set(new.isr) <= set(new.replicas):
            raise Wrong(f"{_text(key)}: an ISR of others than the replicas: {new}")
        if new.partition_epoch <= old.partition_epoch or new.leader_epoch < old.leader_epoch:
            raise Wrong(f"{_text(key)}: epochs do not rise: {old} -> {new}")
        if _ends_move(old, new):
            self._check_move(key, old, new)
        if not new.leader_recovery_state:
            for id_ in new.isr:
                if new.leader_epoch >= self._unclean[key]:
                    self._check_holds(key, self._world.nodes[id_], f"entering {new}")

    def _check_election(self, key, old, new) -> None:
        if new.leader == NO_LEADER or new.leader == old.leader and new.leader in old.isr:
            return
        self.elections += 1
        if new.leader_recovery_state:
            self._may_lose.add((key, new.leader_epoch))
        elif new.leader not in old.isr and new.leader not in old.eligible_leader_replicas \
                and not _completes_move(old, new):
            raise Wrong(f"{_text(key)}: {new.leader} was neither in sync nor eligible: "
                        f"{old} -> {new}")

    def _forgive(self, key, node, log) -> None:
        """Accept the data of an uncleanly elected leader as the new reference."""
        records, known = node.disk.partitions[key].records, self.committed[key]
        common = next((offset for offset, record in enumerate(known)
                       if offset >= len(records) or records[offset] != record), len(known))
        node.disk.lost.discard(key)
        if common < max(len(known), log.high_watermark) or (
                (key, log.leader_epoch) in self._may_lose):
            self._unclean[key] = log.leader_epoch
            known[:] = records[:max(common, log.high_watermark)]
            self.acked[key] = {offset: payload for offset, payload in self.acked[key].items()
                               if offset < common}

    def _check_move(self, key, old, new) -> None:
        """Check the end of a reassignment. Keeps reassignments."""
        self.moves += 1
        if set(old.adding_replicas) & set(new.replicas):
            # The end and a later ISR shrink may become visible together.
            is_next = new.partition_epoch == old.partition_epoch + 1
            if is_next and not set(old.adding_replicas) & set(new.replicas) <= set(new.isr):
                raise Wrong(f"{_text(key)}: a move ends early: {old} -> {new}")

    # ---- at the end -----------------------------------------------------------------------------

    def records_of(self, name: str) -> list:
        """Return the records of each partition's leader of a topic."""
        topic = self.image.topics[name]
        return [self._world.nodes[state.leader].disk.partitions[topic.id, index].records
                for index, state in enumerate(topic.partitions)]

    def check_failover(self, gone: int) -> None:
        """Check that a failed broker leads nothing, unless it was the only in-sync replica."""
        image = self.image
        if not image.brokers[gone].fenced:
            raise Wrong(f"broker {gone} is gone and not fenced")
        for topic in image.topics.values():
            for index, state in enumerate(topic.partitions):
                others = set(state.replicas) - {gone}
                if state.leader == gone or others and (
                        set(state.isr) != others or state.leader not in others):
                    raise Wrong(f"{_text((topic.id, index))} does without {gone}: {state}")

    def check_without_disk(self, node, place: int) -> None:
        """Check that a failed disk holds no leader and no in-sync replica, unless it was the only
        one.
        """
        image = self.image
        for key, files in node.disk.partitions.items():
            topic = image.topics_by_id.get(key[0])
            if topic is None or files.place != place:
                continue
            state = topic.partitions[key[1]]
            if state.leader == node.id or node.id in state.isr and len(state.isr) > 1:
                raise Wrong(f"{_text(key)} does not do without a disk of {node.id}: {state}")

    def check_rest(self) -> None:
        """Check the cluster after all faults ended and all requests completed."""
        image = self.image
        for broker in image.brokers.values():
            if broker.fenced or broker.in_controlled_shutdown:
                raise Wrong(f"broker {broker.id} does not come back: {broker}")
        if sorted(map(str, self._world.members.machines)) != sorted(
                node.name for node in self._world.controllers):
            raise Wrong(f"etcd's members run on {self._world.members.machines}")
        for topic in image.topics.values():
            for index, state in enumerate(topic.partitions):
                self._check_rest_of((topic.id, index), state)
        for node in self._world.nodes.values():
            process = node.process
            if node.disk.deleted:
                raise Wrong(f"{node.name} uses directories that were deleted: "
                            f"{sorted(node.disk.deleted)}")
            if process.stopping or not _is_member(node, image):
                raise Wrong(f"{node.name} comes or goes still")
            if process.metadata.tail.published != image:
                raise Wrong(f"{node.name} has {process.metadata.tail.published.offset} of "
                            f"{image.offset} in force")

    def _check_rest_of(self, key, state) -> None:
        name, nodes = _text(key), self._world.nodes
        if state.leader != state.replicas[0] or set(state.isr) != set(state.replicas) \
                or state.adding_replicas or state.removing_replicas:
            raise Wrong(f"{name} does not get well: {state}")
        leader = nodes[state.leader].disk.partitions[key].records
        for id_ in state.replicas:
            if nodes[id_].disk.partitions[key].records != leader:
                raise Wrong(f"{name}: {id_} and its leader {state.leader} differ at rest")
        committed = self.committed[key]
        if leader[:len(committed)] != committed:
            raise Wrong(f"{name}: committed records are gone at rest")
        for offset, payload in self.acked[key].items():
            if leader[offset].payload != payload:
                raise Wrong(f"{name}: {payload} was acknowledged at {offset} and is gone")
        known = [record.payload for record in leader
                 if not isinstance(record.payload, Part) and record.payload[0] >= 0]
        if len(set(known)) < len(known):
            raise Wrong(f"{name}: an idempotent producer's records are there twice")


class Seen:
    """A node's interface to the watcher."""

    def __init__(self, watcher, node):
        self._watcher, self._node = watcher, node

    def leads(self, log):
        self._watcher.leads(self._node, log)

    def committed(self, log, before):
        self._watcher.committed_by(self._node, log, before)

    def follows_to(self, log, before):
        self._watcher.follows_to(self._node, log, before)

    def appended(self, log, offset, record):
        self._watcher.appended(self._node, log, offset, record)

    def metadata(self, base, data):
        self._watcher.metadata(self._node, base, data)


def _is_member(node, image) -> bool:
    """Return True if a node performs its roles.

    A broker whose host lost power stays in the image and in every ISR until its next process has
    found a controller to register with.
    """
    if "broker" not in node.roles:
        return True
    membership = node.process.membership
    return membership is not None and (
        membership.channel.broker_epoch == image.brokers[node.id].epoch)


def _ends_move(old, new) -> bool:
    return bool(old.adding_replicas or old.removing_replicas) and not (
        new.adding_replicas or new.removing_replicas)


def _text(key) -> str:
    return f"{bytes(key[0]).hex()[:6]}-{key[1]}"


def _completes_move(old, new) -> bool:
    """Return True if a reassignment completes.

    Cancelled ones are excluded: the same change may elect the replica that it adds to the ISR.
    """
    return _ends_move(old, new) and set(old.adding_replicas) <= set(new.replicas) \
        and not set(old.removing_replicas) & set(new.replicas)
