"""`pylog log`: verify, print and repair segment files of Kafka or brokerd, without a broker.

Owns: nothing; files are opened for reading only, except by repair.
Invariants: only repair with --execute writes; a directory of a running broker can be read: an
  unfinished batch and preallocated zeros are reported, but are no damage; the exit code is 1 if
  damage was found.
Source: docs/reference/file-formats.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pylog.protocol.counts import counted
from pylog.tools.cli import time_arguments
from pylog.tools.cli.command import Local, Tools
from pylog.tools.cli.output import size
from pylog.tools.cli.session import Session, ToolError
from pylog.tools.records import internal_topics
from pylog.tools.segments.segment_file import Segment, Verdict

VERDICTS = {"path": "SEGMENT", "batches": "BATCHES", "records": "RECORDS", "bytes": ("SIZE", size),
            "first_offset": "FIRST", "last_offset": "LAST", "status": "STATUS"}
STEPS = {"action": "ACTION", "file": "FILE", "position": "POSITION", "bytes": "BYTES",
         "offset": "OFFSET", "next_offset": "GOES ON AT", "why": "WHY"}
CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
PATHS = click.argument("paths", nargs=-1, required=True, metavar="PATH...",
                       type=click.Path(exists=True))


class LogTools(Tools):
    command_class = Local


@click.group("log", cls=LogTools)
def log() -> None:
    """Verify, print and repair segment files, without a broker.

    PATH is a segment (.log), a partition's directory, or a whole log directory. Verify and dump
    only read, so you can use them on a running broker's files.
    """


def segment_paths(paths: tuple[str, ...]) -> list[Path]:
    """Return the .log files below a path, each directory's by offset. Raises ToolError."""
    found: list[Path] = []
    for text in paths:
        path = Path(text)
        if path.is_file():
            if path.suffix not in (".log", ".corrupt"):
                raise ToolError(f"{path}: expected a .log or .corrupt file, or a directory")
            found.append(path)
            continue
        below = sorted(one for one in path.rglob("*.log") if one.stem.isdigit())
        found += below
    if not found:
        raise ToolError(f"no segments below {', '.join(paths)}")
    return found


def _short(path: Path) -> str:
    return str(Path(path.parent.name) / path.name)


@log.command()
@PATHS
@click.option("--headers-only", is_flag=True,
              help="Check only the CRC of batches, not the records.")
@click.option("-q", "--quiet", is_flag=True, help="Print only segments with damage.")
@click.pass_obj
def verify(session: Session, paths: tuple[str, ...], headers_only: bool, quiet: bool) -> None:
    """Check batches (CRC, offsets, records) and indexes."""
    files = segment_paths(paths)
    total = sum(path.stat().st_size for path in files)
    found = []
    with session.out.progress("verify", total, "bytes") as done:
        for number, path in enumerate(files):
            following = files[number + 1] if number + 1 < len(files) else None
            if following is not None and following.parent != path.parent:
                following = None
            with Segment(path) as segment:
                found.append(segment.verify(not headers_only, done,
                                            int(following.stem) if following else None))
    bad = [row for row in found if row.faults]
    rows = [_row(row) for row in (bad if quiet else found)]
    session.out.rows(rows, VERDICTS, empty="no damage")
    for row in bad:
        for fault in row.faults:
            session.out.note(f"pylog: {row.path}: {fault}")
    if bad:
        raise ToolError(f"damaged: {len(bad)} of {counted(len(found), 'segment')}")
    batches, records = (sum(getattr(row, name) for row in found) for name in ("batches", "records"))
    if not quiet:
        cut = sum(any("cut short" in text for text in row.remarks) for row in found)
        session.out.line(
            f"{counted(len(found), 'segment')}, {counted(batches, 'batch', 'batches')}, "
            f"{counted(records, 'record')}: no damage"
            + (f"; {counted(cut, 'ends', 'end')} in a batch cut short, as after a kill"
               if cut else ""))


def _row(verdict: Verdict) -> dict[str, Any]:
    status = f"{len(verdict.faults)} faults" if verdict.faults else "; ".join(
        ["ok", *verdict.remarks])
    return {"path": _short(verdict.path), "file": str(verdict.path), "batches": verdict.batches,
            "records": verdict.records, "bytes": verdict.bytes,
            "first_offset": verdict.first_offset, "last_offset": verdict.last_offset,
            "max_timestamp": verdict.max_timestamp, "faults": verdict.faults,
            "remarks": verdict.remarks, "status": status}


