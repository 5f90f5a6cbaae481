"""Simulation of a transaction coordinator, partitions, producers and the network, from one seed on
a virtual clock.

The state machine and the marker checks are real; partitions are lists that follow the rules of
csrc/segment/producer_state.c and log_append.c. Messages are lost, delayed, reordered and
duplicated; the coordinator restarts and loses unflushed records; producers crash and return with
the same transactional id. FAULTS must be found by the checks.
"""

import heapq
import itertools
from types import SimpleNamespace

from pylog.coordinator.runtime.transactional_batches import Marker
from pylog.coordinator.transactions.shard import Limits, NeedProducerId, Overdue, Transactions
from pylog.coordinator.transactions.transaction_metadata import PREPARED
from pylog.protocol import messages

PARTITIONS = 3
RETRY_MS, FLUSH_MS = 40, 5
LIMITS = Limits(10**6, 10**12, False)
NONE, BUSY, ELSEWHERE, STATE, EPOCH, SEQUENCE = 0, 51, 16, 48, 47, 45
LOST = object()  # The producer waits briefly, then continues.
OVERSLEPT = object()  # It waits longer than its transaction timeout.
GIVEN_UP = object()  # The result of a write that it no longer waits for.


class Partition:
    """One log. faults: see World."""

    def __init__(self, faults):
        self.faults = faults
        # ("data", producer, epoch, value) or ("end", producer, epoch, True if it committed).
        self.entries = []
        self.known = {}            # producer id -> [epoch, coordinator epoch, first, marker, next]

    def of(self, producer_id):
        return self.known.setdefault(producer_id, [-1, -1, -1, -1, 0])

    def guard(self, producer_id, epoch):
        """Return None if the transaction is open, else the state that must be unchanged at the
        append.
        """
        state = self.of(producer_id)
        return None if state[2] >= 0 and state[0] == epoch else state[3]

    def append(self, producer_id, epoch, sequence, value, guard) -> int:
        state = self.of(producer_id)
        if epoch < state[0]:
            return EPOCH
        fresh = epoch > state[0]
        if not fresh and sequence < state[4]:
            return NONE  # Already appended.
        if sequence != (0 if fresh else state[4]):
            return SEQUENCE
        is_open = state[2] >= 0 and not fresh
        if not is_open and guard != state[3] and "guard" not in self.faults:
            return STATE
        state[0], state[4] = epoch, sequence + 1
        if state[2] < 0:
            state[2] = len(self.entries)
        self.entries.append(("data", producer_id, epoch, value))
        return NONE

    def mark(self, marker: Marker) -> int:
        state = self.of(marker.producer_id)
        error = marker.fault((state[0], state[1], state[2], state[3]))
        if error and "marker" not in self.faults:
            return error
        if marker.epoch != state[0]:
            state[0], state[4] = marker.epoch, 0
        state[1], state[2], state[3] = marker.coordinator_epoch, -1, len(self.entries)
        self.entries.append(("end", marker.producer_id, marker.epoch, marker.committed))
        return NONE

    def committed(self) -> list:
        """Return the values that a read_committed consumer reads."""
        seen, waiting = [], {}
        for kind, producer_id, _, what in self.entries:
            if kind == "data":
                waiting.setdefault(producer_id, []).append(what)
            else:
                found = waiting.pop(producer_id, [])
                seen += found if what else []
        return seen


