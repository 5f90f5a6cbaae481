"""Report waits for a broker's own locks: reads the counters of csrc/preload/waits.c.

Owns: the file in which a broker's library counts.
Invariants: counts before a measurement are excluded; a call site is named after the outermost
  function of the source line, lock.h's own excluded.
Source: proc(5) for maps; addr2line(1) for names.
"""

import os
import shutil
import struct
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.process import BrokerProcess
from bench.programs import preload_library

SITES_MAX = 4096
SITE = struct.Struct("<5Q")


@dataclass(frozen=True)
class Place:
    """Counters of one call site: acquisitions, contended acquisitions, seconds."""

    locked: int
    contended: int
    waited_s: float
    held_s: float


class Counters:
    """Counters of one broker that is started within `begun()`."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "waits"
        self.file.write_bytes(bytes(SITE.size * SITES_MAX))
        self._before: dict[int, tuple] = {}

    @contextmanager
    def begun(self):
        own = {"LD_PRELOAD": preload_library("waits"), "WAITS_FILE": str(self.file)}
        before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def reset(self) -> None:
        """Exclude all counts up to now."""
        self._before = self._read()

    def places(self, broker: BrokerProcess) -> dict[str, Place]:
        """Return counters by function since reset()."""
        sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        now = self._read()
        names = named(broker.pid, list(now))
        for address, counts in now.items():
            before = self._before.get(address, (0, 0, 0, 0))
            for at, count in enumerate(counts):
                sums[names[address]][at] += count - before[at]
        return {name: Place(locked, contended, waited / 1e9, held / 1e9)
                for name, (locked, contended, waited, held) in sums.items() if locked}

    def _read(self) -> dict[int, tuple]:
        rows = SITE.iter_unpack(self.file.read_bytes())
        return {address: counts for address, *counts in rows if address}


def named(pid: int, addresses: list[int]) -> dict[int, str]:
    """Return the function name of each address of the process."""
    maps = [(int(begin, 16), int(end, 16), int(offset, 16), path)
            for begin, end, offset, path in _maps(pid)]
    by_file: dict[str, list[tuple[int, int]]] = defaultdict(list)
    found: dict[int, str] = {}
    for address in addresses:
        found[address] = "elsewhere"
        for begin, end, offset, path in maps:
            if begin <= address < end and path.startswith("/"):
                found[address] = Path(path).name
                by_file[path].append((address, address - begin + offset - 1))
    if shutil.which("addr2line") is None:
        return found
    for path, pairs in by_file.items():
        done = subprocess.run(
            ["addr2line", "-a", "-i", "-f", "-e", path, *(hex(at) for _, at in pairs)],
            capture_output=True, text=True, check=True)
        for (address, _), text in zip(pairs, done.stdout.split("\n0x"), strict=False):
            found[address] = outermost(text) or found[address]
    return found


def _maps(pid: int):
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and "x" in fields[1]:
            begin, end = fields[0].split("-")
            yield begin, end, fields[2], fields[5]


def outermost(text: str) -> str:
    """Return the outermost function of one address in addr2line's output: the address, then
    functions and lines in turn, innermost first.
    """
    functions = [line for line in text.splitlines()[1::2] if line != "??"]
    return functions[-1] if functions else ""


def per_request(places: Mapping[str, Place], name: str, requests: int) -> tuple[float, float]:
    """Return microseconds per request of holding a lock, and of waiting for it."""
    place = places.get(name, Place(0, 0, 0.0, 0.0))
    return place.held_s / requests * 1e6, place.waited_s / requests * 1e6
