"""A controller's decisions with model brokers, driven by a seed.

The decisions are pylog's. A broker here is a list of records for each partition, an outdated view
of the metadata, and the rules that leaders and followers obey. Every acknowledged record must be in
the log of every leader elected afterwards.
"""

import random
from types import SimpleNamespace

from pylog.metadata.controller import broker_registration
from pylog.metadata.controller.partitions import alter_partition
from pylog.metadata.controller.partitions import elections, reassignments
from pylog.metadata.image.image import NO_LEADER
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode as E
from tests.metadata.controller.partitions.test_topics import decided
from tests.metadata.controller.test_broker_registration import FEATURES, SESSION_NS, Cluster

BROKERS = (1, 2, 3, 4)
PARTITIONS = 2
MIN_IN_SYNC = 2
ALTER = messages.AlterPartitionRequest


class Wrong(Exception):
    """An invariant is violated."""


class Node:
    """A broker: `log[partition]` is [(leader epoch, payload)]; `view` is an older image."""

    def __init__(self, id_):
        self.id = id_
        self.incarnation = 0
        self.log = [[] for _ in range(PARTITIONS)]
        self.clean_epoch = -1
        self.start()

    def start(self):
        self.up, self.epoch, self.stopping = True, None, False
        self.incarnation += 1
        self.high = [0] * PARTITIONS
        self.leads = {}  # partition -> the leader's state for its epoch
        self.view = None

    def end(self, partition):
        return len(self.log[partition])

    def last_epoch(self, partition):
        return self.log[partition][-1][0] if self.log[partition] else -1

    def end_for(self, partition, epoch):
        """Return (newest epoch <= `epoch`, offset after its last record)."""
        log = self.log[partition]
        end = sum(1 for of, _ in log if of <= epoch)
        return (log[end - 1][0] if end else -1), end


