"""Executes a program with both clients and compares their reports with the logs.

Owns: the topics of the program on both sides, removed at its end.
Invariants: each side is compared with its own log, read independently of the client; the sides are
  compared with each other wherever no record can have been written twice or lost; reports about
  records in flight during a fault are compared with the log, which then becomes the model.
"""

import time
from typing import Any

from pylog.client import Admin, ConfigResource, ResourceType, TopicPartition
from pylog.testing import Broker
from tests.client.differential.players import (
    POLL_S, WAIT_S, ConfluentPlayer, Outcome, Player, PylogPlayer, Read,
)
from tests.client.differential.program import (
    COMPACTED, FORGET, IDEMPOTENT, MESSAGE_BYTES_MAX, NO_EVENT, PARTITIONS, PLAIN, RECREATE,
    TOPICS, Program, Row,
)

SETTINGS = {
    "auto.create.topics.enable": False, "group.initial.rebalance.delay.ms": 0,
    "producer.id.expiration.check.interval.ms": 20, "offsets.topic.num.partitions": 2,
    "group.min.session.timeout.ms": 1000, "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.min.heartbeat.interval.ms": 100,
}
EXPIRATION = "producer.id.expiration.ms"
HOLD_MS = 100
FAULTS_IN_FLIGHT_MAX = 4  # for both clients together
REFUSED = {COMPACTED: 87, None: 10}     # INVALID_RECORD, MESSAGE_TOO_LARGE
Place = tuple[str, int]                 # A topic by its name in the program, and a partition.


class Mismatch(AssertionError):
    """The clients differ, or a client's report disagrees with its log."""


def expect(right: bool, message: str) -> None:
    if not right:
        raise Mismatch(message)


class Side:
    """One client and its expected results: a model of its logs, positions and commits."""

    def __init__(self, broker: Broker, player: Player):
        self.broker, self.player = broker, player
        self.sent: dict[Place, list[tuple[str, Row]]] = {
            (topic, partition): [] for topic in TOPICS for partition in range(PARTITIONS)}
        self.unflushed: list[tuple[str, str, int | None, Row]] = []
        self.repeated: set[Place] = set()  # places where non-idempotent records may be duplicated
        self.positions: dict[Place, int] = dict.fromkeys(self.sent, 0)
        self.consumed: set[Place] = set()  # records read since the last seek
        self.committed: dict[Place, int] = {}  # by the members of the group
        self.gathered: dict[Place, list[Read]] = {}  # by the members since their last commit

    def log(self, place: Place) -> list[Read]:
        topic, partition = place
        return [Read(row.offset, row.timestamp, row.key, row.value, tuple(row.headers))
                for row in self.broker.topic(self.player.topics[topic]).records(
                    partition=partition)]

    def ends(self, place: Place) -> tuple[int, int]:
        return self.broker.topic(self.player.topics[place[0]]).ends()[place[1]]

    def place(self, topic: str, partition: int) -> Place:
        """Return the place of a partition, by the topic's name at the broker."""
        return next(name for name, own in self.player.topics.items() if own == topic), partition

    def forget_topic(self, topic: str) -> None:
        for partition in range(PARTITIONS):
            place = topic, partition
            self.sent[place].clear()
            self.positions[place] = 0
            self.repeated.discard(place)
            self.consumed.discard(place)
            self.committed.pop(place, None)
            self.gathered.pop(place, None)

    def from_position(self, place: Place, position: int) -> list[Read]:
        """Return the records that a consumer must read from there; out of range, it starts at the
        log's start.
        """
        start, end = self.ends(place)
        first = position if start <= position <= end else start
        return [record for record in self.log(place) if record.offset >= first]


