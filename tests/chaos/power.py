"""A machine's disk that a loss of power leaves, over several runs of its broker.

Owns: the record of each run (tests.durability.shim.c), and what was on the disk before the first.
Invariants: (1) a run that was killed leaves its unsynced writes to the runs after it, and they are
  lost with theirs; (2) what is below a name in `spared` is left as it is.
Model: tests.durability.disk.
"""

import itertools
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.brokers import REPOSITORY
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

SPARED = {"etcd"}


BEFORE = "before"       # What was on the disk before the first run, among the records.


class Disk:
    """data: the folder that it holds. records: a folder for the records, elsewhere."""

    def __init__(self, data: Path, records: Path):
        self.data = data
        self._records = records
        self._names = itertools.count()
        records.mkdir(parents=True)
        self.synced()

    def next_record(self) -> Path:
        """Where the next run is to be recorded."""
        return self._records / f"{next(self._names):06}"

    def synced(self) -> None:
        """All is on disk, as after an orderly stop and some time."""
        _run("rm", "-rf", *self._records.iterdir())
        (self._records / BEFORE).mkdir()
        if any(self.data.iterdir()):
            _run("cp", "-a", "-t", self._records / BEFORE, *_unspared(self.data))

    def cut(self, seed: int | None) -> None:
        """The broker is dead: what no sync covers is lost, or what chance chooses of it. In another
        process: the clients of this one are to go on."""
        _run(sys.executable, "-m", "tests.chaos.power", self.data, self._records, seed or "")
        self.synced()


def _run(*command) -> None:
    done = subprocess.run(list(map(str, command)), cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr)


def _unspared(folder: Path) -> list[Path]:
    """What is subject to a loss of power. Keeps (2)."""
    return [path for path in folder.iterdir() if path.name not in SPARED]


def lay_out(data: Path, records: Path, generator: random.Random | None) -> None:
    """Replaces what is in `data` by what a loss of power leaves of it."""
    ids = itertools.count(1)
    events = list(_found(records / BEFORE, data, ids))
    names = {event.path: event.inode for event in events if event.type in (CREATE, MKDIR)}
    for record in sorted(records.glob("[0-9]*")):
        events += joined(read_record(record), names, ids)
    left = records / "left"
    PowerCut(events, data).write_to(left, generator)
    for path in _unspared(data):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in _unspared(left):
        shutil.move(path, data / path.name)


def _found(folder: Path, data: Path, ids):
    """The events that would have made what is in a folder, had it been `data`; all is synced."""
    for path in sorted(folder.rglob("*")):
        kind = MKDIR if path.is_dir() else CREATE
        event = Event(0, next(ids), 0, 0, 0, kind, 0, str(data / path.relative_to(folder)), b"")
        yield event
        if kind == CREATE and (content := path.read_bytes()):
            yield replace(event, type=WRITE, size=len(content), data=content)
    for kind in (SYNC_BEGIN, SYNC_END):
        yield Event(0, 0, 0, 0, 0, kind, WHOLE, "", b"")


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


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]), Path(sys.argv[2]),
            random.Random(int(sys.argv[3])) if sys.argv[3] else None)