class World:
    """A run. faults: names of planted bugs of brokers."""

    def __init__(self, seed, faults=()):
        self.random = random.Random(seed)
        self.faults = frozenset(faults)
        self.cluster = Cluster(**{"min.insync.replicas": str(MIN_IN_SYNC)})
        self.history = [self.cluster.image]
        self.nodes = {id_: Node(id_) for id_ in BROKERS}
        self.weak = self.random.choice(BROKERS)  # Loses unflushed records in a power loss.
        self.acked = [[] for _ in range(PARTITIONS)]
        self.sent = []
        self.payload = 0
        for node in self.nodes.values():
            self.register(node)
            node.view = self.history[-1]
            self.beat(node)
        self.cluster.create(*[self.random.sample(BROKERS, 3) for _ in range(PARTITIONS)])
        self.history.append(self.cluster.image)
        for node in self.nodes.values():
            self.learn(node)

    # ---- the controller -------------------------------------------------------------------------

    def commit(self, records):
        if not records:
            return
        before = self.cluster.image
        self.cluster.take(records)
        self.history.append(self.cluster.image)
        if "t" in before.topics:
            for index in range(PARTITIONS):
                self.check(index, before.partition("t", index), self.cluster.state(index))

    def check(self, index, old, new):
        if new.leader_epoch == old.leader_epoch or new.leader == NO_LEADER:
            return
        log = self.nodes[new.leader].log[index]
        if new.leader_recovery_state and new.leader == self.weak:
            # All other replicas crashed too and it led last: records that its disk lost are gone.
            self.acked[index] = [(offset, payload) for offset, payload in self.acked[index]
                                 if offset < len(log) and log[offset][1] == payload]
        for offset, payload in self.acked[index]:
            if offset >= len(log) or log[offset][1] != payload:
                raise Wrong(f"{index}: leader {new.leader} of epoch {new.leader_epoch} lacks "
                            f"{payload} at {offset}: {old} -> {new}")

    def register(self, node):
        request = messages.BrokerRegistrationRequest
        cluster = self.cluster
        try:
            records, epoch = decided(broker_registration.register(
                cluster.rules, cluster.heartbeats, request(
                    broker_id=node.id, cluster_id="a-cluster",
                    incarnation_id=bytes([node.id, node.incarnation % 256]) * 8,
                    features=[request.Feature(name=name, min_supported_version=low,
                                              max_supported_version=high)
                              for name, (low, high) in FEATURES.items()],
                    log_dirs=[bytes([node.id]) * 16], previous_broker_epoch=node.clean_epoch),
                "a-cluster", cluster.now))
        except Refusal:
            return
        self.commit(records)
        cluster.heartbeats.registered(node.id, cluster.image.offset)
        node.epoch = epoch

    def beat(self, node):
        if node.view is None:
            return
        request = messages.BrokerHeartbeatRequest(
            broker_id=node.id, broker_epoch=node.epoch, want_shut_down=node.stopping,
            current_metadata_offset=node.view.offset)
        cluster = self.cluster
        try:
            state = None
            if broker_registration.needs_decision(cluster.image, cluster.heartbeats, request):
                records, state = decided(
                    broker_registration.process_heartbeat(cluster.rules, cluster.heartbeats,
                                                          request))
                self.commit(records)
                if state.is_stopping and records:
                    cluster.heartbeats.stopping(node.id, cluster.image.offset)
            cluster.heartbeats.touch(node.id, node.view.offset, 0, cluster.now)
        except Refusal:
            node.epoch = None
            return
        if state is not None and state.may_stop:
            cluster.heartbeats.end(node.id)
            node.clean_epoch, node.up, node.leads = node.epoch, False, {}

    def tick(self):
        self.cluster.now += self.random.randrange(SESSION_NS // 2)
        self.fence_silent()

    def fence_silent(self):
        for id_ in self.cluster.heartbeats.silent(self.cluster.image, self.cluster.now):
            self.commit(decided(broker_registration.fenced(self.cluster.rules, id_)))

    def judge(self, node):
        """Treat the node as failed: its connection closed and its listener refused."""
        broker = self.cluster.image.brokers.get(node.id)
        if not node.up and broker is not None and not broker.fenced:
            self.cluster.heartbeats.end(node.id)
            self.fence_silent()

    # ---- a broker's steps -----------------------------------------------------------------------

    def learn(self, node):
        """Apply metadata up to some newer image."""
        at = 0 if node.view is None else next(
            number for number, image in enumerate(self.history) if image is node.view)
        node.view = self.history[self.random.randint(at, len(self.history) - 1)]
        self.follow_roles(node)

    def follow_roles(self, node):
        for index in range(PARTITIONS):
            state = node.view.partition("t", index)
            if state is None:
                continue
            known = node.leads.get(index)
            if state.leader != node.id:
                node.leads.pop(index, None)
            elif known is None or known.epoch != state.leader_epoch:
                node.leads[index] = SimpleNamespace(
                    epoch=state.leader_epoch, ends={}, proposed=None, pending=[],
                    start=0 if "joins early" in self.faults else node.end(index))
            elif known.proposed and known.proposed.partition_epoch < state.partition_epoch:
                known.proposed = None
            self.move_high(node, index)

    def produce(self, node, index):
        known, state = node.leads.get(index), node.view.partition("t", index)
        if known is None or len(state.isr) < MIN_IN_SYNC:
            return
        self.payload += 1
        known.pending.append((node.end(index), self.payload))
        node.log[index].append((known.epoch, self.payload))
        self.move_high(node, index)

    def move_high(self, node, index):
        known = node.leads.get(index)
        if known is None:
            return
        state = node.view.partition("t", index)
        members = set(state.isr)
        if known.proposed and "by committed" not in self.faults:
            members |= {member.broker_id for member in known.proposed.new_isr_with_epochs}
        if len(state.isr) < min(MIN_IN_SYNC, len(state.replicas)) and (
                "below minimum" not in self.faults):
            return
        ends = [node.end(index)] + [known.ends.get(id_, (0, 0))[1]
                                    for id_ in members if id_ != node.id]
        node.high[index] = max(node.high[index], min(ends))
        while known.pending and known.pending[0][0] < node.high[index]:
            self.acked[index].append(known.pending.pop(0))

    def fetch(self, node, index):
        state = node.view.partition("t", index)
        leader = self.nodes.get(state.leader)
        if leader is None or leader is node or not leader.up or node.id not in state.replicas:
            return
        known = leader.leads.get(index)
        if known is None or known.epoch != state.leader_epoch:
            return
        registered = leader.view.brokers.get(node.id)
        if registered is None or registered.epoch > node.epoch:
            return
        mine = node.log[index]
        epoch, end = leader.end_for(index, node.last_epoch(index))
        if mine and (epoch != node.last_epoch(index) or end < len(mine)):
            if "no truncation" not in self.faults:
                del mine[min(end, node.end_for(index, epoch)[1]):]
                return
        # The fetch offset acknowledges all records before it.
        known.ends[node.id] = (node.epoch, len(mine))
        self.move_high(leader, index)
        mine += leader.log[index][len(mine):len(mine) + self.random.randint(1, 3)]
        node.high[index] = min(leader.high[index], len(mine))

    def propose(self, node, index):
        known, state = node.leads.get(index), node.view.partition("t", index)
        if known is None or known.proposed is not None:
            return
        members = set(state.isr)
        for id_ in state.replicas:
            end = known.ends.get(id_, (0, 0))[1]
            if id_ in members and id_ != node.id and end < node.end(index):
                if self.random.random() < 0.3:
                    members.discard(id_)
            elif id_ in known.ends and end >= max(node.high[index], known.start) and (
                    node.view.broker_is_active(id_)):
                members.add(id_)
        if members == set(state.isr):
            return
        known.proposed = ALTER.PartitionData(
            partition_index=index, leader_epoch=known.epoch, partition_epoch=state.partition_epoch,
            new_isr_with_epochs=[ALTER.BrokerState(
                broker_id=id_, broker_epoch=node.epoch if id_ == node.id else known.ends.get(
                    id_, (node.view.brokers[id_].epoch, 0))[0]) for id_ in sorted(members)])
        self.sent.append((node, node.epoch, known, known.proposed))

    def deliver(self):
        """Deliver one of the pending requests, possibly not for the last time."""
        if not self.sent:
            return
        at = self.random.randrange(len(self.sent))
        node, epoch, known, wanted = self.sent[at]
        if self.random.random() < 0.8:
            del self.sent[at]
        cluster = self.cluster
        try:
            broker_registration.check_epoch(cluster.image, node.id, epoch)
        except Refusal:
            return
        request = ALTER(broker_id=node.id, topics=[ALTER.TopicData(
            topic_id=cluster.image.topics["t"].id, partitions=[wanted])])
        records, answer = alter_partition.change_isr(cluster.rules, request, 3)
        for member in wanted.new_isr_with_epochs:
            if records and member.broker_id not in self.cluster.image.brokers:
                raise Wrong(f"{member} is in an ISR and not registered")
        self.commit(records)
        if answer.topics[0].partitions[0].error_code == E.INELIGIBLE_REPLICA and (
                known.proposed is wanted):
            known.proposed = None

    # ---- faults and admin operations ------------------------------------------------------------

    def kill(self, node):
        node.up, node.leads, node.clean_epoch = False, {}, -1
        if node.id == self.weak and self.random.random() < 0.5:
            for log in node.log:
                del log[max(0, len(log) - self.random.randrange(4)):]

    def reassign(self, index):
        new = messages.AlterPartitionReassignmentsRequest
        replicas = None if self.random.random() < 0.3 else self.random.sample(
            BROKERS, self.random.choice((2, 3)))
        records, _ = reassignments.alter(self.cluster.rules, [new.ReassignableTopic(
            name="t", partitions=[new.ReassignablePartition(
                partition_index=index, replicas=replicas)])], True)
        self.commit(records)

    def step(self):
        kind, index = self.random.random(), self.random.randrange(PARTITIONS)
        node = self.nodes[self.random.choice(BROKERS)]
        if not node.up:
            self.judge(node) if kind < 0.5 else node.start() if kind < 0.7 else self.tick()
        elif node.epoch is None:
            self.register(node) if kind < 0.7 else self.tick()
        elif kind < 0.25:
            self.learn(node)
            self.beat(node)
        elif node.view is None or node.view.partition("t", index) is None:
            self.learn(node)
        elif kind < 0.45:
            self.produce(node, index)
        elif kind < 0.75:
            self.fetch(node, index)
        elif kind < 0.85:
            self.propose(node, index)
        elif kind < 0.93:
            self.deliver()
        elif kind < 0.94:
            self.commit(decided(elections.balanced(self.cluster.rules)))
        elif kind < 0.955:
            self.tick()
        elif kind < 0.97:
            self.reassign(index)
        elif kind < 0.98:
            node.stopping = True
        elif kind < 0.99:
            self.kill(node)

    def compare(self):
        """Check that records with equal offsets and epochs are equal."""
        for index in range(PARTITIONS):
            found = {}
            for node in self.nodes.values():
                for offset, (epoch, payload) in enumerate(node.log[index]):
                    if found.setdefault((offset, epoch), payload) != payload:
                        raise Wrong(f"{index}: two records at {offset} of epoch {epoch}")

    def heal(self, rounds=60):
        """End all faults: every partition must get a leader and all of its replicas in sync."""
        for _ in range(rounds):
            for node in self.nodes.values():
                if not node.up:
                    self.judge(node)
                    node.start()
                if node.epoch is None:
                    self.cluster.now += SESSION_NS
                    self.fence_silent()
                    self.register(node)
                    continue
                node.view = self.history[-1]
                self.follow_roles(node)
                self.beat(node)
                if node.epoch is None or not node.up:
                    continue
                for index in range(PARTITIONS):
                    self.fetch(node, index)
                    self.propose(node, index)
                while self.sent:
                    self.deliver()
        for index in range(PARTITIONS):
            state = self.cluster.state(index)
            if state.leader == NO_LEADER or set(state.isr) != set(state.replicas) or (
                    state.adding_replicas):
                raise Wrong(f"{index} does not get well: {state}")


def run(seed, faults=(), steps=400):
    """Run a seed. Raises Wrong."""
    world = World(seed, faults)
    for number in range(steps):
        world.step()
        if number % 20 == 0:
            world.compare()
    world.heal()
    world.compare()
    return world
