"""`pylog produce` and `pylog consume` compared with kcat: CPU seconds of the whole process.

    python -m bench.tools                       1,000,000 records of 100 B, three rounds
    python -m bench.tools --records 5000000 --rounds 1

Owns: a separate brokerd, with its data and the lines to send in a temporary directory.
Invariants: both sides send the same file to topics with the same settings and read the same topic;
  they alternate, also in the order of a round; a value is the minimum of its rounds, because
  interference only adds; all sent records are readable before the read starts.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.brokers import CHECKOUT, PylogBroker
from bench.client.__main__ import values
from bench.machine import commit_line, machine_line

PARTITIONS = 3
DISTINCT = 10_000
PYLOG = [sys.executable, "-c", "import sys; from pylog.cli import pylog; sys.exit(pylog())"]


def main(argv: list[str] | None = None) -> int:
    given = arguments().parse_args(argv)
    if shutil.which("kcat") is None:
        raise SystemExit("kcat is missing (Debian: kcat)")
    print(f"{machine_line()}, commit {commit_line()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "lines"
        write_lines(source, given.records, given.size)
        with PylogBroker(Path(folder) / "data") as broker:
            figures = measure(broker.bootstrap, source, given)
    for work, row in figures.items():
        ours, theirs = row["pylog"] / given.records * 1e6, row["kcat"] / given.records * 1e6
        print(f"{work:<22} pylog {ours:5.2f}  kcat {theirs:5.2f}  CPU s per million"
              f"  ({ours / theirs:.2f} times)")
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.tools")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--rounds", type=int, default=3)
    return parser


def write_lines(path: Path, count: int, size: int) -> None:
    distinct = [line + b"\n" for line in values(DISTINCT, size, random.Random(size))]
    with open(path, "wb") as file:
        for done in range(0, count, DISTINCT):
            file.writelines(distinct[:count - done])


def works(bootstrap: str, topic: str) -> dict[str, dict[str, list[str]]]:
    """Return the commands by operation and side."""
    ours, theirs = [*PYLOG, "-b", bootstrap], ["kcat", "-q", "-b", bootstrap, "-t", topic]
    return {
        "start, nothing to do": {"pylog": [*PYLOG, "version"], "kcat": ["kcat", "-V"]},
        "produce lines": {"pylog": [*ours, "produce", topic], "kcat": [*theirs, "-P"]},
        "consume raw": {"pylog": [*ours, "consume", "all"],
                        "kcat": ["kcat", "-q", "-b", bootstrap, "-t", "all", "-C", "-e"]},
        "consume as JSON": {"pylog": [*ours, "consume", "all", "--json"],
                            "kcat": ["kcat", "-q", "-b", bootstrap, "-t", "all", "-C", "-e", "-J"]},
    }


def measure(bootstrap: str, source: Path, given: argparse.Namespace
            ) -> dict[str, dict[str, float]]:
    """Return {operation: {side: CPU seconds}}."""
    found: dict[str, dict[str, float]] = {}
    made("all", bootstrap)
    with open(source, "rb") as lines:
        spent([*PYLOG, "-b", bootstrap, "produce", "all"], lines, 0)
    for number in range(given.rounds):
        for what in works(bootstrap, ""):
            for who in ("pylog", "kcat") if number % 2 else ("kcat", "pylog"):
                topic = f"{who}-{number}"
                if what == "produce lines":
                    made(topic, bootstrap)
                count = given.records if what.startswith("consume") else 0
                with open(source, "rb") as lines:
                    cpu_s = spent(works(bootstrap, topic)[what][who], lines, count)
                row = found.setdefault(what, {})
                row[who] = min(cpu_s, row.get(who, cpu_s))
    return found


def made(topic: str, bootstrap: str) -> None:
    subprocess.run([*PYLOG, "-b", bootstrap, "topics", "create", topic, "--partitions",
                    str(PARTITIONS)], check=True, cwd=CHECKOUT, stdout=subprocess.DEVNULL)


def spent(command: list[str], lines: object, count: int) -> float:
    """Return CPU seconds of a process. It must print `count` lines, unless `count` is 0."""
    counter = subprocess.Popen(["wc", "-l"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process = subprocess.Popen(command, cwd=CHECKOUT, stdin=lines, stdout=counter.stdin,
                               stderr=subprocess.PIPE)
    counter.stdin.close()
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    with counter.stdout:
        printed = int(counter.stdout.read())
    counter.wait()
    if process.returncode or count and printed != count:
        raise SystemExit(f"{' '.join(command)}: exit {process.returncode}, {printed} lines, "
                         f"{said.decode()}")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