class World:
    """random: a seeded random.Random. faults: names of planted faults."""

    def __init__(self, random, faults=()):
        self.random, self.faults = random, frozenset(faults)
        self.ms = 0
        self.events, self.numbers = [], itertools.count()
        self.loss = random.choice((0, 0.05, 0.2))
        self.calm = False  # no more failures
        self.partitions = [Partition(self.faults) for _ in range(PARTITIONS)]
        self.ids = itertools.count(100)
        self.level = random.choice((0, 2, 2))
        self.term, self.disk, self.durable, self.held = 0, [], 0, []
        self.state_machine = None
        self.load()
        self.outcomes = {}         # Transaction -> "committed", "aborted" or "unknown".
        self.values = {}  # Transaction -> [(partition, value)] of its writes.

    # ---- time and network -----------------------------------------------------------------------

    def later(self, ms, call, *arguments):
        heapq.heappush(self.events, (self.ms + ms, next(self.numbers), call, arguments))

    def step(self) -> bool:
        if not self.events:
            return False
        self.ms, _, call, arguments = heapq.heappop(self.events)
        call(*arguments)
        return True

    def send(self, call, *arguments):
        """Deliver a message late, twice or not at all."""
        copies = 1
        if not self.calm:
            copies = self.random.choices((0, 1, 2), (self.loss, 1, self.loss / 2))[0]
        for _ in range(copies):
            slow = not self.calm and self.random.random() < self.loss / 4
            self.later(self.random.randrange(400) if slow else self.random.randrange(1, 8),
                       call, *arguments)

    # ---- the coordinator ------------------------------------------------------------------------

    def load(self):
        """Start a new term from the flushed records."""
        self.term += 1
        del self.disk[self.durable:]
        self.held = []
        clock = SimpleNamespace(now_ms=lambda: self.ms, wall_ms=lambda: self.ms)
        self.state_machine = Transactions(LIMITS, clock, None, lambda: self.level)
        for key, value in self.disk:
            self.state_machine.replay(key, value)
        self.state_machine.loaded()
        self.written()

    def written(self):
        """Append the records of a step; respond when they are flushed."""
        state_machine = self.state_machine
        self.disk += state_machine.records
        state_machine.records = []
        for _, message in state_machine.responses:
            self.hold(self.outbox, message)
        state_machine.responses = []
        self.later(FLUSH_MS, self.flush, self.term, len(self.disk))

    def hold(self, call, message):
        self.held.append((len(self.disk), call, message))

    def flush(self, term, upto):
        if term != self.term:
            return
        self.durable = max(self.durable, upto)
        while self.held and self.held[0][0] <= self.durable:
            _, call, message = self.held.pop(0)
            call(message)

    def ask(self, step, arguments, reply):
        """Handle a request. reply: receives the response."""
        found = step(self.state_machine, *arguments)
        if found is NeedProducerId:
            found = step(self.state_machine, *arguments, next(self.ids))
        self.disk += self.state_machine.records
        self.state_machine.records = []
        if "early" in self.faults:
            self.send(reply, found)
        else:
            self.hold(lambda message: self.send(reply, message), found)
        self.written()

    def outbox(self, message):
        if isinstance(message, Overdue):
            self.state_machine.abort_overdue(message, next(self.ids))
            self.written()
        else:
            self.end(self.term, message, set(message.partitions))

    def end(self, term, ending, left):
        """Write markers until every partition has one; the end of the term stops the retries."""
        if term != self.term:
            return
        if not left or "hasty" in self.faults:
            self.state_machine.complete(ending)
            self.written()
            if not left:
                return
        marker = Marker(ending.producer_id, ending.epoch, term, ending.committed, ending.version)
        for at in sorted(left):
            self.send(self.mark, term, marker, at, ending, left)
        self.later(RETRY_MS, self.end_again, term, ending, left)

    def end_again(self, term, ending, left):
        if left and "hasty" not in self.faults:
            self.end(term, ending, left)

    def mark(self, term, marker, at, ending, left):
        # As for clients (Producer.arrive): it may be duplicated, but not after later messages.
        if marker.version < 2 and at not in left:
            return
        error = self.partitions[at[1]].mark(marker)
        if error in (NONE, EPOCH):
            self.send(self.marked, term, at, ending, left)

    def marked(self, term, at, ending, left):
        if at in left:
            left.discard(at)
            if not left:
                self.end(term, ending, left)

    def tick(self):
        self.state_machine.tick()
        self.written()
        if not self.calm and self.random.random() < 0.02:
            self.load()
        self.later(10, self.tick)

    # ---- partitions -----------------------------------------------------------------------------

    def produce(self, id_, producer, sequence, at, value, adds, reply):
        """Handle a Produce: the coordinator verifies the transaction before the first write."""
        partition = self.partitions[at[1]]
        guard = partition.guard(*producer)

        def write(verdict):
            error = verdict if isinstance(verdict, int) else verdict[at]
            self.send(reply, error or partition.append(*producer, sequence, value, guard))

        if guard is None or "unverified" in self.faults:
            if guard is not None:
                guard = partition.of(producer[0])[3]
            write(NONE)
        elif adds:
            self.send(self.ask, Transactions.add, (id_, *producer, [at], 2), write)
        else:
            self.send(self.ask, Transactions.verify, (id_, *producer, [at]), write)

    # ---- checks ---------------------------------------------------------------------------------

    def check(self):
        """Check the state after all events are processed."""
        for found in self.state_machine.transactions.values():
            assert found.state not in PREPARED and found.state != "Ongoing", found.state
        for partition in self.partitions:
            assert all(state[2] < 0 for state in partition.known.values()), "an open transaction"
        seen = [partition.committed() for partition in self.partitions]
        for values in seen:
            assert len(set(values)) == len(values), "a duplicate"
        for transaction, outcome in self.outcomes.items():
            there = {value in seen[at] for at, value in self.values[transaction]}
            if outcome == "committed":
                assert there <= {True}, f"{transaction} lost a record"
            elif outcome == "aborted":
                assert there <= {False}, f"{transaction} was aborted and is seen"
            else:
                assert len(there) < 2, f"{transaction} is seen by half"


