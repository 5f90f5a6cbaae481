"""Simulation of a KIP-848 consumer group, its clients and the network, from one seed on a virtual
clock.

The state machine is real; its records go to a list instead of the log, and the last ones are not
flushed yet. A restart replays the flushed records; requests that waited for the others are never
answered. Messages are lost, delayed, reordered and duplicated; topics grow, are deleted and
re-created; clients crash, leave, pause and return. Cached heartbeat responses are returned without
the machine, as reactors do.
"""

import heapq
import itertools
from types import SimpleNamespace

from pylog.coordinator.groups.consumer import heartbeat as consumer_heartbeat
from pylog.coordinator.groups.consumer import target_assignment
from pylog.coordinator.groups.consumer.group import ConsumerGroup
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.state.group_config import ConsumerLimits, Limits
from pylog.coordinator.groups.state.modern_group import STABLE
from pylog.metadata.image.image import Image, Topic
from pylog.protocol import codec, messages
from tests.coordinator.world import Clock

GROUP = "g"
NAMES = ("a", "ab", "b")
SESSION_MS, BEAT_MS, REBALANCE_MS = 300, 20, 400
SETTINGS = {"group.consumer.session.timeout.ms": SESSION_MS,
            "group.consumer.heartbeat.interval.ms": BEAT_MS,
            "group.consumer.assignment.interval.ms": 5}
LIMITS = Limits(1, 10**6, 100, 20, 4096, 10**12, ConsumerLimits(settings=SETTINGS))
FENCED, UNKNOWN, UNRELEASED, FENCED_INSTANCE, NO_GROUP = 110, 25, 111, 82, 69


class Repeat:
    """A response that may be returned again; see _native.server.heartbeat_cache."""

    def __init__(self):
        self.until_ms, self.last, self.answer = -1, -1, None

    def offer(self, until_ms: int) -> None:
        self.until_ms = until_ms

    def end(self) -> int:
        self.until_ms = -1
        return self.last

    def last_ms(self, after_ms: int) -> int:
        if self.last <= after_ms:
            self.until_ms = -1
        return self.last


class Client:
    """The state of a member. owned: {(topic id, partition)}."""

    def __init__(self, number: int, random):
        self.number = number
        self.instance = f"i{number}" if random.random() < 0.3 else None
        self.assignor = random.choice((None, "range", "uniform"))
        self.forget()

    def forget(self) -> None:
        self.id, self.epoch, self.owned, self.wanted = "", 0, set(), None
        self.joined = False
        self.waiting = None


