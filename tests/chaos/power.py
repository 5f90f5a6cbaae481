"""The contents of a machine's disk after a power loss, across several runs of its broker.

Owns: the record of each run (tests.durability.shim.c), the disk's contents before the first run.
Invariants: unsynced writes: a killed run passes its unsynced writes to later runs, and they are
  lost together; spared names: files below a name in `spared` never change.
Model: tests.durability.disk.
"""

import itertools
import random
import shutil
import subprocess
import sys
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
from tests.fixtures.brokers import REPOSITORY

SPARED = {"etcd"}


BEFORE = "before"  # Folder of the disk's contents before the first run, beside the records.


class Disk:
    """A disk with a record of its writes.

    data: the folder with its contents. records: a folder outside `data` for the records.
    """

    def __init__(self, data: Path, records: Path):
        self.data = data
        self._records = records
        self._names = itertools.count()
        records.mkdir(parents=True)
        self.synced()

    def next_record(self) -> Path:
        """Return the path for the record of the next run."""
        return self._records / f"{next(self._names):06}"

    def synced(self) -> None:
        """Treat everything as synced, as some time after an orderly stop."""
        _run("rm", "-rf", *self._records.iterdir())
        (self._records / BEFORE).mkdir()
        if any(self.data.iterdir()):
            _run("cp", "-a", "-t", self._records / BEFORE, *_unspared(self.data))

    def cut(self, seed: int | None) -> None:
        """Lose the unsynced writes of a dead broker, or a random part of them (seed).

        Runs in another process, so that clients in this process continue.
        """
        _run(sys.executable, "-m", "tests.chaos.power", self.data, self._records, seed or "")
        self.synced()


def _run(*command) -> None:
    done = subprocess.run(list(map(str, command)), cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr)


def _unspared(folder: Path) -> list[Path]:
    """Return the paths that a power loss affects. Keeps spared names."""
    return [path for path in folder.iterdir() if path.name not in SPARED]


def lay_out(data: Path, records: Path, generator: random.Random | None) -> None:
    """Replace the contents of `data` by those after a power loss."""
    ids = itertools.count(1)
    events = list(_creation_events(records / BEFORE, data, ids))
    names = {event.path: event.inode for event in events if event.type in (CREATE, MKDIR)}
    for record in sorted(records.glob("[0-9]*")):
        events += joined(read_record(record), names, ids)
    left = records / "left"
    PowerCut(events, data).write_to(left, generator)
    for path in _unspared(data):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in _unspared(left):
        shutil.move(path, data / path.name)


def _creation_events(folder: Path, data: Path, ids):
    """Return synced events that would create a folder's contents in `data`."""
    for path in sorted(folder.rglob("*")):
        kind = MKDIR if path.is_dir() else CREATE
        event = Event(0, next(ids), 0, 0, 0, kind, 0, str(data / path.relative_to(folder)), b"")
        yield event
        if kind == CREATE and (content := path.read_bytes()):
            yield replace(event, type=WRITE, size=len(content), data=content)
    for kind in (SYNC_BEGIN, SYNC_END):
        yield Event(0, 0, 0, 0, 0, kind, WHOLE, "", b"")


def joined(events: list[Event], names: dict[str, int], ids) -> list[Event]:
    """Return one run's events with the file ids of earlier runs where a file is the same.

    names: path -> id of the files before the run; updated to those after it. ids: generates new
    ids. Each process numbers its files from 1, starting with the first event of each.
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


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]), Path(sys.argv[2]),
            random.Random(int(sys.argv[3])) if sys.argv[3] else None)
