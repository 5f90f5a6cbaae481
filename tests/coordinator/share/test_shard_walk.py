"""The states of share partitions compared with a simple model: random requests, every field
compared.

After each step, reloading the records gives the same state, and each record is the expected one.
"""

from pylog.coordinator.share import partition_state
from pylog.coordinator.share.partition_state import Batch, ShareKey, combined
from pylog.coordinator.share.shard import ShareStates
from pylog.protocol.errors import ErrorCode
from tests.coordinator.world import Clock, loaded

TOPIC, GONE = b"t" * 16, b"g" * 16
KEYS = [ShareKey(group, topic, index) for group in "ab" for topic, index in (
    (TOPIC, 0), (TOPIC, 1), (TOPIC, 2), (TOPIC, -1), (GONE, 0))]
FIELDS = ("snapshot_epoch", "state_epoch", "leader_epoch", "start_offset", "complete_count",
          "create_ms", "write_ms", "updates", "batches")
NONE = ErrorCode.NONE
UPDATES_MAX, COLD_MS = 3, 1000
EPOCH = 1  # every partition's leader epoch


class Model:
    """rows: key -> its fields."""

    def __init__(self, clock):
        self.clock, self.rows, self.unsaved = clock, {}, set()
        self.topics = {TOPIC: 2, GONE: 1}

    def place(self, key):
        if key.partition < 0:
            return ErrorCode.INVALID_REQUEST
        there = key.partition < self.topics.get(key.topic_id, 0)
        return NONE if there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def known(self, key, leader_epoch, state_epoch):
        row = self.rows.get(key)
        if row is None:
            return ErrorCode.INVALID_REQUEST
        if leader_epoch != -1 and leader_epoch < row["leader_epoch"]:
            return ErrorCode.FENCED_LEADER_EPOCH
        if state_epoch != -1 and state_epoch < row["state_epoch"]:
            return ErrorCode.FENCED_STATE_EPOCH
        return self.place(key)

    def saved(self, key, new=True):
        row = self.rows[key]
        row["write_ms"] = self.clock.wall_ms()
        if new:
            row["create_ms"] = row["write_ms"]
        row["updates"] = 0
        self.unsaved.discard(key)
        return ("snapshot", key)

    def updated(self, key, start, count, leader_epoch, batches):
        row = self.rows[key]
        due = row["updates"] == UPDATES_MAX
        if start != -1:
            row["start_offset"] = start
        row["leader_epoch"] = max(row["leader_epoch"], leader_epoch)
        row["complete_count"] = count
        row["batches"] = combined([*row["batches"], *batches], row["start_offset"])
        row["updates"] += 1
        if not due:
            return [("update", key)]
        row["snapshot_epoch"] += 1
        return [self.saved(key)]

    def initialize(self, key, state_epoch, start):
        old = self.rows.get(key)
        if old is not None and state_epoch != -1 and state_epoch < old["state_epoch"]:
            return ErrorCode.FENCED_STATE_EPOCH, []
        if self.place(key) != NONE:
            return self.place(key), []
        self.rows[key] = {
            "snapshot_epoch": 0 if old is None else old["snapshot_epoch"] + 1,
            "state_epoch": state_epoch, "leader_epoch": EPOCH, "start_offset": start,
            "complete_count": -1 if start == -1 else 0, "batches": []}
        return NONE, [self.saved(key)]

    def read(self, key, leader_epoch):
        error = self.known(key, leader_epoch, -1)
        if error == NONE and leader_epoch > self.rows[key]["leader_epoch"]:
            return NONE, self.updated(key, -1, self.rows[key]["complete_count"], leader_epoch, [])
        return error, []

    def write(self, key, state_epoch, leader_epoch, start, count, batches):
        error = self.known(key, leader_epoch, state_epoch)
        if error == NONE and [row for row in batches
                              if row.first < 0 or row.last < row.first or row.deliveries < 0]:
            return ErrorCode.INVALID_REQUEST, []
        return error, [] if error != NONE else self.updated(
            key, start, count, self.rows[key]["leader_epoch"], batches)

    def delete(self, key):
        error = self.place(key)
        if error != NONE or key not in self.rows:
            return error, []
        return NONE, [self.forget(key)]

    def forget(self, key):
        del self.rows[key]
        self.unsaved.discard(key)
        return ("gone", key)

    def forget_gone(self):
        return [self.forget(key) for key in list(self.rows) if self.place(key) != NONE]

    def save_cold(self):
        made = []
        for key in sorted(self.unsaved):
            if self.clock.wall_ms() - self.rows[key]["write_ms"] >= COLD_MS:
                self.rows[key]["snapshot_epoch"] += 1
                made.append(self.saved(key, new=False))
        return made