class World:
    """random: a seeded random.Random. Call step() repeatedly, then check the recorded state."""

    def __init__(self, random):
        self.random = random
        self.clock = Clock()
        self.events: list = []
        self.numbers = itertools.count()
        self.repeated = 0
        self.loss = random.choice((0, 0.02, 0.1))
        self.twice = random.choice((0, 0.05))
        self.unquiet = True
        self.image = Image(offset=0)
        for name in NAMES[:2]:
            self.set_topic(name, random.randrange(1, 5))
        self.log: list = []
        self.durable = 0
        self.held: list = []
        # (topic id, partition, epoch) -> the member that was assigned it.
        self.given: dict[tuple[bytes, int, int], str] = {}
        self.start()
        self.clients = [Client(number, random) for number in range(random.randrange(1, 5))]
        for client in self.clients:
            self.subscribe(client)
            self.at(random.randrange(30), self.act, client)
        self.at(100, self.disturb)

    # ---- the cluster ----------------------------------------------------------------------------

    def set_topic(self, name: str, count: int) -> None:
        topics = dict(self.image.topics)
        id_ = topics[name].id if name in topics else self.random.randbytes(16)
        topics[name] = Topic(name, id_, (SimpleNamespace(replicas=()),) * count)
        self.set_topics(topics)

    def set_topics(self, topics: dict) -> None:
        self.image = Image(topics=topics, topics_by_id={row.id: row for row in topics.values()},
                           offset=self.image.offset + 1)

    def start(self) -> None:
        self.state_machine = GroupShard(LIMITS, self.clock, str, image=lambda: self.image)
        for key, value in self.log:
            self.state_machine.replay(key, value)
        self.state_machine.loaded()
        self.held = []
        self.repeats: dict = {}  # The reactors' cache: a request's bytes -> Repeat.
        self.settle()

    def disturb(self) -> None:
        """Cause a random event that no request caused."""
        if not self.unquiet:
            return
        what = self.random.random()
        if what < 0.25:
            del self.log[self.durable:]  # kill -9 and power loss.
            self.start()
        elif what < 0.55:
            name = self.random.choice(NAMES)
            known = self.image.topics.get(name)
            self.set_topic(name, min(6, 1 + (len(known.partitions) if known else 0)))
            self.topics_changed(name)
        elif what < 0.65 and len(self.image.topics) > 1:
            name = self.random.choice(sorted(self.image.topics))
            self.set_topics({key: row for key, row in self.image.topics.items() if key != name})
            self.topics_changed(name)
        elif what < 0.8:
            self.subscribe(self.random.choice(self.clients))
        self.at(self.random.randrange(20, 200), self.disturb)

    def topics_changed(self, name: str) -> None:
        target_assignment.topics_changed(self.state_machine, {name})

    @property
    def group(self) -> ConsumerGroup | None:
        return self.state_machine.groups.get(GROUP)

    def settle(self) -> None:
        """Append the records of a step to the log; check the group's invariants."""
        state_machine = self.state_machine
        state_machine.repeats.void_changed(state_machine.records)
        self.log += state_machine.records
        state_machine.records = []
        due = state_machine.timers.next_ms()
        if due is not None:
            self.at(max(0, due - self.clock.ms), self.tick, state_machine)
        if self.group is not None:
            self.group.check()

    def tick(self, state_machine) -> None:
        if state_machine is self.state_machine:
            state_machine.tick()
            self.settle()

    def flush(self) -> None:
        self.durable = len(self.log)
        held, self.held = self.held, []
        for answer in held:
            self.send(*answer)

    # ---- network -------------------------------------------------------------------------------

    def at(self, delay_ms: int, call, *arguments) -> None:
        heapq.heappush(self.events, (self.clock.ms + delay_ms, next(self.numbers), call, arguments))

    def step(self) -> bool:
        if not self.events:
            return False
        self.clock.ms, _, call, arguments = heapq.heappop(self.events)
        call(*arguments)
        if self.durable < len(self.log) and self.random.random() < 0.5:
            self.flush()
        return True

    def request(self, client: Client, **fields) -> None:
        client.waiting = number = next(self.numbers)
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=client.id, instance_id=client.instance, **fields)
        for _ in range(2 if self.random.random() < self.twice else 1):
            if self.random.random() >= self.loss:
                self.at(self.random.randrange(8), self.deliver, client, number, request)
        self.at(60, self.give_up, client, number)

    def deliver(self, client: Client, number: int, request) -> None:
        key = codec.encode_request(68, 1, request)
        known = self.repeats.get(key)
        if known is not None and self.clock.ms < known.until_ms:
            known.last = self.clock.ms
            self.repeated += 1
            self.send(client, number, known.answer, [], request.member_id)
            return
        repeat = Repeat()
        answer = consumer_heartbeat.heartbeat(
            self.state_machine, request, 1, consumer_heartbeat.Client("c", "/h", repeat=repeat))
        member = self.group.members.get(request.member_id) if self.group else None
        told = [] if member is None or answer.assignment is None else [
            (topic_id, index, epoch) for topic_id, held in member.assigned.items()
            for index, epoch in held.items()]
        self.settle()
        row = client, number, answer, told, request.member_id
        if self.durable < len(self.log):
            self.held.append(row)
        else:
            self.send(*row)
            repeat.answer = answer
            self.repeats[key] = repeat

    def send(self, client: Client, number: int, answer, told: list, member_id: str) -> None:
        for place in told:
            # A returning static instance has epoch 0: it may get the same partition again.
            if place[2] and client.instance is None:
                assert self.given.setdefault(place, member_id) == member_id, (place, member_id)
        if not self.twice:
            # A duplicated response may contain outdated assignments, on any connection.
            self.check_nobody_else(client, {place[:2] for place in told})
        if self.random.random() >= self.loss:
            self.at(self.random.randrange(8), self.receive, client, number, answer)

    def check_nobody_else(self, client: Client, places: set) -> None:
        """Check that partitions are assigned only after every other member has released them."""
        for other in self.clients:
            if other is not client and other.joined and self.group is not None \
                    and other.id in self.group.members:
                assert not places & other.owned, (client.id, other.id)

    def give_up(self, client: Client, number: int) -> None:
        if client.waiting == number:
            client.waiting = None
            self.act(client, lost=True)

    # ---- the clients ----------------------------------------------------------------------------

    def subscribe(self, client: Client) -> None:
        what = self.random.random()
        client.regex = self.random.choice(("a.*", "b", ".*")) if what < 0.3 else ""
        client.topics = self.random.sample(NAMES, self.random.randrange(1, 3)) if what > 0.25 \
            else []

    def act(self, client: Client, lost: bool = False) -> None:
        if client.waiting is not None:
            return
        if not client.joined:
            client.id = client.id or f"m{client.number}-{next(self.numbers)}"
            client.owned, client.epoch = set(), 0
            self.request(client, member_epoch=0, **self.full(client))
            return
        chance = self.random.random() if self.unquiet else 1.0
        if chance < 0.02:
            self.request(client, member_epoch=-2 if client.instance else -1)
            client.waiting = None
            self.pause(client, 50)
        elif chance < 0.03:
            self.pause(client, 500)  # The client crashes.
        elif chance < 0.04:
            self.at(self.random.randrange(500), self.act, client)  # The client only pauses.
        elif lost or client.wanted is not None or chance < 0.1:
            self.request(client, member_epoch=client.epoch, **self.full(client))
        else:
            self.request(client, member_epoch=client.epoch)

    def pause(self, client: Client, most_ms: int) -> None:
        client.forget()
        self.at(self.random.randrange(1, most_ms), self.act, client)

    def full(self, client: Client) -> dict:
        """Finish a pending revocation."""
        if client.wanted is not None:
            client.owned, client.wanted = client.wanted, None
        rows: dict[bytes, list[int]] = {}
        for topic_id, index in client.owned:
            rows.setdefault(topic_id, []).append(index)
        new = messages.ConsumerGroupHeartbeatRequest.TopicPartitions
        return {"rebalance_timeout_ms": REBALANCE_MS, "server_assignor": client.assignor,
                "subscribed_topic_names": client.topics, "subscribed_topic_regex": client.regex,
                "topic_partitions": [new(topic_id=topic_id, partitions=partitions)
                                     for topic_id, partitions in rows.items()]}

    def receive(self, client: Client, number: int, answer) -> None:
        if client.waiting != number:
            return
        client.waiting = None
        if answer.error_code in (FENCED, UNKNOWN, NO_GROUP, FENCED_INSTANCE):
            if answer.error_code == FENCED_INSTANCE:
                client.id = ""
            client.joined = False
        elif answer.error_code != UNRELEASED:
            assert answer.error_code == 0, (answer.error_code, answer.error_message)
            client.joined, client.epoch = True, answer.member_epoch
            if answer.assignment is not None:
                client.wanted = {(bytes(row.topic_id), index)
                                 for row in answer.assignment.topic_partitions
                                 for index in row.partitions}
        self.at(BEAT_MS, self.act, client)

    # ---- end -----------------------------------------------------------------------------------

    def calm_down(self) -> None:
        """Stop losing messages; after some time the group must be stable."""
        self.loss = self.twice = 0
        self.unquiet = False
        # Crashed members must time out, and expressions are resolved after a pause.
        end_ms = self.clock.ms + 1200
        while self.clock.ms < end_ms:
            assert self.step()
            if self.durable < len(self.log):
                self.flush()

    def check_end(self) -> None:
        group = self.group
        assert group is not None and group.state == STABLE, group and group.state
        assert len(group.members) == len(self.clients)
        subscribed: set[bytes] = set()
        owned: list[tuple[bytes, int]] = []
        for client in self.clients:
            member = group.members[client.id]
            ids = target_assignment.topic_ids_of(self.state_machine, group, member)
            subscribed |= ids
            owned += client.owned
            assert {topic_id for topic_id, _ in client.owned} <= ids
            assert client.epoch == member.epoch == group.epoch
        assert sorted(owned) == sorted(
            (topic_id, index) for topic_id in subscribed
            for index in range(len(self.image.topics_by_id[topic_id].partitions)))
