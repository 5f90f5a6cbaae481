"""The disks of a simulated machine: log directories that fill, fail and lose writes, and their
logs.

Owns: the state that survives a process.
Invariants: a process starts with the contents of its disks only; directories: a failed directory
  stays offline until the next start, a full one until space returns; the first directory holds the
  metadata, and the process ends if it fails.
Source: pylog.log.manager, pylog.log.log_directories.
"""

import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

from pylog.log import partition_logs
from tests.sim.logs import NS, Directory, Files, MetadataFiles, ModelLog

DIRECTORIES = 2
# Folder for snapshots, which are real files.
FOLDERS = next((path for path in ("/dev/shm",) if Path(path).is_dir()), None)


class Disk:
    """A machine's persistent state.

    directories: of the current process, by number. flush_first: a replica acknowledges only flushed
    records.
    """

    def __init__(self, flush_first: bool):
        self._flush_first = flush_first
        self.partitions: dict = {}       # (topic id, index) -> Files
        self.metadata = MetadataFiles()
        self.clean_epoch = -1
        self.lost: set = set()  # (topic id, index) of replicas that lost acknowledged records
        self.is_full = False
        self.deleted: set = set()  # Directories whose files were deleted while open.
        self.ages = [0] * DIRECTORIES  # How often each directory was re-created.
        self.directories: list[Directory] = []
        self.folder = Path(tempfile.mkdtemp(prefix="pylog-sim-", dir=FOLDERS))

    def began(self) -> None:
        """Start a process: every directory is online again. Keeps directories."""
        self.directories = [Directory(self) for _ in range(DIRECTORIES)]

    def forget(self, choose, places=range(DIRECTORIES)) -> None:
        """Lose a random part of the unflushed records in the given directories."""
        for key, files in self.partitions.items():
            if files.place not in places:
                continue
            before = len(files.records)
            # With flush_first, an unflushed record counts only at a partition's only replica.
            counted = files.counted_unflushed if self._flush_first else before
            files.lose(choose.randint(files.flushed, before))
            if len(files.records) < counted:
                self.lost.add(key)
        if 0 in places:
            self.metadata.lose(choose.randint(0, 3))

    def release_deleted(self) -> None:
        """Drop the deleted files after the process that had them open ended."""
        for key in [key for key, files in self.partitions.items() if files.place in self.deleted]:
            del self.partitions[key]
            self.lost.add(key)
        if 0 in self.deleted:
            self.metadata.begin_at(0)
            self.clean_epoch = -1
            for path in self.folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for place in self.deleted:
            self.ages[place] += 1
        self.deleted.clear()

    def scrap(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Logs:
    """Model of LogManager."""

    paths = [f"/{number}" for number in range(DIRECTORIES)]
    recovering = 0

    def __init__(self, process):
        self._process, self._disk = process, process.node.disk
        self._topics: dict = {}          # name -> (topic id, [ModelLog or None])
        self._settings: dict = {}  # name -> settings of its logs
        self.directories = [process]
        self.disks = SimpleNamespace(
            online=lambda place: not self._disk.directories[place].offline,
            usable=lambda: [(0, "/")])
        self.checkpointer = SimpleNamespace(cut=self._cut)
        self.moves = SimpleNamespace(lock=nullcontext(), find=lambda name, index: None)
        self._told: set = set()  # Directories whose failure take_failed() has returned.
        self.offline: list = []

    def reconfigure(self) -> None:
        """Ignore changed cluster-wide settings: no log here depends on them."""

    def all(self):
        return [log for _, logs in self._topics.values() for log in logs if log is not None]

    def get(self, name, index):
        logs = self._topics.get(name, (None, ()))[1]
        return logs[index] if index < len(logs) else None

    def by_id(self, topic_id, index):
        for known, logs in self._topics.values():
            if known == topic_id:
                return logs[index] if index < len(logs) else None
        return None

    def dir_index(self, name, index) -> int:
        return self.get(name, index).files.place

    def is_offline(self, name, index) -> bool:
        return (name, index) in self.offline

    def lacks_files(self, name, index) -> bool:
        """Return False: in the model, a partition fails only with its directory."""
        return False

    def take_failed(self) -> list:
        """Model of LogManager.take_failed()."""
        failed = {place for place, directory in enumerate(self._disk.directories)
                  if directory.offline} - self._told
        self._told |= failed
        found = [(name, index) for name, (_, logs) in self._topics.items()
                 for index, log in enumerate(logs)
                 if log is not None and log.files.place in failed]
        self.offline += found
        return found

    def _open(self, name, topic_id, index, role):
        if role is None:
            return None
        world, key = self._process.node.world, (topic_id, index)
        files = self._disk.partitions.get(key)
        if files is None:
            files = self._disk.partitions[key] = Files(self._least_loaded())
        log = ModelLog(files, key, self._process.watcher,
                       lambda: int(world.loop.time() * NS), self._settings[name],
                       self._disk.directories[files.place])
        log.topic = name
        partition_logs.assume(log, role)
        return log

    def _least_loaded(self) -> int:
        online = [place for place in range(DIRECTORIES) if self.disks.online(place)]
        held = [files.place for files in self._disk.partitions.values()]
        return min(online, key=held.count, default=0)

    def create(self, name, topic_id, roles, overrides) -> None:
        given = self._process.node.world.log_settings
        self._settings[name] = SimpleNamespace(**{**vars(given), "min_isr": int(
            overrides.get("min.insync.replicas", given.min_isr))})
        self._topics[name] = topic_id, [
            self._open(name, topic_id, index, role) for index, role in enumerate(roles)]

    def _removed(self, topic_id, index, log) -> None:
        log.close()
        self._disk.partitions.pop((topic_id, index), None)
        self._disk.lost.discard((topic_id, index))

    def delete(self, name) -> None:
        topic_id, logs = self._topics.pop(name)
        for index, log in enumerate(logs):
            if log is not None:
                self._removed(topic_id, index, log)
        self.offline = [lost for lost in self.offline if lost[0] != name]

    def drop(self, name, indexes) -> None:
        topic_id, logs = self._topics[name]
        for index in indexes:
            if logs[index] is not None:
                self._removed(topic_id, index, logs[index])
                logs[index] = None
        self.offline = [lost for lost in self.offline
                        if lost[0] != name or lost[1] not in indexes]

    def assume(self, name, roles, added=()) -> None:
        topic_id, logs = self._topics[name]
        known = len(logs)
        logs += [None] * (len(roles) - known)
        for index, role in enumerate(roles):
            if role is not None and logs[index] is not None:
                partition_logs.assume(logs[index], role)
            elif role is not None and (index >= known or index in added):
                logs[index] = self._open(name, topic_id, index, role)

    def configure(self, name, overrides) -> None:
        pass

    def discard_branch(self, topic_id) -> None:
        pass

    def open_partitions(self, image, roles) -> None:
        """Open the image's replicas at a start and delete all others."""
        wanted = set()
        for topic in image.topics.values():
            self.create(topic.name, topic.id, roles(topic), image.topic_config(topic.name))
            wanted |= {(topic.id, index) for index, log in enumerate(self._topics[topic.name][1])
                       if log is not None}
        for key in set(self._disk.partitions) - wanted:
            del self._disk.partitions[key]

    def _cut(self, topic_id, index, log, cut, leader_epoch) -> None:
        if cut.truncate_to is not None:
            log.truncate(cut.truncate_to, leader_epoch)
        if cut.restart_at is not None:
            log.restart_at(cut.restart_at, leader_epoch)