class Producer:
    """A client of one transactional id, until it is killed; then the next one starts."""

    def __init__(self, world: World, id_: str, adds: bool, names):
        self.world, self.id, self.adds, self.names = world, id_, adds, names
        self.alive = True
        self.program = self.run()
        self.turn = 0
        self.advance(None)

    def kill(self):
        self.alive = False
        self.program.close()

    def advance(self, answer):
        try:
            request = self.program.send(answer)
        except StopIteration:
            return
        self.turn += 1
        self.try_(self.turn, request)

    def try_(self, turn, request):
        """Send until there is a response."""
        if not self.alive or turn != self.turn:
            return
        if request in (LOST, OVERSLEPT):
            wait_ms = 600 if request is OVERSLEPT else self.world.random.randrange(1, 20)
            self.world.later(wait_ms, self.take, turn, None)
            return
        call, *arguments = request
        self.world.send(self.arrive, turn, call,
                        (*arguments, lambda answer: self.take(turn, answer)))
        self.world.later(4 * RETRY_MS, self.try_, turn, request)

    def arrive(self, turn, call, arguments):
        """Without an epoch per transaction, a late request cannot be attributed: a client must
        close the connection of a request that it no longer waits for.
        """
        if self.adds or not self.alive or turn == self.turn:
            call(*arguments)

    def take(self, turn, answer):
        if self.alive and turn == self.turn:
            self.advance(answer)

    def ask(self, step, *arguments):
        return self.world.ask, step, arguments

    def run(self):
        world = self.world
        while not world.calm:
            answer = yield self.ask(Transactions.init, messages.InitProducerIdRequest(
                transactional_id=self.id, transaction_timeout_ms=500))
            if answer.error_code:
                yield LOST
                continue
            producer = answer.producer_id, answer.producer_epoch
            sequences = {}
            while producer is not None and not world.calm:
                producer = yield from self.transact(producer, sequences)

    def transact(self, producer, sequences):
        """Run one transaction. Returns the next producer state, None if another client has the id.
        """
        world, random = self.world, self.world.random
        name = next(self.names)
        world.outcomes[name], world.values[name] = "unknown", []
        for number in range(random.randrange(1, 4)):
            at, value = ("t", random.randrange(PARTITIONS)), (name, number)
            if not self.adds and not (yield from self.added(producer, at)):
                return None
            world.values[name].append((at[1], value))
            sequence = sequences.get((producer, at), 0)
            while True:
                if random.random() < 0.05:
                    world.later(random.randrange(10, 100), self.take, self.turn + 1, GIVEN_UP)
                error = yield (world.produce, self.id, producer, sequence, at, value, self.adds)
                if error not in (BUSY, ELSEWHERE):
                    break
                yield LOST
            if error is GIVEN_UP:
                following = yield from self.ended(name, producer, False)
                # Without a new epoch the next sequence is unknown.
                return following if self.adds else None
            if error:
                return None
            sequences[producer, at] = sequence + 1
            if random.random() < 0.03:
                yield OVERSLEPT
        committed = random.random() < 0.7
        return (yield from self.ended(name, producer, committed))

    def added(self, producer, at):
        while True:
            error = yield self.ask(Transactions.add, self.id, *producer, [at], 0)
            if error != BUSY:
                return error == NONE
            yield LOST

    def ended(self, name, producer, committed):
        while True:
            answer = yield self.ask(Transactions.end, self.id, *producer, committed,
                                    2 if self.adds else 0)
            if answer.error_code == BUSY:
                yield LOST
                continue
            if answer.error_code:
                return None
            self.world.outcomes[name] = "committed" if committed else "aborted"
            return (answer.producer_id, answer.producer_epoch) if self.adds else producer


def run(random, faults=(), steps=4000):
    """Return a world after all events are processed and checked."""
    world = World(random, faults)
    names = itertools.count()
    producers = {id_: Producer(world, id_, world.level == 2 and random.random() < 0.7, names)
                 for id_ in ("a", "b")}
    world.tick()
    for _ in range(steps):
        world.step()
        if random.random() < 0.004:
            id_ = random.choice(sorted(producers))
            if random.random() < 0.7:
                producers[id_].kill()  # Otherwise it continues as a zombie.
            producers[id_] = Producer(world, id_, producers[id_].adds, names)
    world.calm = True
    until_ms = world.ms + 3000
    while world.ms < until_ms and world.step():
        pass
    world.check()
    return world
