"""The disk that a power cut leaves, rebuilt from what a process asked of its file system.

Owns: the compiled shim (shim.c) and the reading of its record.
Called by: test_power_cut.py and the tests of failing disks.
Model: data written to a file is safe once a sync of that file began after the write and ended
  before the cut; of the rest any subset may be there, the last one torn at 512 bytes. Names are
  safe once their directory was synced; of later changes in one directory a prefix is there.
"""

import os
import random
import struct
import subprocess
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path

EVENT = struct.Struct("<QQQqqIIII")
WRITE, TRUNCATE, ALLOCATE, SYNC_BEGIN, SYNC_END, CREATE, RENAME, UNLINK, MKDIR, MAP = range(1, 11)
DSYNC, DIRECTORY = 1, 2
SECTOR = 512


@dataclass(frozen=True)
class Event:
    time_ns: int
    inode: int
    token: int
    position: int
    size: int
    type: int
    flags: int
    path: str
    data: bytes


def shim(folder: Path) -> Path:
    """Compile shim.c into `folder`; the library to preload."""
    library = folder / "shim.so"
    compiler = os.environ.get("CC", "cc").split()
    subprocess.run([*compiler, "-std=gnu11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra",
                    "-Werror", "-o", str(library), str(Path(__file__).with_name("shim.c")),
                    "-ldl", "-pthread"], check=True)
    return library


def environment(library: Path, root: Path, record: Path | None = None,
                faults: Path | None = None) -> dict[str, str]:
    """What a child needs in its environment to be recorded below `root`, and to be failed."""
    variables = {"LD_PRELOAD": str(library), "SHIM_ROOT": str(root)}
    if record is not None:
        variables["SHIM_RECORD"] = str(record)
    if faults is not None:
        variables["SHIM_FAULTS"] = str(faults)
    return variables


def read_record(path: Path) -> list[Event]:
    """All whole events of a record; one that a kill cut short is left out."""
    data = path.read_bytes()
    events, at = [], 0
    while at + EVENT.size <= len(data):
        (time_ns, inode, token, position, size, path_len, data_len, kind,
         flags) = EVENT.unpack_from(data, at)
        end = at + EVENT.size + path_len + data_len
        if end > len(data):
            break
        name = data[at + EVENT.size:at + EVENT.size + path_len].decode()
        events.append(Event(time_ns, inode, token, position, size, kind, flags, name,
                            data[end - data_len:end]))
        at = end
    return events


@dataclass
class _File:
    operations: list[tuple[int, Event]] = field(default_factory=list)
    safe_until: int = -1


class PowerCut:
    """The disk after the first `count` events, with nothing or some of what was not synced."""

    def __init__(self, events: list[Event], root: Path, count: int | None = None):
        self.root = str(root)
        self.events = events[:len(events) if count is None else count]
        self.files: dict[int, _File] = {}
        self.names: dict[str, list[tuple[int, Event]]] = {}
        self.safe_names: dict[str, int] = {}
        begun: dict[int, int] = {}
        for number, event in enumerate(self.events):
            if event.type in (WRITE, TRUNCATE, ALLOCATE):
                self._file(event.inode).operations.append((number, event))
            elif event.type == CREATE:
                if not self._exists(event):
                    self.files[event.inode] = _File()
                elif event.size == 0:
                    self._file(event.inode).operations.append((number, event))
                self._named(event.path, number, event)
            elif event.type in (UNLINK, MKDIR):
                self._named(event.path, number, event)
            elif event.type == RENAME:
                self._named(event.path, number, event)
            elif event.type == SYNC_BEGIN:
                begun[event.token] = number
            elif event.type == SYNC_END:
                self._synced(event, begun[event.token])

    def _file(self, inode: int) -> _File:
        return self.files.setdefault(inode, _File())

    def _exists(self, event: Event) -> bool:
        """Whether a CREATE opened a file that already had this name and inode."""
        folder = os.path.dirname(event.path)
        current: dict[str, int] = {}
        for _, change in self.names.get(folder, []):
            _apply_name(current, change)
        return current.get(event.path) == event.inode

    def _named(self, path: str, number: int, event: Event) -> None:
        self.names.setdefault(os.path.dirname(path), []).append((number, event))

    def _synced(self, event: Event, begin: int) -> None:
        if event.flags & DIRECTORY:
            self.safe_names[event.path] = max(begin, self.safe_names.get(event.path, -1))
        else:
            file = self._file(event.inode)
            file.safe_until = max(file.safe_until, begin)

    def write_to(self, goal: Path, generator: random.Random | None = None) -> None:
        """Lay the disk out below `goal`; without a generator only what was synced is there."""
        entries: dict[str, int] = {}
        folders = {self.root}
        for folder in sorted(self.names):
            for event in self._kept_names(folder, generator):
                _apply_name(entries, event)
                if event.type == MKDIR:
                    folders.add(event.path)
                elif event.type == RENAME:
                    self._move_folder(entries, folders, event)
                elif event.type == UNLINK:
                    folders.discard(event.path)
        for folder in sorted(folders):
            if folder == self.root or os.path.dirname(folder) in folders:
                (goal / os.path.relpath(folder, self.root)).mkdir(parents=True, exist_ok=True)
        for path, inode in sorted(entries.items()):
            if os.path.dirname(path) in folders and path not in folders:
                target = goal / os.path.relpath(path, self.root)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self._content(inode, generator))

    def _kept_names(self, folder: str, generator) -> list[Event]:
        changes = self.names[folder]
        safe = bisect_right([number for number, _ in changes],
                            self.safe_names.get(folder, -1))
        count = safe if generator is None else generator.randint(safe, len(changes))
        return [event for _, event in changes[:count]]

    def _move_folder(self, entries: dict[str, int], folders: set[str], event: Event) -> None:
        source = event.data.decode()
        if source not in folders:
            return
        folders.discard(source)
        folders.add(event.path)
        for path in [path for path in entries if path.startswith(source + "/")]:
            entries[event.path + path[len(source):]] = entries.pop(path)

    def _content(self, inode: int, generator) -> bytes:
        file = self.files.get(inode, _File())
        out = bytearray()
        last = file.operations[-1][0] if file.operations else -1
        for number, event in file.operations:
            safe = number < file.safe_until or event.flags & DSYNC
            data = event.data
            if not safe:
                if generator is None or generator.random() < 0.5:
                    continue
                if number == last and event.type == WRITE:
                    data = data[:generator.randrange(0, len(data) + 1) // SECTOR * SECTOR]
            _apply_data(out, event, data)
        return bytes(out)


def _apply_name(entries: dict[str, int], event: Event) -> None:
    if event.type in (CREATE, MKDIR):
        entries[event.path] = event.inode
    elif event.type == UNLINK:
        entries.pop(event.path, None)
    elif event.type == RENAME:
        entries.pop(event.data.decode(), None)
        entries[event.path] = event.inode


def _apply_data(out: bytearray, event: Event, data: bytes) -> None:
    if event.type == WRITE:
        if len(out) < event.position + len(data):
            out.extend(bytes(event.position + len(data) - len(out)))
        out[event.position:event.position + len(data)] = data
    elif event.type == TRUNCATE:
        del out[event.size:]
        out.extend(bytes(event.size - len(out)))
    elif event.type == ALLOCATE:
        out.extend(bytes(max(0, event.position + event.size - len(out))))
    elif event.type == CREATE:
        out.clear()
