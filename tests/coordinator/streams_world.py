"""Simulation of Streams groups, their members and the network, from one seed on a virtual clock.

The state machine is real; its records go to a list instead of the log, and the last ones are not
flushed yet. A restart replays the flushed records; requests that waited for the others are never
answered. Messages are lost, reordered and duplicated; topics grow, are deleted and re-created,
internal topics are created late; members crash, leave, pause and return.
"""

import heapq
import itertools
from types import SimpleNamespace

from pylog.coordinator.groups.state.modern_group import STABLE
from pylog.coordinator.groups.consumer import target_assignment
from pylog.coordinator.groups.streams import heartbeat as streams_heartbeat
from pylog.coordinator.groups.shard import GroupShard
from pylog.coordinator.groups.state.group_config import DEFAULTS, ConsumerLimits, Limits
from pylog.coordinator.groups.streams.group import StreamsGroup
from pylog.metadata.image.image import Image, Topic
from pylog.protocol import messages
from tests.coordinator.world import Clock

GROUP = "g"
SESSION_MS, BEAT_MS, REBALANCE_MS, DELAY_MS = 300, 20, 400, 60
SETTINGS = {**DEFAULTS, "group.streams.session.timeout.ms": SESSION_MS,
            "group.streams.heartbeat.interval.ms": BEAT_MS,
            "group.streams.initial.rebalance.delay.ms": DELAY_MS,
            "group.streams.assignment.interval.ms": 5}
FENCED, UNKNOWN, NO_GROUP, FENCED_INSTANCE, UNRELEASED_INSTANCE = 110, 25, 69, 82, 111
LEAVE, LEAVE_STATIC = -1, -2
CLIENT = streams_heartbeat.Client("c", "/h")
SOURCE, REPARTITION, CHANGELOG = "in", "app-repartition", "app-changelog"


def limits(**changed) -> Limits:
    """changed: settings, with underscores for dots."""
    own = {f"group.streams.{name.replace('_', '.')}": value for name, value in changed.items()}
    return Limits(1, 10**6, 100, 20, 4096, 10**12, ConsumerLimits(settings={**SETTINGS, **own}))


def image_of(topics: dict[str, int], before: Image | None = None) -> Image:
    """Return an image with topics of these partition counts; existing topics of `before` keep their
    ids.
    """
    known = {} if before is None else before.topics
    rows = {name: Topic(name, known[name].id if name in known else name.encode()[:16].ljust(16),
                        (SimpleNamespace(replicas=()),) * count)
            for name, count in topics.items()}
    return Image(topics=rows, topics_by_id={row.id: row for row in rows.values()},
                 offset=0 if before is None else before.offset + 1)


def subtopology(id_: str, sources=(), repartitions=(), sinks=(), changelogs=(), copartitions=(),
                **fields):
    """repartitions, changelogs: names, or (name, partitions)."""
    new = messages.StreamsGroupHeartbeatRequest

    def infos(rows):
        rows = [(row, 0) if isinstance(row, str) else row for row in rows]
        return [new.TopicInfo(name=name, partitions=count) for name, count in rows]

    return new.Subtopology(
        subtopology_id=id_, source_topics=list(sources), repartition_sink_topics=list(sinks),
        repartition_source_topics=infos(repartitions), state_changelog_topics=infos(changelogs),
        copartition_groups=[new.CopartitionGroup(source_topics=some, repartition_source_topics=more)
                            for some, more in copartitions], **fields)


def topology(*subtopologies, epoch=0):
    return messages.StreamsGroupHeartbeatRequest.Topology(
        epoch=epoch, subtopologies=list(subtopologies))


def word_count():
    """Return the topology of a word count: one subtopology that maps, another that counts."""
    return topology(subtopology("0", [SOURCE], sinks=[REPARTITION]),
                    subtopology("1", repartitions=[REPARTITION], changelogs=[CHANGELOG]))


def rows(tasks: dict[str, set[int]]):
    return [messages.StreamsGroupHeartbeatRequest.TaskIds(
        subtopology_id=id_, partitions=sorted(partitions))
        for id_, partitions in sorted(tasks.items())]


