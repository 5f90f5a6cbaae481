"""`pylog log repair`: find and repair damage in a stopped broker's log directories.

Owns: the locks of the log directories while it works.
Invariants: nothing changes without --execute, and all steps are printed first; a directory that a
  running broker uses is refused; bytes that are cut out of a log are saved next to it as
  `.corrupt`, except zeros; after a crash during repair, a start of brokerd or this command
  completes the work; a change removes the clean shutdown marker, so that brokerd and Kafka recover
  the files; a copy becomes the partition only if no directory of the broker has the original.
Source: docs/reference/file-formats.md; csrc/log_manager/swap.c for swaps, log.moves for copies.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pylog.log.checkpoint_files import CLEAN_SHUTDOWN, remove_clean_mark, sync_directory
from pylog.log.errors import StartError
from pylog.log.log_directories import LOCK
from pylog.log.log_directories import locked as _locked
from pylog.tools.cli.session import ToolError
from pylog.tools.segments.corrupt_ranges import holes_of

DIRECTORY = re.compile(r"[a-zA-Z0-9._-]{1,249}-\d+")
FUTURE = re.compile(r"(.+)\.[0-9a-f]{32}-future")
SEGMENT = re.compile(r"\d{20}\.log")
LEFT = re.compile(r"\d{20}\.[a-z]+\.(deleted|cleaned|tmp)|leader-epoch-checkpoint\.tmp"
                  r"|partition\.metadata\.tmp")
CUT, QUARANTINE, INDEX, SNAPSHOT, EPOCHS, SWAP, LEFTOVER, MOVE, COPY = (
    "cut tail", "quarantine", "rebuild index", "rebuild snapshot", "rebuild epochs", "finish swap",
    "remove leftover", "finish move", "remove copy")
# Not repaired without --quarantine, or without --all-directories.
DAMAGE, UNPROVEN = "damage in the middle", "copy without original"
LISTED_ONLY = (DAMAGE, UNPROVEN)


class Step(NamedTuple):
    """One repair step. position, bytes: in the file; offset: of the first lost record; next_offset:
    of the first record after the damage, None at the end of the log.
    """

    action: str
    path: Path
    why: str
    position: int = 0
    bytes: int = 0
    offset: int | None = None
    next_offset: int | None = None

    def row(self) -> dict[str, object]:
        return {**self._asdict(), "path": str(self.path)}


class Plan(NamedTuple):
    """folders: checked partition directories; steps: in execution order."""

    folders: list[Path]
    steps: list[Step]

    @property
    def left(self) -> list[Step]:
        """Return the damage that remains."""
        return [step for step in self.steps if step.action == DAMAGE]

    @property
    def unproven(self) -> list[Step]:
        """Return the copies whose original may be in a directory that was not given."""
        return [step for step in self.steps if step.action == UNPROVEN]


def folders_of(paths: tuple[str, ...]) -> tuple[list[Path], list[Path]]:
    """Return (log directories, partition directories) below a path. Raises ToolError."""
    roots: list[Path] = []
    folders: list[Path] = []
    for text in paths:
        path = Path(text).absolute()
        if not path.is_dir():
            raise ToolError(f"{path}: expected a partition's directory or a log directory")
        below = [one for one in sorted(path.iterdir()) if one.is_dir()
                 and (DIRECTORY.fullmatch(one.name) or FUTURE.fullmatch(one.name))]
        if below or (path / "meta.properties").exists():
            roots.append(path)
            folders += [one for one in below if DIRECTORY.fullmatch(one.name)]
        elif DIRECTORY.fullmatch(path.name):
            folders.append(path)
        else:
            raise ToolError(f"{path}: no partitions here")
    return roots, folders


@contextmanager
def locked(directories: list[Path]) -> Iterator[None]:
    """Lock the log directories. Raises ToolError if a broker uses one."""
    held = []
    try:
        for directory in directories:
            if not (directory / LOCK).exists():
                continue
            try:
                held.append(_locked(str(directory / LOCK)))
            except StartError:
                raise ToolError(f"{directory}: a broker uses it; stop it first") from None
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)


def plan(roots: list[Path], folders: list[Path], quarantine: bool, has_all: bool = False) -> Plan:
    """Return the damage. Read-only. has_all: the roots are all log directories of the broker."""
    steps = _moves(roots, folders, has_all)
    for folder in folders:
        steps += _partition(folder, quarantine)
    return Plan(folders, steps)


def _moves(roots: list[Path], folders: list[Path], has_all: bool) -> list[Step]:
    """Find copies to another log directory that were interrupted."""
    steps = []
    names = {folder.name for folder in folders}
    for root in roots:
        for path in sorted(root.iterdir()):
            found = FUTURE.fullmatch(path.name)
            if found and found[1] in names:
                steps.append(Step(COPY, path, "an unfinished move"))
            elif found and DIRECTORY.fullmatch(found[1]):
                steps.append(Step(MOVE, path, "the only copy") if has_all else Step(
                    UNPROVEN, path, "the original may be in another log directory"))
                names.add(found[1])
    return steps


def _partition(folder: Path, quarantine: bool) -> list[Step]:
    segments = {int(path.stem): path for path in folder.iterdir() if SEGMENT.fullmatch(path.name)}
    steps = [Step(LEFTOVER, path, "of a finished or cancelled step")
             for path in sorted(folder.iterdir()) if LEFT.fullmatch(path.name)]
    for path in sorted(folder.glob("*.log.swap")):
        base = int(path.name.partition(".")[0])
        end, _ = holes_of(path, base)
        steps.append(Step(SWAP, path, f"it replaces the segments of offsets {base} to {end - 1}"))
        for replaced in [one for one in segments if base <= one < end or one == base]:
            del segments[replaced]
        segments[base] = path
    bases = sorted(segments)
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        steps += _segment(segments[base], base, following is None, quarantine)
    steps += _snapshots(folder)
    if not _epochs_parse(folder / "leader-epoch-checkpoint"):
        steps.append(Step(EPOCHS, folder / "leader-epoch-checkpoint", "it does not parse"))
    return steps


def _segment(path: Path, base: int, is_last: bool, quarantine: bool) -> list[Step]:
    _, holes = holes_of(path, base)
    steps = []
    for hole in holes:
        is_tail = is_last and hole.next_offset is None
        action = CUT if is_tail else QUARANTINE if quarantine else DAMAGE
        steps.append(Step(action, path, hole.why, hole.position, hole.end - hole.position,
                          hole.offset, hole.next_offset))
    if path.suffix == ".swap":
        return steps
    if not holes:
        steps += [Step(INDEX, file, why) for file, why in _index_faults(path, is_last)]
    return steps


def _index_faults(path: Path, is_last: bool) -> Iterator[tuple[Path, str]]:
    from pylog.tools.segments.segment_file import Segment

    with Segment(path) as segment:
        if not segment.size:
            return
        for suffix in (".index", ".timeindex"):
            file = path.with_suffix(suffix)
            if not file.exists():
                # The last segment has no index until the first entry.
                if not is_last:
                    yield file, "it is missing"
                continue
            faults = segment.index_faults(suffix)
            if faults:
                yield file, faults[0]


def _snapshots(folder: Path) -> list[Step]:
    from pylog._native.records.batch import crc32c

    steps = []
    for path in sorted(folder.glob("*.snapshot")):
        data = path.read_bytes()
        # Version, CRC of the remaining bytes, count.
        if len(data) < 10 or int.from_bytes(data[2:6], "big") != crc32c(data[6:]):
            steps.append(Step(SNAPSHOT, path, "its checksum differs"))
    return steps


def _epochs_parse(path: Path) -> bool:
    try:
        version, count, *lines = path.read_text(encoding="ascii").splitlines()
        rows = [tuple(map(int, line.split(" "))) for line in lines]
        return version == "0" and int(count) == len(rows) and all(len(row) == 2 for row in rows)
    except FileNotFoundError:
        return True
    except ValueError:
        return False


# ---- execution -------------------------------------------------------------------------------


def execute(wanted: Plan) -> None:
    """Execute the steps; idempotent after an interruption. Raises OSError, LogError."""
    touched = [step for step in wanted.steps if step.action not in LISTED_ONLY]
    for directory in {step.path.parent if step.action in (MOVE, COPY) else step.path.parent.parent
                      for step in touched}:
        if (directory / CLEAN_SHUTDOWN).exists():
            remove_clean_mark(str(directory))
    renamed = set()
    for step in touched:
        if step.action == MOVE:
            whole = step.path.with_name(FUTURE.sub(r"\1", step.path.name))
            os.rename(step.path, whole)
            sync_directory(str(whole.parent))
            renamed.add(whole)
        elif step.action == COPY:
            shutil.rmtree(step.path)
        elif step.action in (INDEX, SNAPSHOT, EPOCHS, LEFTOVER):
            step.path.unlink(missing_ok=True)
    for path in {step.path for step in touched if step.action in (CUT, QUARANTINE)}:
        _remove_ranges(path, [step for step in touched
                              if step.path == path and step.action in (CUT, QUARANTINE)])
    for folder in sorted({step.path.parent for step in touched
                          if step.action not in (MOVE, COPY)} | renamed):
        _derive(folder)


def _remove_ranges(path: Path, steps: list[Step]) -> None:
    """Save the corrupt bytes next to the segment, and replace the segment by the rest."""
    data = path.read_bytes()
    base = path.name.partition(".")[0]
    for step in steps:
        bad = data[step.position:step.position + step.bytes]
        if any(bad):
            aside = path.with_name(f"{base}.log.{step.position}.corrupt")
            number = 1
            while aside.exists() and aside.read_bytes() != bad:
                number += 1
                aside = path.with_name(f"{base}.log.{step.position}-{number}.corrupt")
            _write(aside, [bad])
    for suffix in (".index", ".timeindex"):
        path.with_name(base + suffix).unlink(missing_ok=True)
    # A segment that is shared with a branch must not be truncated in place.
    if [step.action for step in steps] == [CUT] and path.stat().st_nlink == 1:
        with open(path, "r+b") as file:
            file.truncate(steps[0].position)
            os.fsync(file.fileno())
    else:
        good, at = [], 0
        for step in steps:
            good.append(data[at:step.position])
            at = step.position + step.bytes
        scratch = path.with_name(f"{base}.log.cleaned")
        _write(scratch, [*good, data[at:]])
        os.replace(scratch, path)
    sync_directory(str(path.parent))


def _write(path: Path, parts: list[bytes]) -> None:
    with open(path, "wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def _derive(folder: Path) -> None:
    """Rebuild everything that is derived from the log's batches, as a start of brokerd does."""
    from pylog._native.log.log import Log, LogDir
    from pylog.log.partition_logs import topic_id_in

    topic, _, partition = folder.name.rpartition("-")
    topic_id = topic_id_in(str(folder))
    found = sorted(int(path.name[:20]) for path in folder.iterdir()
                   if re.fullmatch(r"\d{20}\.log(\.swap)?", path.name))
    end = 0
    for base in found:
        path = folder / f"{base:020d}.log"
        end = max(end, holes_of(path if path.exists() else path.with_suffix(".log.swap"), base)[0])
    # Accept all remaining files: the corrupt parts are already cut.
    one = Log.open(LogDir(folder.parent), topic, int(partition), topic_id or bytes(16),
                   {"cleanup.policy": ("compact",)}, recovery_point=end,
                   log_start_offset=_start_of(folder))
    one.close()
    if topic_id is None:
        # The topic id is unknown here; brokerd writes it.
        (folder / "partition.metadata").unlink(missing_ok=True)


def _start_of(folder: Path) -> int:
    """Return the partition's log start in Kafka's file, -1 without a row.

    Leaves a damaged file to the next start of brokerd, which renames and reports it: this command
    changes nothing that it has not printed. state.lmdb has the log start too.
    """
    from pylog.log.checkpoint_files import LOG_START, DamagedError, parse_offsets

    topic, _, partition = folder.name.rpartition("-")
    try:
        rows = parse_offsets(str(folder.parent / LOG_START))
    except DamagedError:
        return -1
    return int(rows.get((topic, int(partition)), -1))
