"""The disk after a power cut, rebuilt from the recorded file system calls of a process.

Owns: the compiled shim (shim.c), the parser of its record.
Model: file data is safe once a sync of the file began after the write and ended before the cut. Of
  other writes any subset may survive, the last one torn at 512 bytes. Names are safe once their
  directory was synced; of later changes in one directory a prefix survives.
"""

import os
import random
import struct
import subprocess
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.fixtures.child_environment import ENVIRONMENT

EVENT = struct.Struct("<QQQqqIIII")
WRITE, TRUNCATE, ALLOCATE, SYNC_BEGIN, SYNC_END, CREATE, RENAME, UNLINK, MKDIR, MAP = range(1, 11)
DSYNC, DIRECTORY, WHOLE = 1, 2, 4
SECTOR = 512
ROOT = 0
CSRC = Path(__file__).resolve().parents[2] / "csrc"


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
    """Compile shim.c into `folder` and return the library to preload."""
    library = folder / "shim.so"
    compiler = os.environ.get("CC", "cc").split()
    subprocess.run([*compiler, "-std=gnu11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra",
                    "-Werror", "-Wl,-Bsymbolic-functions", f"-I{CSRC}", "-o", str(library),
                    str(Path(__file__).with_name("shim.c")), "-ldl", "-pthread"], check=True,
                   env=ENVIRONMENT)
    return library


def environment(library: Path, root: Path, record: Path | None = None,
                faults: Path | None = None) -> dict[str, str]:
    """Return a child's environment that records calls below `root` and can inject failures."""
    # A preloaded sanitizer must stay first.
    preload = f"{os.environ.get('LD_PRELOAD', '')} {library}".strip()
    variables = {"LD_PRELOAD": preload, "SHIM_ROOT": str(root)}
    if record is not None:
        variables["SHIM_RECORD"] = str(record)
    if faults is not None:
        variables["SHIM_FAULTS"] = str(faults)
    return variables


def read_record(path: Path) -> list[Event]:
    """Return all complete events of a record; a kill may cut off the last one."""
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


@dataclass
class _Folder:
    """A directory. changes: (event number, removed name or None, added name or None, its id)."""

    changes: list[tuple[int, str | None, str | None, int]] = field(default_factory=list)
    safe_until: int = -1


class PowerCut:
    """The disk after the first `count` events, without the unsynced changes or with some of them.
    """

    def __init__(self, events: list[Event], root: Path, count: int | None = None):
        self.root = str(root)
        self.events = events[:len(events) if count is None else count]
        self.files: dict[int, _File] = {}
        self.folders: dict[int, _Folder] = {ROOT: _Folder()}
        self.all_safe_until = -1
        self._known: dict[str, int] = {self.root: ROOT}  # path -> id after the last event
        begun: dict[int, int] = {}
        for number, event in enumerate(self.events):
            if event.type in (WRITE, TRUNCATE, ALLOCATE):
                self._file(event.inode).operations.append((number, event))
            elif event.type in (CREATE, MKDIR):
                self._made(number, event)
            elif event.type == UNLINK:
                self._renamed(number, event.path, None)
            elif event.type == RENAME:
                self._renamed(number, event.data.decode(), event.path)
            elif event.type == SYNC_BEGIN:
                begun[event.token] = number
            elif event.type == SYNC_END:
                self._synced(event, begun[event.token])

    def _file(self, inode: int) -> _File:
        return self.files.setdefault(inode, _File())

    def _change(self, number: int, path: str, gone: str | None, came: str | None, id_: int) -> None:
        folder = self._known.get(os.path.dirname(path))
        if folder is not None:
            self.folders[folder].changes.append((number, gone, came, id_))

    def _made(self, number: int, event: Event) -> None:
        if self._known.get(event.path) == event.inode:
            # Opened with O_CREAT, possibly O_TRUNC.
            if event.type == CREATE and event.size == 0:
                self._file(event.inode).operations.append((number, event))
            return
        if event.type == CREATE:
            self.files[event.inode] = _File()
        else:
            self.folders[event.inode] = _Folder()
        self._known[event.path] = event.inode
        self._change(number, event.path, None, os.path.basename(event.path), event.inode)

    def _renamed(self, number: int, source: str, goal: str | None) -> None:
        id_ = self._known.pop(source, None)
        if id_ is None:
            return
        if goal is None:
            self._change(number, source, os.path.basename(source), None, id_)
            return
        if id_ in self.folders:
            for path in [path for path in self._known if path.startswith(source + "/")]:
                self._known[goal + path[len(source):]] = self._known.pop(path)
        self._known[goal] = id_
        if os.path.dirname(source) == os.path.dirname(goal):
            self._change(number, goal, os.path.basename(source), os.path.basename(goal), id_)
        else:
            self._change(number, goal, None, os.path.basename(goal), id_)
            self._change(number, source, os.path.basename(source), None, id_)

    def _synced(self, event: Event, begin: int) -> None:
        if event.flags & WHOLE:
            self.all_safe_until = max(begin, self.all_safe_until)
            return
        one = self.folders.get(self._known.get(event.path, -1)) if event.flags & DIRECTORY \
            else self._file(event.inode)
        if one is not None:
            one.safe_until = max(begin, one.safe_until)

    def write_to(self, goal: Path, generator: random.Random | None = None) -> None:
        """Write the disk's contents below `goal`: synced data, and a random part of the rest.

        Without a generator, only synced data.
        """
        self._lay_out(ROOT, goal, generator)

    def _lay_out(self, folder: int, goal: Path, generator) -> None:
        goal.mkdir(parents=True, exist_ok=True)
        for name, id_ in sorted(self._entries(self.folders[folder], generator).items()):
            if id_ in self.folders:
                self._lay_out(id_, goal / name, generator)
            else:
                (goal / name).write_bytes(self._content(id_, generator))

    def _entries(self, folder: _Folder, generator) -> dict[str, int]:
        """Return a directory's entries: a prefix of the unsynced changes took effect."""
        safe = bisect_right([change[0] for change in folder.changes],
                            max(folder.safe_until, self.all_safe_until))
        count = safe if generator is None else generator.randint(safe, len(folder.changes))
        entries: dict[str, int] = {}
        for _, gone, came, id_ in folder.changes[:count]:
            if gone is not None:
                entries.pop(gone, None)
            if came is not None:
                entries[came] = id_
        return entries

    def _content(self, inode: int, generator) -> bytes:
        file = self.files.get(inode, _File())
        out = bytearray()
        safe_until = max(file.safe_until, self.all_safe_until)
        for number, event in file.operations:
            if number < safe_until or event.flags & DSYNC:
                _apply_data(out, event, event.data)
            elif generator is not None and generator.random() < 0.5:
                _apply_some(out, event, generator)
        return bytes(out)


def _apply_some(out: bytearray, event: Event, generator) -> None:
    """Apply an unsynced operation: completely, or for a write its first or any of its sectors."""
    choice = generator.random() if event.type == WRITE else 0
    if choice < 0.5:
        _apply_data(out, event, event.data)
        return
    if choice < 0.8:
        kept = [(event.position, event.data[:generator.randrange(len(event.data) + 1)])]
    else:
        kept = [(at, part) for at, part in _sectors(event) if generator.random() < 0.5]
    for at, part in kept:
        if part:
            _apply_data(out, replace(event, position=at), part)


def _sectors(event: Event):
    """Yield (position, bytes) for each disk sector of a write."""
    at, end = event.position, event.position + len(event.data)
    while at < end:
        until = min(end, (at // SECTOR + 1) * SECTOR)
        yield at, event.data[at - event.position:until - event.position]
        at = until


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