def told(answer):
    """Return (active, standby) tasks of a response, {(subtopology, partition)} each; None if it has
    none.
    """
    if answer.active_tasks is None:
        return None
    return tuple({(row.subtopology_id, index) for row in some for index in row.partitions}
                 for some in (answer.active_tasks, answer.standby_tasks))


def codes(answer) -> list[int]:
    return [row.status_code for row in answer.status]


class Client:
    """The state of a member. owned: (active, standby)."""

    def __init__(self, number: int, random):
        self.number = number
        self.process = f"p{random.randrange(3)}"
        self.instance = f"i{number}" if random.random() < 0.4 else None
        self.forget()

    def forget(self) -> None:
        self.id, self.epoch, self.owned, self.wanted = "", 0, (set(), set()), None
        self.joined = False
        self.waiting = None


class World:
    """random: a seeded random.Random. Call step() repeatedly, then check the recorded state."""

    def __init__(self, random):
        self.random = random
        self.clock = Clock()
        self.events: list = []
        self.numbers = itertools.count()
        self.loss = random.choice((0, 0.02, 0.1))
        self.twice = random.choice((0, 0.05))
        self.unquiet = True
        self.limits = limits(num_standby_replicas=random.randrange(3))
        self.image = image_of({SOURCE: random.randrange(1, 5)})
        self.log: list = []
        self.durable = 0
        self.held: list = []
        self.start()
        self.clients = [Client(number, random) for number in range(random.randrange(1, 6))]
        for client in self.clients:
            self.at(random.randrange(30), self.act, client)
        self.at(100, self.disturb)

    # ---- the cluster ----------------------------------------------------------------------------

    def set_topics(self, topics: dict[str, int]) -> None:
        names = set(topics) ^ set(self.image.topics) | {
            name for name in topics if name in self.image.topics
            and topics[name] != len(self.image.topics[name].partitions)}
        self.image = image_of(topics, self.image)
        target_assignment.topics_changed(self.state_machine, names)

    def counts(self) -> dict[str, int]:
        return {name: len(row.partitions) for name, row in self.image.topics.items()}

    def create(self, missing) -> None:
        """Create missing internal topics. Not if the source has grown since: only an administrator
        can repair that.
        """
        self.set_topics(self.counts() | {
            row.name: row.partitions for row in missing if row.name not in self.image.topics
            and row.partitions == self.counts()[SOURCE]})

    def start(self) -> None:
        self.state_machine = GroupShard(self.limits, self.clock, str, image=lambda: self.image)
        for key, value in self.log:
            self.state_machine.replay(key, value)
        self.state_machine.loaded()
        self.held = []
        self.settle()

    def disturb(self) -> None:
        """Cause a random event that no request caused."""
        if not self.unquiet:
            return
        what = self.random.random()
        if what < 0.35:
            del self.log[self.durable:]  # kill -9 and power loss.
            self.start()
        elif what < 0.5:
            # An administrator deletes the internal topics to grow the source.
            self.set_topics({SOURCE: min(6, self.counts()[SOURCE] + 1)})
        elif what < 0.6:
            self.set_topics({name: count for name, count in self.counts().items()
                             if name != CHANGELOG})
        self.at(self.random.randrange(20, 200), self.disturb)

    @property
    def group(self) -> StreamsGroup | None:
        return self.state_machine.groups.get(GROUP)

    def settle(self) -> None:
        """Append the records of a step to the log; check the group's invariants."""
        state_machine = self.state_machine
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
        request = messages.StreamsGroupHeartbeatRequest(
            group_id=GROUP, member_id=client.id, instance_id=client.instance, **fields)
        for _ in range(2 if self.random.random() < self.twice else 1):
            if self.random.random() >= self.loss:
                self.at(self.random.randrange(8), self.deliver, client, number, request)
        self.at(60, self.give_up, client, number)

    def deliver(self, client: Client, number: int, request) -> None:
        answer, missing = streams_heartbeat.heartbeat(self.state_machine, request, CLIENT)
        self.settle()
        if missing:
            self.at(self.random.randrange(50), self.create, missing)
        row = client, number, answer
        if self.durable < len(self.log):
            self.held.append(row)
        else:
            self.send(*row)

    def send(self, client: Client, number: int, answer) -> None:
        if not self.twice:
            # A duplicated response may contain outdated assignments, on any connection.
            self.check_nobody_else(client, told(answer))
        if self.random.random() >= self.loss:
            self.at(self.random.randrange(8), self.receive, client, number, answer)

    def check_nobody_else(self, client: Client, tasks) -> None:
        """Check that an active task is assigned only when no other member runs it, and any task
        only when no other member of the same process has it.
        """
        for other in self.clients if tasks is not None else ():
            if other is not client and other.joined and self.group is not None \
                    and other.id in self.group.members:
                active, standby = tasks
                assert not active & other.owned[0], (client.id, other.id)
                if other.process == client.process:
                    assert not (active | standby) & (other.owned[0] | other.owned[1])

    def give_up(self, client: Client, number: int) -> None:
        if client.waiting == number:
            client.waiting = None
            self.act(client, lost=True)

    # ---- the clients ----------------------------------------------------------------------------

    def act(self, client: Client, lost: bool = False) -> None:
        if client.waiting is not None:
            return
        if not client.joined:
            client.id = client.id or f"m{client.number}-{next(self.numbers)}"
            client.owned, client.epoch, client.wanted = (set(), set()), 0, None
            self.request(client, member_epoch=0, topology=word_count(),
                         rebalance_timeout_ms=REBALANCE_MS, process_id=client.process,
                         active_tasks=[], standby_tasks=[], warmup_tasks=[])
            return
        chance = self.random.random() if self.unquiet else 1.0
        if chance < 0.02:
            # A static member may leave for a while, and return under another member id.
            self.request(client, member_epoch=LEAVE if client.instance is None
                         or self.random.random() < 0.3 else LEAVE_STATIC)
            client.waiting = None
            self.pause(client, 50)
        elif chance < 0.03:
            self.pause(client, 500)  # The client crashes.
        elif chance < 0.04:
            self.at(self.random.randrange(500), self.act, client)  # The client only pauses.
        elif lost or client.wanted is not None or self.random.random() < 0.1:
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
        found = []
        for some in client.owned:
            tasks: dict[str, set[int]] = {}
            for id_, index in some:
                tasks.setdefault(id_, set()).add(index)
            found.append(rows(tasks))
        return {"active_tasks": found[0], "standby_tasks": found[1], "warmup_tasks": []}

    def receive(self, client: Client, number: int, answer) -> None:
        if client.waiting != number:
            return
        client.waiting = None
        if answer.error_code in (
                FENCED, UNKNOWN, NO_GROUP, FENCED_INSTANCE, UNRELEASED_INSTANCE):
            if client.instance is not None:
                client.id = ""
            client.joined = False
        else:
            assert answer.error_code == 0, (answer.error_code, answer.error_message)
            client.joined, client.epoch = True, answer.member_epoch
            client.wanted = told(answer) or client.wanted
        self.at(BEAT_MS, self.act, client)

    # ---- end -----------------------------------------------------------------------------------

    def calm_down(self) -> None:
        """Stop losing messages; after some time the group must be stable."""
        self.loss = self.twice = 0
        self.unquiet = False
        # Crashed members must time out.
        end_ms = self.clock.ms + 1200
        while self.clock.ms < end_ms:
            assert self.step()
            if self.durable < len(self.log):
                self.flush()

    def check_end(self) -> None:
        group = self.group
        assert group is not None and group.state == STABLE, group and group.state
        assert len(group.members) == len(self.clients)
        count = self.counts()[SOURCE]
        active = sorted(task for client in self.clients for task in client.owned[0])
        assert active == [(id_, index) for id_ in "01" for index in range(count)]
        standby = sorted(task for client in self.clients for task in client.owned[1])
        processes = len({client.process for client in self.clients})
        copies = min(int(group.configs[streams_heartbeat.STANDBYS]), processes - 1)
        assert standby == sorted(("1", index) for index in range(count) for _ in range(copies))
        for client in self.clients:
            assert client.epoch == group.members[client.id].epoch == group.epoch
