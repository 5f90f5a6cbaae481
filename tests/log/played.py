"""A log manager on simulated disks and logs: only Kafka's small files are real."""

import os
from types import SimpleNamespace

from pylog._native.log.log import LogError
from pylog.config import Settings
from pylog.log import manager, partition_logs, recovery
from pylog.log.manager import LogManager
from pylog.log.partition_logs import Checkpoint, Role
from pylog.protocol.errors import ErrorCode

LEADS = Role(True, 3, 1)
NOW = 1_000_000
KNOWN = Checkpoint(5, 2, 4, -1, -1, b"")
AT_REST = Checkpoint(5, 2, 4, 9, 3, b"segments")


def failure():
    return LogError(5, ErrorCode.KAFKA_STORAGE_ERROR, "planted")


def topic_id(number=1):
    return bytes(15) + bytes([number])


class Disk:
    """The part of a LogDir that the manager uses. steps: its calls."""

    def __init__(self, path):
        self.path, self.offline, self.short_of_space = path, False, False
        self.failure, self.refuses, self.steps = (0, "EIO", "fsync"), set(), []
        self.lost_logs = 0

    def fail(self, code):
        self.steps.append(("fail", code))
        self.offline = True
        return True

    def stats(self):
        return {"shortages": 0, "short_error": 0}

    def check_free_space(self, reserve=None):
        return 1 << 40, 1 << 50

    def flush(self):
        self._step("flush")

    def settle(self):
        self._step("settle")

    def _step(self, name):
        self.steps.append(name)
        if name in self.refuses:
            raise failure()


class Log:
    """A partition's log. steps: its calls, except those for its role."""

    def __init__(self, disk, topic, partition, known):
        self.log_dir, self.topic, self.partition = disk, topic, partition
        self.recovery_point, self.start_offset = known.recovery_point, known.log_start_offset
        self.high_watermark, self.end_offset, self.last_epoch = known.high_watermark, 9, 3
        self.leader_epoch, self.is_leader, self.in_sync_count = -1, False, 0
        self.open_transaction, self.size_bytes = -1, 0
        self.refuses, self.steps, self.is_lost = set(), [], False

    @property
    def offline(self):
        return self.is_lost or self.log_dir.offline

    def lose_files(self):
        """As after another program removed the files."""
        self.is_lost = True
        self.log_dir.lost_logs += 1

    def segments(self):
        return b"segments"

    def become_leader(self, epoch, in_sync_count, replicated=False):
        self.leader_epoch, self.in_sync_count, self.is_leader = epoch, in_sync_count, True

    def become_follower(self, epoch, readable=False):
        self.leader_epoch, self.is_leader = epoch, False

    def _step(self, *what):
        self.steps.append(what)
        if what[0] in self.refuses:
            raise failure()

    def set_config(self, config):
        self._step("set_config", config)

    def delete(self, now_ms):
        self._step("delete", now_ms)

    def settle(self, now_ms):
        self._step("settle", now_ms)

    def upkeep(self, now_ms):
        self._step("upkeep", now_ms)

    def move_start(self, offset, now_ms):
        self._step("move_start", offset, now_ms)
        self.start_offset = offset
        return offset


class Store:
    """Stores (checkpoints, deleted keys)."""

    def __init__(self):
        self.saved, self.refuses = [], False

    def save(self, _image, checkpoints, gone=()):
        if self.refuses:
            raise OSError("planted")
        self.saved.append((list(checkpoints), list(gone)))


class World:
    """logs: the manager. opened: (directory's number, topic, partition, checkpoint, trusted), in
    order. refusals: (topic, partition) -> error when opening it.
    """

    def __init__(self, monkeypatch, path, disks=1, **settings):
        self.now_ms, self.store, self.opened, self.refusals = NOW, Store(), [], {}
        self.paths = [os.path.join(path, name) for name in "abc"[:disks]]
        for one in self.paths:
            os.mkdir(one)
        self.settings = Settings({"log.dirs": ",".join(self.paths), **settings})
        self.logs = LogManager(self.settings, None, lambda: self.now_ms)
        self.disks = [Disk(one) for one in self.paths]
        self.logs.disks.natives = self.disks
        self.logs.disks.listings = [set() for _ in self.paths]
        self.logs.disks.loads = [0] * disks
        # Moves advance when the test requests it.
        self.logs.moves._thread = SimpleNamespace(is_alive=lambda: True, join=lambda: None)
        monkeypatch.setattr(partition_logs, "open_log", self._open_log)
        monkeypatch.setattr(manager, "Log", SimpleNamespace(open=self._open_target))
        monkeypatch.setattr(manager, "finish", lambda move, now_ms: None)
        monkeypatch.setattr(recovery.damage_report, "take", lambda disk: ())
        monkeypatch.setattr(recovery.damage_report, "stop_recovery", lambda disk: None)

    def _open_log(self, disk, topic, partition, id_, config, known, trusted, now_ms):
        if (topic, partition) in self.refusals:
            raise self.refusals[topic, partition]
        self.opened.append((self.disks.index(disk), topic, partition, known, trusted))
        made = Log(disk, topic, partition, known)
        made.id, made.config = id_, config
        return made

    def _open_target(self, disk, topic, partition, id_, config, **known):
        made = Log(disk, topic, partition, partition_logs.NOTHING_KNOWN)
        made.id, made.config, made.known = id_, config, known
        return made

    def made_before(self, place, *names):
        """Create directories for a start to find."""
        for name in names:
            os.mkdir(os.path.join(self.paths[place], name))
            self.logs.disks.listings[place].add(name)

    def start(self, *topics, checkpoints=None, clean=None):
        """topics: (name, roles) or (name, roles, overrides); their ids are 1, 2, 3."""
        every = frozenset(range(len(self.paths)))
        self.logs.open_partitions(
            [(topic[0], topic_id(number), topic[1], topic[2] if len(topic) > 2 else {})
             for number, topic in enumerate(topics, 1)],
            {} if checkpoints is None else checkpoints, every if clean is None else clean,
            self.store)

    def rows(self, name, place=0):
        """Return the rows of one of Kafka's checkpoint files."""
        return partition_logs.checkpoint_files.read_offsets(os.path.join(self.paths[place], name))
