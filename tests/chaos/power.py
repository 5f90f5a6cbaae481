"""A machine's disk that a loss of power leaves, over several runs of its broker.

Owns: the record of each run (tests.durability.shim.c), and what was on the disk before the first.
Called by: tests.chaos.machines.
Invariants: (1) a run that was killed leaves its unsynced writes to the runs after it, and they are
  lost with theirs; (2) what is below a name in `spared` is left as it is.
Model: tests.durability.disk.
"""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

from tests.durability.disk import (
    CREATE,
    MKDIR,
    RENAME,
    SYNC_BEGIN,
    SYNC_END,
    UNLINK,
    WHOLE,
    WRITE,
    Event,
    PowerCut,
    read_record,
)


class Disk:
    """data: the folder that it holds. records: a folder for the records, elsewhere."""

    def __init__(self, data: Path, records: Path, spared=("etcd",)):
        self.data = data
        self._records = records
        self._spared = frozenset(spared)
        self._names = itertools.count()
        self._ids = itertools.count(1)
        self._runs: list[Path] = []
        records.mkdir(parents=True)
        self._found = self._all_synced()

    def next_record(self) -> Path:
        """Where the next run is to be recorded."""
        self._runs.append(self._records / str(next(self._names)))
        return self._runs[-1]

    def synced(self) -> None:
        """All is on disk, as after an orderly stop and some time."""
        self._found = self._all_synced()
        self._forget()

    def cut(self, generator) -> None:
        """The broker is dead: what no sync covers is lost, or what `generator` chooses of it."""
        events = list(self._found)
        names = {event.path: event.inode for event in self._found if event.type in (CREATE, MKDIR)}
        for record in self._runs:
            events += joined(read_record(record), names, self._ids)
        left = self._records / "left"
        PowerCut(events, self.data).write_to(left, generator)
        for path in self.data.iterdir():
            if path.name not in self._spared:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in left.iterdir():
            if path.name not in self._spared:
                shutil.move(path, self.data / path.name)
        shutil.rmtree(left)
        self.synced()

    def _forget(self) -> None:
        for record in self._runs:
            record.unlink(missing_ok=True)
        self._runs.clear()

    def _all_synced(self) -> list[Event]:
        """The events that would have made what is there."""
        events = []
        for path in sorted(self.data.rglob("*")):
            if path.relative_to(self.data).parts[0] in self._spared:
                continue
            kind = MKDIR if path.is_dir() else CREATE
            events.append(Event(0, next(self._ids), 0, 0, 0, kind, 0, str(path), b""))
            if kind == CREATE and (data := path.read_bytes()):
                events.append(replace(events[-1], type=WRITE, size=len(data), data=data))
        for kind in (SYNC_BEGIN, SYNC_END):
            events.append(Event(0, 0, 0, 0, 0, kind, WHOLE, "", b""))
        return events


def joined(events: list[Event], names: dict[str, int], ids) -> list[Event]:
    """One run's events with ids that are those of the runs before where a file is the same.

    names: path -> id of what was there before; afterwards, of what is there after. ids: gives new
    ones. A process numbers files from 1, at the first event of each.
    """
    found, known = [], {}
    for event in events:
        if event.type == UNLINK:
            names.pop(event.path, None)
            found.append(event)
            continue
        source = event.data.decode() if event.type == RENAME else event.path
        if event.inode not in known:
            known[event.inode] = names[source] if source in names else next(ids)
        if event.type == RENAME:
            _rename(names, source, event.path)
        elif event.type in (CREATE, MKDIR):
            names[event.path] = known[event.inode]
        found.append(replace(event, inode=known[event.inode]))
    return found


def _rename(names: dict[str, int], source: str, goal: str) -> None:
    for path in [path for path in names if path == source or path.startswith(source + "/")]:
        names[goal + path[len(source):]] = names.pop(path)