def _batches(random):
    return [Batch(first := random.randrange(-1 if random.random() < 0.1 else 0, 9),
                  first + random.randrange(-1 if random.random() < 0.1 else 0, 4),
                  random.choice((0, 2, 4)), random.randrange(0, 3) - (random.random() < 0.05))
            for _ in range(random.randrange(3))]


def _step(random, state_machine, model):
    """Send one request to both. Returns (both responses, the expected records)."""
    key, epoch = random.choice(KEYS), random.randrange(-1, 3)
    turn = random.randrange(12)
    if turn < 2:
        given = key, epoch, random.choice((-1, 0, 5))
        return state_machine.initialize(*given)[0], model.initialize(*given)
    if turn < 4:
        fault, state = state_machine.read(key, epoch)
        expected = model.read(key, epoch)
        assert state is (state_machine.states[key] if expected[0] == NONE else None)
        return fault[0], expected
    if turn < 9:
        given = (key, epoch, random.randrange(-1, 3), random.choice((-1, -1, 0, 2, 4)),
                 random.randrange(3), _batches(random))
        return state_machine.write(*given)[0], model.write(*given)
    if turn == 9:
        return state_machine.delete(key)[0], model.delete(key)
    if turn == 10:
        (error, _), state = state_machine.summary(key)
        assert state is (state_machine.states.get(key) if error == NONE else None)
        return error, (model.place(key), [])
    model.topics = {TOPIC: random.randrange(1, 4), **({GONE: 1} if random.random() < 0.6 else {})}
    if random.random() < 0.5:
        model.clock.ms += random.choice((1, 400, 1000))
        list(state_machine.save_cold())
        return NONE, (NONE, model.save_cold())
    state_machine.forget_gone()
    return NONE, (NONE, model.forget_gone())


def _fields(states):
    return {key: {name: getattr(state, name) for name in FIELDS} for key, state in states.items()}


def _kinds(written):
    found = []
    for key, value in written:
        whose, is_snapshot, _ = partition_state.decode(key, value)
        found.append(("gone" if value is None else "snapshot" if is_snapshot else "update", whose))
    return found


def test_states_records_and_loads_are_the_models(random_source):
    for _ in range(25):
        clock = Clock()
        model = Model(clock)

        def leader_epoch_of(topic, index, model=model):
            return EPOCH if index < model.topics.get(topic, 0) else None

        state_machine = ShareStates(clock, leader_epoch_of, UPDATES_MAX, COLD_MS)
        state_machine.loaded()
        for _ in range(80):
            before = len(state_machine.records)
            error, (expected, due) = _step(random_source, state_machine, model)
            assert error == expected
            assert sorted(_kinds(state_machine.records[before:])) == sorted(due)
            assert _fields(state_machine.states) == model.rows
            assert state_machine.unsaved == model.unsaved
            if random_source.random() < 0.2:
                state_machine.mark()
                model.unsaved = set(model.rows)
        other = ShareStates(clock, leader_epoch_of, UPDATES_MAX, COLD_MS)
        loaded(other, state_machine.records)
        assert _fields(other.states) == model.rows and other.unsaved == set(model.rows)
        assert (state_machine.responses, state_machine.cleanups,
                list(state_machine.open_tokens())) == ([], 0, [])