@log.command()
@PATHS
@click.option("-r", "--records", "is_deep", is_flag=True, help="Print records instead of batches.")
@click.option("--from", "from_offset", type=int, default=0, help="Start at an offset.")
@click.option("-n", "--count", type=click.IntRange(min=1), help="Maximum number of lines.")
@click.option("--index", "is_index", is_flag=True,
              help="Print the entries of both indexes instead.")
@click.option("--decode/--raw", default=None,
              help="Decode keys and values of internal topics.  [default: decode]")
@click.pass_obj
def dump(session: Session, paths: tuple[str, ...], is_deep: bool, from_offset: int,
         count: int | None, is_index: bool, decode: bool | None) -> None:
    """Print batches, records or index entries, with --json one line each.

    Skips damaged parts; the exit code is 1 then. Prints the records of a batch with a wrong CRC if
    they can be decoded: one of them can have a wrong key or value. PATH can also be a .corrupt file
    of `pylog log repair`.
    """
    left = count if count is not None else -1
    damaged: list[ToolError] = []
    for path in segment_paths(paths):
        if not session.out.as_json:
            session.out.title(_short(path))
        with Segment(path) as segment:
            reader = internal_topics.reader(path.parent.name) if decode is not False else None
            rows = (segment.index_entries() if is_index else segment.records(from_offset, reader)
                    if is_deep else segment.batches(from_offset))
            try:
                for row in rows:
                    if left == 0:
                        return
                    left -= 1
                    _print(session, row)
            except ToolError as error:
                damaged.append(error)
    if damaged:
        raise damaged[0]


def _print(session: Session, row: dict[str, Any]) -> None:
    if session.out.as_json:
        session.out.json_line(row)
        return
    shown = dict(row)
    if "codec" in shown:
        shown["codec"] = CODECS.get(shown["codec"], shown["codec"])
    for key in ("timestamp", "base_timestamp", "max_timestamp"):
        if key in shown:
            shown[key] = time_arguments.shown(shown[key])
    if shown.get("producer_id") == -1:
        for key in ("producer_id", "producer_epoch", "base_sequence"):
            shown.pop(key, None)
    session.out.line("  ".join(f"{key}={_text(value)}" for key, value in shown.items()
                               if value is not None and value is not False and value != []))


def _text(value: Any) -> str:
    if isinstance(value, (dict, list)):
        import json

        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


@log.command()
@PATHS
@click.option("--execute", is_flag=True, help="Repair; without this option, only show the damage.")
@click.option("--quarantine", is_flag=True,
              help="Also move damage between valid batches into .corrupt files.")
@click.option("--all-directories", "has_all", is_flag=True,
              help="The paths are all log directories of the broker: finish a move whose original "
              "is in none of them.")
@click.pass_obj
def repair(session: Session, paths: tuple[str, ...], execute: bool, quarantine: bool,
           has_all: bool) -> None:
    """Show the damage in a stopped broker's directories; repair it with --execute.

    Cuts incomplete tails, rebuilds missing or wrong indexes, snapshots and epoch files, and
    finishes or undoes interrupted swaps and moves. PATH is a partition's directory or a log
    directory; pass all log directories if a broker has several, with --all-directories. Bytes that
    are cut out are saved as .corrupt files. The exit code is 1 as long as damage remains.

    A batch has one CRC for all of its records, so one damaged record costs its whole batch. Kafka's
    recovery removes that batch and everything after it; this command keeps the batches after it.
    `pylog log dump -r FILE.corrupt` prints the records that can still be decoded.
    """
    from pylog.tools.segments import repair

    roots, folders = repair.folders_of(paths)
    with repair.locked(sorted({*roots, *(folder.parent for folder in folders)})):
        wanted = repair.plan(roots, folders, quarantine, has_all)
        if execute:
            repair.execute(wanted)
    rows = [{**step.row(), "done": execute and step.action not in repair.LISTED_ONLY,
             "file": str(Path(step.path.parent.name) / step.path.name)} for step in wanted.steps]
    session.out.rows(rows, STEPS, empty="nothing to repair")
    if wanted.left:
        raise ToolError(f"{counted(len(wanted.left), 'damaged range')} before the end. Readers "
                        "skip damaged headers; a wrong CRC stops consumers that check CRCs. "
                        "--quarantine removes the damaged batches as a whole")
    if wanted.unproven:
        copies = counted(len(wanted.unproven), "copy has", "copies have")
        raise ToolError(f"{copies} no original in these directories: give all log directories of "
                        "the broker, with --all-directories")
    if wanted.steps and not execute:
        raise ToolError(f"{len(wanted.steps)} steps to do; add --execute to apply them")


COMMANDS = {"log": log}