class Execution:
    """`run` raises Mismatch. players: the two clients, ours first."""

    def __init__(self, broker: Broker, program: Program, players: tuple[type[Player], type[Player]]
                 = (PylogPlayer, ConfluentPlayer)):
        self.broker, self.program = broker, program
        self.base_ms = time.time_ns() // 1_000_000 - 10_000
        self.is_disturbed = False  # since the last flush
        self.has_rules = False  # network rules that may still be active
        self.admin = Admin({"bootstrap.servers": broker.bootstrap})
        self.sides = []
        for number, player in enumerate(players):
            prefix = f"p{program.seed}-{number}-{time.time_ns() % 10**8}"
            topics = {topic: f"{prefix}-{topic}" for topic in TOPICS}
            for topic in topics:
                self._create(topics, topic)
            self.sides.append(Side(broker, player(
                broker.bootstrap, prefix, topics, program.settings)))

    def _create(self, topics: dict[str, str], topic: str) -> None:
        config: dict[str, Any] = {"retention.ms": -1, "max.message.bytes": MESSAGE_BYTES_MAX}
        if topic == COMPACTED:
            config |= {"cleanup.policy": "compact", "min.compaction.lag.ms": 10**12,
                       "max.compaction.lag.ms": 10**13}
        self.broker.create_topic(topics[topic], PARTITIONS, config)

    def run(self) -> None:
        done = []
        try:
            for side in self.sides:
                for producer in (PLAIN, IDEMPOTENT):
                    side.player.producer(producer)  # This needs a running broker.
            for step in self.program.steps:
                done.append(step)
                getattr(self, step.action)(*step.arguments)
        except AssertionError as failure:
            shown = "\n".join(f"  {step.action} {step.arguments!r:.150}" for step in done[-12:])
            raise Mismatch(f"{failure}\nin the program of --seed {self.program.seed} with "
                           f"{self.program.settings}, whose last steps were\n{shown}") from failure
        finally:
            if not self.broker.running:
                self.broker.start()
            self._clear_rules()
            for side in self.sides:
                side.player.close()
                for topic in side.player.topics.values():
                    self.broker.topic(topic).delete()
            self.admin.close()

    # Sends

    def send(self, producer: str, topic: str, partition: int | None, rows: list[Row]) -> None:
        for side in self.sides:
            for row in rows:
                self._send(side, producer, topic, partition, row)

    def _send(self, side: Side, producer: str, topic: str, partition: int | None,
              row: Row) -> None:
        side.unflushed.append((producer, topic, partition, row))
        side.player.send(producer, side.player.topics[topic], partition, row,
                         self.base_ms + row.number)

    def send_refused(self, producer: str, topic: str, partition: int, row: Row) -> None:
        for side in self.sides:
            self._send(side, producer, topic, partition, row)
            side.player.flush()
            found = side.player.outcomes.pop(row.number, None)
            wanted = REFUSED.get(topic, REFUSED[None])
            expect(found is not None and found.code == wanted,
                   f"{side.player.name} reports {found} of a record that the broker refuses "
                   f"with error {wanted}")
            side.unflushed.clear()
        self.flush()

    def flush(self) -> None:
        """Compare the outcomes of all sent records, and the logs."""
        for side in self.sides:
            side.player.flush()
        ours, theirs = [self._outcomes(side) for side in self.sides]
        repeated = self.sides[0].repeated | self.sides[1].repeated
        for number, (topic, outcome) in ours.items():
            other = theirs[number][1]
            expect(outcome.partition == other.partition,
                   f"record {number} of {topic}: {outcome} and {other} are two partitions")
            expect(outcome.offset == other.offset or (topic, outcome.partition) in repeated,
                   f"record {number} of {topic}: {outcome} and {other} are two offsets")
        self.is_disturbed = self.has_rules
        for side in self.sides:
            for place in side.sent:
                self._check_log(side, place)

    def _outcomes(self, side: Side) -> dict[int, tuple[str, Outcome]]:
        """Return outcomes by record. Every valid record must be delivered: faults are temporary."""
        found = {}
        outcomes = side.player.outcomes
        for producer, topic, _, row in side.unflushed:
            outcome = outcomes.pop(row.number, None)
            expect(outcome is not None and outcome.code == 0,
                   f"{side.player.name}: record {row.number} of {topic} has outcome {outcome}")
            place = topic, outcome.partition
            side.sent[place].append((producer, row))
            if producer == PLAIN and self.is_disturbed:
                side.repeated.add(place)
            found[row.number] = topic, outcome
        expect(not outcomes, f"{side.player.name} reports twice: {outcomes}")
        self._check_offsets(side, found)
        side.unflushed.clear()
        return found

    def _check_offsets(self, side: Side, found: dict[int, tuple[str, Outcome]]) -> None:
        """Check that a record is where its report places it."""
        logs = {place: {record.offset: record for record in side.log(place)}
                for place in {(topic, outcome.partition) for topic, outcome in found.values()}}
        for number, (topic, outcome) in found.items():
            record = logs[topic, outcome.partition].get(outcome.offset)
            expect(record is not None and record.timestamp == self.base_ms + number,
                   f"{side.player.name}: record {number} was reported as {outcome} of {topic}, "
                   f"where the log has {record}")

    def _check_log(self, side: Side, place: Place) -> None:
        """Check that the log has every sent record once, in the order of sending."""
        start, end = side.ends(place)
        log, name = side.log(place), f"{side.player.name}: {place}"
        wanted = [(self.base_ms + row.number, row.key, row.value, tuple(row.headers))
                  for _, row in side.sent[place]]
        plain = {self.base_ms + row.number for kind, row in side.sent[place] if kind == PLAIN}
        seen: set[int] = set()
        firsts = []
        for record in log:
            if record.timestamp in seen:
                expect(record.timestamp in plain and place in side.repeated,
                       f"{name} has record {record.timestamp - self.base_ms} twice, the second "
                       f"time at {record.offset}")
                continue
            seen.add(record.timestamp)
            firsts.append(tuple(record[1:]))
        if place not in side.repeated:
            expect(end == len(wanted), f"{name} ends at {end} after {len(wanted)} records")
            wanted = wanted[start:]
        elif start:
            # If one copy of a duplicated record was deleted, the remaining records are no longer in
            # order.
            expect(set(firsts) <= set(wanted), f"{name} has records that were not sent")
            return
        expect(firsts == wanted, f"{name} has {_numbers(firsts, self.base_ms)}, sent were "
                                 f"{_numbers(wanted, self.base_ms)}")

    # Faults

    def disturb(self, fault: str, count: int) -> None:
        self.is_disturbed = True
        faults = self.broker.faults
        if fault in ("restart", "kill"):
            self.stop_broker(fault == "kill")
            self.broker.start()
        elif fault == "cut connections":
            faults.drop_connections()
        else:
            self.has_rules = True
            if fault == "lose responses":
                faults.lose_answers("Produce", count)
            elif fault == "lose requests":
                faults.lose_requests(None, count)
            else:
                faults.delay(30 * count, "Produce", count)

    def _clear_rules(self) -> None:
        if self.has_rules:
            self.broker.faults.clear()
            self.has_rules = False

    def stop_broker(self, kill: bool) -> None:
        self.is_disturbed = True
        self.has_rules = False  # They end with the broker's process.
        if kill:
            self.broker.kill()
        else:
            self.broker.stop()

    def start_broker(self) -> None:
        self.broker.start()

    def forget_producers(self) -> None:
        """Wait until no partition has producer state."""
        self._set_expiration(1)
        partitions = [TopicPartition(*tp) for side in self.sides
                      for tp in side.player.partitions()]
        end_s = time.monotonic() + WAIT_S
        while any(self.admin.describe_producers(tp) for tp in partitions):
            assert time.monotonic() < end_s, "the broker does not forget its producers"
            time.sleep(0.02)
        self._set_expiration(86_400_000)

    def answer_error(self, error: str, api: str, count: int) -> None:
        self.has_rules = True
        self.broker.faults.answer_error(error, api, count)

    def hold_produce(self) -> None:
        """Keep batches in flight until disrupt_in_flight()."""
        self.has_rules = True
        self.broker.faults.delay(HOLD_MS, "Produce")

    def disrupt_in_flight(self, topic: str, event: str, fault: str, error: str) -> None:
        faults = self.broker.faults
        if event == FORGET:
            self._set_expiration(1)
        if fault == "lose responses":
            faults.lose_answers("Produce", FAULTS_IN_FLIGHT_MAX)
        elif fault == "answer error":
            faults.answer_error(error, "Produce", FAULTS_IN_FLIGHT_MAX)
        time.sleep(HOLD_MS / 1000)
        unflushed = [list(side.unflushed) for side in self.sides]
        if event == RECREATE:
            self.recreate_topic(topic)
        elif event == FORGET:
            time.sleep(HOLD_MS / 1000)
            self._set_expiration(86_400_000)
        self._clear_rules()
        for side, sent in zip(self.sides, unflushed, strict=True):
            side.unflushed.clear()
            side.player.flush()
            self._adopt_log(side, (topic, 0), [row for *_, row in sent], event)
        self.is_disturbed = False

    def _adopt_log(self, side: Side, place: Place, rows: list[Row], event: str) -> None:
        """Check the reports of records in flight during a fault, then use the log as the model.

        A record reported as delivered must be at its reported offset; in a re-created topic this
        applies from the first record on that is in the new log. Other records may exist or not.
        """
        name, log = f"{side.player.name}: {place}", side.log(place)
        known = {row.number: row for row in [*[row for _, row in side.sent[place]], *rows]}
        numbers = {record.offset: record.timestamp - self.base_ms for record in log}
        first = min((number for number in numbers.values()), default=None)
        expect(set(numbers.values()) <= set(known), f"{name} has records that were not sent")
        failed = []
        for row in rows:
            outcome = side.player.outcomes.pop(row.number, None)
            expect(outcome is not None, f"{name}: record {row.number} has no outcome")
            if outcome.code:
                failed.append(row.number)
            elif event != RECREATE or first is not None and row.number >= first:
                found = numbers.get(outcome.offset)
                expect(found == row.number,
                       f"{side.player.name}: record {row.number} was reported as {outcome} of "
                       f"{place[0]}, where the log has {found}")
        if event == NO_EVENT and isinstance(side.player, PylogPlayer):
            expect(not failed, f"{name}: records {failed} failed, although no record can be lost")
            sent, found = [row.number for row in rows], list(numbers.values())
            expect(found[-len(sent):] == sent, f"{name} has {found}, sent were last {sent}")
        # A number counts where it occurs first. Records may be duplicated from now on.
        side.sent[place] = [(PLAIN, known[number]) for number in dict.fromkeys(numbers.values())]
        side.repeated.add(place)
        if failed:
            side.player.reopen_producer(IDEMPOTENT)

    def _set_expiration(self, ms: int) -> None:
        self.admin.incremental_alter_configs(
            {ConfigResource(ResourceType.BROKER, ""): {EXPIRATION: str(ms)}})

    # Topics

    def recreate_topic(self, topic: str) -> None:
        for side in self.sides:
            while side.player.members:
                side.player.leave(0)
            self.broker.topic(side.player.topics[topic]).delete()
            self._create(side.player.topics, topic)
            side.forget_topic(topic)
            is_new = side.player.reopen_reader()
            for place in side.sent:
                if is_new or place[0] == topic:
                    self._seek(side, place, side.positions[place])

    def delete_records(self, topic: str, partition: int, fraction: float) -> None:
        for side in self.sides:
            place = topic, partition
            start, end = side.ends(place)
            self.admin.delete_records({
                TopicPartition(side.player.topics[topic], partition):
                    start + int((end - start) * fraction)})
            # The consumer may return records fetched before: make it fetch again.
            self._seek(side, place, side.positions[place])

    # A consumer with manual assignment

    def seek(self, topic: str, partition: int, fraction: float) -> None:
        """fraction: of the log; more than 1 is out of range."""
        for side in self.sides:
            start, end = side.ends((topic, partition))
            self._seek(side, (topic, partition), start + int((end - start) * fraction))

    def _seek(self, side: Side, place: Place, offset: int) -> None:
        side.player.seek(side.player.topics[place[0]], place[1], offset)
        side.positions[place] = offset
        side.consumed.discard(place)

    def read(self, topic: str, partition: int, count: int) -> None:
        found = [self._read(side, (topic, partition), count) for side in self.sides]
        repeated = self.sides[0].repeated | self.sides[1].repeated
        expect(found[0] == found[1] or (topic, partition) in repeated,
               f"{topic}-{partition}: the clients read {found[0]} and {found[1]}")

    def _read(self, side: Side, place: Place, count: int) -> list[Read]:
        player, (topic, partition) = side.player, place
        wanted = side.from_position(place, side.positions[place])[:count]
        own = player.topics[topic]
        player.set_paused(own, partition, False)
        found: list[Read] = []
        end_s = time.monotonic() + WAIT_S
        while len(found) < len(wanted) and time.monotonic() < end_s:
            found += self._of(player.poll(player.reader(), count - len(found), POLL_S), own,
                              partition)
        if len(found) < count:
            found += self._of(player.poll(player.reader(), count - len(found), POLL_S), own,
                              partition)
        player.set_paused(own, partition, True)
        expect(found == wanted, f"{player.name} reads {place} from {side.positions[place]} on: "
                                f"{_numbers(found, self.base_ms)} in place of "
                                f"{_numbers(wanted, self.base_ms)}")
        if found:
            side.positions[place] = found[-1].offset + 1
            side.consumed.add(place)
            position = player.position(own, partition)
            expect(position == side.positions[place],
                   f"{player.name} has position {position} in {place} after {found[-1]}")
        return found

    @staticmethod
    def _of(found: list[tuple[str, int, Read]], topic: str, partition: int) -> list[Read]:
        for record in found:
            expect(record[:2] == (topic, partition), f"a paused partition has {record}")
        return [record for _, _, record in found]

    def commit(self) -> None:
        for side in self.sides:
            player = side.player
            if not side.consumed:
                continue
            end_s = time.monotonic() + WAIT_S
            while not player.commit(player.reader()):
                expect(time.monotonic() < end_s, f"{player.name} cannot commit")
            offsets = self.broker.group(f"{player.prefix}-reader").offsets()
            for place in side.consumed:
                found = offsets.get((player.topics[place[0]], place[1]))
                expect(found == side.positions[place],
                       f"{player.name} committed {found} of {place} after it read up to "
                       f"{side.positions[place]}")

    # A group

    def join(self) -> None:
        for side in self.sides:
            side.player.join()
            self._settle(side)

    def leave(self, index: int) -> None:
        for side in self.sides:
            side.player.leave(index)
            self._settle(side)

    def _settle(self, side: Side) -> None:
        """Wait until the members together own every partition."""
        player = side.player
        group, wanted = self.broker.group(player.group), sorted(player.partitions())
        end_s = time.monotonic() + WAIT_S
        while player.members and not (
                len(group.members()) == len(player.members) and group.state == "Stable"
                and player.assigned() == wanted):
            expect(time.monotonic() < end_s,
                   f"{player.name}: the group does not settle: {group.state}, "
                   f"{len(group.members())} members with {player.assigned()}")
            self._poll_members(side)

    def _poll_members(self, side: Side) -> int:
        """Return the number of records that the members returned."""
        found = [record for member in side.player.members
                 for record in side.player.poll(member, 500, POLL_S)]
        for topic, partition, record in found:
            side.gathered.setdefault(side.place(topic, partition), []).append(record)
        return len(found)

    def drain_group(self) -> None:
        """Let the members read to the end and commit."""
        ours, theirs = [self._drain(side) for side in self.sides]
        for place in ours:
            expect(ours[place] == theirs[place]
                   or place in self.sides[0].repeated | self.sides[1].repeated,
                   f"{place}: the groups read {ours[place]} and {theirs[place]}")

    def _drain(self, side: Side) -> dict[Place, list[Read]]:
        player, rebalances = side.player, side.player.rebalances
        wanted = {place: side.from_position(place, side.committed.get(place, 0))
                  for place in side.sent}
        ends = {place: records[-1].offset + 1 for place, records in wanted.items() if records}
        end_s = time.monotonic() + WAIT_S
        while True:
            self._poll_members(side)
            is_read = all(side.gathered.get(place, [None])[-1] == wanted[place][-1]
                          for place in ends)
            if is_read and self._have_committed(side, ends):
                break
            expect(time.monotonic() < end_s,
                   f"{player.name}: the group has read and committed "
                   f"{self.broker.group(player.group).offsets()} in place of {ends}")
        self._poll_members(side)
        for place, records in wanted.items():
            found = side.gathered.pop(place, [])
            if player.rebalances != rebalances:
                found = _first_time(found)
            # Records that were deleted after a member had fetched them may still be returned.
            start = side.ends(place)[0]
            found = [record for record in found if record.offset >= start]
            expect(found == records,
                   f"{player.name}: the group reads {place} from {side.committed.get(place)} on: "
                   f"{_numbers(found, self.base_ms)} in place of "
                   f"{_numbers(records, self.base_ms)}")
        side.committed |= ends
        return wanted

    def _have_committed(self, side: Side, ends: dict[Place, int]) -> bool:
        """Commit; return False if the group did not commit everything because it is rebalancing."""
        if not all([side.player.commit(member) for member in side.player.members]):
            return False
        offsets = self.broker.group(side.player.group).offsets()
        return all(offsets.get((side.player.topics[topic], partition)) == end
                   for (topic, partition), end in ends.items())


def _first_time(found: list[Read]) -> list[Read]:
    """Remove records that were returned again after a rebalance."""
    kept: list[Read] = []
    for record in found:
        if not kept or record.offset > kept[-1].offset:
            kept.append(record)
    return kept


def _numbers(records: list[Any], base_ms: int) -> list[Any]:
    """Return a short form of records: their numbers, with offsets if known."""
    return [(record.offset, record.timestamp - base_ms) if isinstance(record, Read)
            else record[0] - base_ms for record in records]
