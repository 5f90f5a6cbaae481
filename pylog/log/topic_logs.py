"""The open logs of a node by topic, with the settings and the log directory of each.

Owns: the list of topics and their logs.
Invariants: a partition has one Log; a listed log has the newest settings of its topic.
Threads: any; `lock` protects changes of an entry.
"""

import threading
from typing import NamedTuple

from pylog.log import partition_logs
from pylog.log.cleaner import Candidate


class TopicEntry(NamedTuple):
    """logs: a Log per partition, modified in place; None if this node has none. overrides: the
    topic's own settings.
    """

    topic_id: bytes
    logs: list
    overrides: dict


class TopicLogs:
    """entries: by topic name. timed: logs with their own flush.ms, which every upkeep checks.
    directories: Log -> number of its directory, if that is not 0.
    """

    def __init__(self, settings):
        self.entries: dict[str, TopicEntry] = {}
        self.lock = threading.Lock()
        self.timed: set = set()
        self.directories: dict = {}
        self._settings = settings
        self._default_config = None

    def get(self, name: str, index: int):
        """Return a partition's Log, or None if this node has none."""
        entry = self.entries.get(name)
        if entry is None or not 0 <= index < len(entry.logs):
            return None
        return entry.logs[index]

    def by_topic(self) -> list:
        """Return [(topic, its Logs or None)], unordered."""
        return [(name, entry.logs) for name, entry in list(self.entries.items())]

    def all(self):
        """Yield (name, topic id, partition, Log) of each open partition."""
        for name, (topic_id, logs, _) in list(self.entries.items()):
            for index, partition_log in enumerate(logs):
                if partition_log is not None:
                    yield name, topic_id, index, partition_log

    def with_directories(self):
        """Yield (directory number, name, topic id, partition, Log) of each open partition."""
        for entry in self.all():
            yield self.directory_of(entry[3]), *entry

    def directory_of(self, partition_log) -> int:
        """Return the number of the directory that holds a log."""
        return self.directories.get(partition_log, 0)

    def config(self, overrides: dict):
        """Return the native settings of a topic. Topics without overrides share one object."""
        if overrides:
            return partition_logs.native_config(
                self._settings.topic_config(partition_logs.usable(overrides)), self._settings)
        if self._default_config is None:
            self._default_config = partition_logs.native_config(
                self._settings.topic_config({}), self._settings)
        return self._default_config

    def publish(self, name: str, index: int, partition_log, config) -> None:
        """Make an opened Log available, with the topic's newest settings. config: those that the
        log has.
        """
        with self.lock:
            _, logs, overrides = self.entries[name]
            newest = self.config(overrides)
            if newest is not config:
                partition_log.set_config(newest)
            self._watch(partition_log, newest)
            logs[index] = partition_log

    def configure(self, name: str, overrides: dict) -> None:
        """Apply changed topic settings."""
        with self.lock:
            entry = self.entries[name] = self.entries[name]._replace(overrides=overrides)
            config = self.config(overrides)
            for partition_log in entry.logs:
                if partition_log is not None:
                    partition_log.set_config(config)
                    self._watch(partition_log, config)

    def reconfigure(self) -> None:
        """Apply changed broker settings to every topic."""
        self._default_config = None
        for name, entry in list(self.entries.items()):
            self.configure(name, entry.overrides)

    def compacted(self):
        """Yield the candidates of the cleaner."""
        default = "compact" in self._settings.topic_defaults()["cleanup.policy"]
        for name, (_, logs, overrides) in list(self.entries.items()):
            own = overrides.get("cleanup.policy")
            if default if own is None else "compact" in own:
                config = self.config(overrides)
                for index, partition_log in enumerate(logs):
                    if partition_log is not None:
                        yield Candidate(name, index, self.directory_of(partition_log),
                                        partition_log, config)

    def clear(self) -> None:
        """Release the logs."""
        for logs in (self.entries, self.directories, self.timed):
            logs.clear()

    def _watch(self, partition_log, config) -> None:
        if config["flush.ms"] < partition_logs.NEVER:
            self.timed.add(partition_log)
        else:
            self.timed.discard(partition_log)
