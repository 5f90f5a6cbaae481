"""`pylog doctor`: find current and upcoming problems of this machine and the cluster.

Owns: nothing.
Invariants: every finding that is not ok has advice; a check that is impossible here is `skip`,
  never ok; the exit code is 1 if a check fails.
Source: host_checks and cluster_checks have the checks themselves.
"""

from __future__ import annotations

from typing import Any

import click

from pylog.client.errors import KafkaError
from pylog.protocol.counts import counted
from pylog.tools.cli.command import Tool
from pylog.tools.cli.output import BAD, DULL, GOOD, WARN
from pylog.tools.cli.session import Session, ToolError
from pylog.tools.cluster import cluster_checks
from pylog.tools.host import host_checks
from pylog.tools.cli.finding import FAIL, Finding

MARKS = {"ok": ("ok  ", GOOD), "warn": ("warn", WARN), "fail": ("FAIL", BAD),
         "skip": ("skip", DULL)}


@click.command(cls=Tool)
@click.option("-d", "--data-dir", "data_dirs", multiple=True, metavar="DIR",
              type=click.Path(exists=True, file_okay=False),
              help="Log directory to check; may be repeated.  [default: the broker's, if they are "
              "on this machine]")
@click.option("--local", "is_local", is_flag=True, help="Check only this machine.")
@click.pass_obj
def doctor(session: Session, data_dirs: tuple[str, ...], is_local: bool) -> None:
    """Check limits, disks, clock and memory of this machine, and the connection to every broker."""
    found: list[Finding] = [*host_checks.limits(), *host_checks.memory(), *host_checks.clock(),
                            *host_checks.encryption()]
    dirs = list(data_dirs)
    cluster: list[Finding] = []
    if not is_local:
        cluster, listed = _cluster(session)
        dirs += [path for path in listed if path not in dirs] if not data_dirs else []
    for path in dirs:
        found += host_checks.disk(path)
    if not dirs:
        found.append(Finding("disk", "", "skip", "no log directory is on this machine",
                             "name one with --data-dir"))
    _print(session, [*found, *cluster])


def _cluster(session: Session) -> tuple[list[Finding], list[str]]:
    try:
        found: tuple[list[Finding], list[str]] = session.run(
            lambda admin: cluster_checks.check_cluster(admin, session.bootstrap))
        return found
    except (ToolError, KafkaError) as error:
        return [Finding("bootstrap", session.bootstrap, FAIL, str(error),
                        "start the broker, or name it with -b HOST:PORT")], []


def _print(session: Session, found: list[Finding]) -> None:
    out = session.out
    counts = {status: sum(one.status == status for one in found) for status in MARKS}
    if out.as_json:
        rows: list[dict[str, Any]] = [one._asdict() for one in found]
        out.document({"findings": rows, **counts})
    else:
        width = max(len(one.check) for one in found)
        for one in found:
            mark, style = MARKS[one.status]
            about = f"{one.subject}: " if one.subject else ""
            out.styled(f"{mark}  {one.check:<{width}}  {about}{one.detail}", style)
            if one.advice and one.status in ("warn", "fail"):
                out.line(f"      {'':<{width}}  -> {one.advice}")
        out.line()
        out.line(", ".join(f"{count} {status}" for status, count in counts.items()))
    if counts["fail"]:
        raise ToolError(f"{counted(counts['fail'], 'check')} failed")


COMMANDS = {"doctor": doctor}
