"""Simulation of a classic group, its clients and the network, from one seed on a virtual clock.

The state machine is real; its records go to a list instead of the log. A restart discards the
machine and rebuilds it from the flushed records; unflushed records are lost, with the responses
that waited for them. Messages are lost, delayed and duplicated.
"""

import heapq
import itertools
from types import SimpleNamespace

from pylog.coordinator.groups import offsets
from pylog.coordinator.groups.state.classic_group import STABLE
from pylog.coordinator.groups.classic.protocol import SentResponse
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.state.group_config import Limits
from pylog.protocol import messages

GROUP, TOPIC = "g", "t"
PARTITIONS = 6
LIMITS = Limits(1, 10**6, 100, 20, 4096, 10**12)
TOPIC_ID = bytes(15) + b"\x07"


class Clock:
    """A virtual clock in milliseconds."""

    def __init__(self):
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.ms


class Disk:
    """The log: records, the first `durable` of which survive a restart."""

    def __init__(self):
        self.records = []
        self.durable = 0


def loaded(state_machine, kept) -> None:
    """Replay records as the service does."""
    for key, value in kept:
        state_machine.replay(key, value)
    state_machine.loaded()


class Consumer:
    """The state of a client of the group protocol."""

    def __init__(self, name: str, instance: str | None):
        self.name = name
        self.instance = instance
        self.member = ""
        self.generation = -1
        self.owned = None  # partitions, while the client considers its generation valid
        self.waiting = None  # number of the current request
        self.arrives_ms = 0  # arrival time of the last request at the broker

    def forget(self) -> None:
        self.member, self.generation, self.owned, self.waiting = "", -1, None, None


class World:
    """random: a seeded random.Random. Call step() repeatedly, then check the recorded state."""

    def __init__(self, random):
        self.random = random
        self.clock = Clock()
        self.disk = Disk()
        self.events = []
        self.numbers = itertools.count()
        self.ids = itertools.count()
        self.loss = random.choice((0, 0.02, 0.1))
        self.twice = random.choice((0, 0.05))
        self.owners = {}          # generation -> {partition: member}
        self.newest = 0           # The group's generation since the last restart.
        self.committed = {}       # partition -> the highest offset acknowledged
        self.consumers = [Consumer(f"c{n}", f"i{n}" if random.random() < 0.3 else None)
                          for n in range(random.randrange(1, 5))]
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.start_machine()
        for consumer in self.consumers:
            self.at(random.randrange(50), self.act, consumer)

    # ---- the broker -----------------------------------------------------------------------------

    def start_machine(self) -> None:
        self.state_machine = GroupShard(LIMITS, self.clock, lambda: str(next(self.ids)))
        self.held = []
        loaded(self.state_machine, self.disk.records)
        self.settle()

    def restart(self) -> None:
        """kill -9 and power loss: unflushed records are lost."""
        del self.disk.records[self.disk.durable:]
        self.newest = 0
        self.start_machine()

    def settle(self) -> None:
        state_machine = self.state_machine
        self.disk.records += state_machine.records
        state_machine.records = []
        replies, state_machine.responses = state_machine.responses, []
        for token, message in replies:
            self.answer(token, message)
        due = state_machine.timers.next_ms()
        if due is not None:
            self.at(max(0, due - self.clock.ms), self.tick, state_machine)

    def answer(self, token, message) -> None:
        if self.disk.durable < len(self.disk.records):
            self.held.append((len(self.disk.records), token, message))
        else:
            self.send(token, message)

    def flush(self) -> None:
        self.disk.durable = len(self.disk.records)
        held, self.held = self.held, []
        for _, token, message in held:
            self.send(token, message)

    def tick(self, state_machine) -> None:
        if state_machine is self.state_machine:
            state_machine.tick()
            self.settle()

    # ---- network -------------------------------------------------------------------------------

    def at(self, delay_ms: int, call, *arguments) -> None:
        heapq.heappush(self.events, (self.clock.ms + delay_ms, next(self.numbers), call, arguments))

    def send(self, token, message) -> None:
        if isinstance(token, SentResponse):
            token.respond(message)
            return
        if self.random.random() >= self.loss:
            consumer, number, then = token
            self.at(self.random.randrange(8), self.receive, consumer, number, then, message)

    def receive(self, consumer, number, then, message) -> None:
        if consumer.waiting == number:
            consumer.waiting = None
            then(consumer, message)

    def request(self, consumer, call, then, timeout_ms: int = 400) -> None:
        """Send a request, perhaps twice, perhaps never; give up after a while.

        In order, as on a connection: a duplicate after the next commit would undo it, as it would
        in Kafka.
        """
        number = consumer.waiting = next(self.numbers)
        token = consumer, number, then
        least_ms = max(0, consumer.arrives_ms - self.clock.ms)
        for _ in range(2 if self.random.random() < self.twice else 1):
            if self.random.random() >= self.loss:
                delay_ms = max(least_ms, self.random.randrange(8))
                consumer.arrives_ms = max(consumer.arrives_ms, self.clock.ms + delay_ms)
                self.at(delay_ms, self.deliver, call, token)
        self.at(timeout_ms, self.give_up, consumer, number)

    def deliver(self, call, token) -> None:
        call(token)
        self.settle()

    def give_up(self, consumer, number) -> None:
        if consumer.waiting == number:
            consumer.waiting = None
            self.at(5, self.act, consumer)

    def step(self) -> bool:
        """Process the next event; return False if there is none."""
        if not self.events:
            return False
        self.clock.ms, _, call, arguments = heapq.heappop(self.events)
        call(*arguments)
        if self.disk.durable < len(self.disk.records) and self.random.random() < 0.5:
            self.flush()
        return True

    # ---- the consumers --------------------------------------------------------------------------

    def act(self, consumer) -> None:
        """Take the next step of an idle consumer."""
        if consumer.waiting is not None:
            return
        chance = self.random.random()
        if consumer.owned is None:
            self.join(consumer)
        elif chance < 0.5:
            self.heartbeat(consumer)
        elif chance < 0.9 and consumer.owned:
            self.commit(consumer)
        elif chance < 0.94:
            self.leave(consumer)
        elif chance < 0.97:
            consumer.forget()  # The client crashes and returns later.
            self.at(self.random.randrange(300), self.act, consumer)
        else:
            self.at(self.random.randrange(30), self.act, consumer)

    def join(self, consumer) -> None:
        consumer.owned = None
        request = messages.JoinGroupRequest(
            group_id=GROUP, session_timeout_ms=100, rebalance_timeout_ms=150,
            member_id=consumer.member, group_instance_id=consumer.instance,
            protocol_type="consumer", protocols=[messages.JoinGroupRequest.JoinGroupRequestProtocol(
                name="range", metadata=b"")])
        self.request(consumer, lambda token: self.state_machine.join(
            request, 9, consumer.name, "/h", token), self.joined)

    def joined(self, consumer, answer) -> None:
        if answer.error_code == 79:
            consumer.member = answer.member_id
        elif answer.error_code in (25, 82):
            consumer.forget()
        elif answer.error_code == 0:
            consumer.member = answer.member_id
            consumer.generation = answer.generation_id
            self.sync(consumer, answer)
            return
        self.at(self.random.randrange(5), self.act, consumer)

    def sync(self, consumer, answer) -> None:
        new = messages.SyncGroupRequest
        shares = {}
        if answer.members and not answer.skip_assignment:
            members = [row.member_id for row in answer.members]
            for partition in range(PARTITIONS):
                owner = members[partition % len(members)]
                shares[owner] = shares.get(owner, b"") + bytes((partition,))
        request = new(
            group_id=GROUP, generation_id=answer.generation_id, member_id=consumer.member,
            group_instance_id=consumer.instance, protocol_type="consumer", protocol_name="range",
            assignments=[new.SyncGroupRequestAssignment(member_id=member, assignment=share)
                         for member, share in shares.items()])
        self.request(consumer, lambda token: self.state_machine.sync(request, token), self.synced)

    def synced(self, consumer, answer) -> None:
        if answer.error_code == 0:
            self.own(consumer, answer.assignment)
        elif answer.error_code in (25, 82):
            consumer.forget()
        self.at(self.random.randrange(10), self.act, consumer)

    def own(self, consumer, share: bytes) -> None:
        """Check the invariants of ownership."""
        generation = consumer.generation
        owners = self.owners.setdefault(generation, {})
        key = consumer.instance or consumer.member
        for partition in share:
            other = owners.setdefault(partition, key)
            assert other == key, f"generation {generation}: {partition} of {other} and {key}"
        consumer.owned = set(share)

    def heartbeat(self, consumer) -> None:
        request = SimpleNamespace(group_id=GROUP, generation_id=consumer.generation,
                                  member_id=consumer.member, group_instance_id=consumer.instance)
        self.request(consumer,
                     lambda token: self.send(token, self.state_machine.heartbeat(request)),
                     self.beaten)

    def beaten(self, consumer, error) -> None:
        if error in (25, 82):
            consumer.forget()
        elif error in (22, 27):
            consumer.owned = None
        self.at(self.random.randrange(20, 40), self.act, consumer)

    def commit(self, consumer) -> None:
        partition = self.random.choice(sorted(consumer.owned))
        generation = consumer.generation
        self.positions[partition] += self.random.randrange(1, 4)
        offset = self.positions[partition]
        request = SimpleNamespace(
            group_id=GROUP, generation_id_or_member_epoch=generation, member_id=consumer.member,
            group_instance_id=consumer.instance, retention_time_ms=-1)

        def run(token):
            found = offsets.commit(self.state_machine, request,
                                   [(TOPIC, TOPIC_ID, partition, offset, 0, "")])
            self.state_machine.responses.append((token, found))

        def done(consumer, found):
            if found == 0:
                self.committed[partition] = max(offset, self.committed.get(partition, 0))
            elif found in (25, 82):
                consumer.forget()
            elif found in (22, 27):
                consumer.owned = None
            self.at(self.random.randrange(10), self.act, consumer)

        self.request(consumer, run, done)

    def leave(self, consumer) -> None:
        member, instance = consumer.member, consumer.instance
        self.request(consumer, lambda token: self.state_machine.leave(GROUP, [(member, instance)]),
                     lambda consumer, answer: None, timeout_ms=20)
        consumer.forget()
        self.at(self.random.randrange(200), self.act, consumer)

    # ---- invariants -----------------------------------------------------------------------------

    def check(self) -> None:
        """Check the invariants that hold after every step."""
        group = self.state_machine.groups.get(GROUP)
        if group is None:
            assert not self.committed, "committed offsets are gone"
            assert not self.owners, "the group is gone"
            return
        assert group.generation >= self.newest, (group.generation, self.newest)
        assert group.generation >= max(self.owners, default=0), "a generation is used again"
        self.newest = group.generation
        joining = sum(1 for member in group.members.values() if member.join_token is not None)
        assert joining == group.awaiting, (joining, group.awaiting)
        assert group.leader is None and not group.members or group.leader in group.members
        assert set(group.statics.values()) <= set(group.members)
        for partition, offset in self.committed.items():
            entry = group.offsets.get((TOPIC, partition))
            assert entry is not None and entry.offset >= offset, (partition, offset, entry)
        if group.state == STABLE:
            owned = [partition for member in group.members.values()
                     for partition in member.assignment]
            assert len(owned) == len(set(owned)), "a partition is assigned twice"
