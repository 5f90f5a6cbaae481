"""Generate docs/reference/pylog.md: a tour and every option of the `pylog` command.

Owns: nothing; the reference is derived from the commands themselves.
Invariants: the same commands give the same bytes; the tour shows real output of its commands
  (pylog/tools/tour.txt, with address and directory replaced).
Source: tools.app.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from pylog.tools import app

TOUR = Path(__file__).parent / "tour.txt"

_INTRODUCTION = """\
# The `pylog` command

`make docs` generates the command reference at the end of this page from `pylog/tools`. To change
the text above it, edit `pylog/tools/docs.py`. The outputs are in
[tour.txt](../../pylog/tools/tour.txt).

`pylog` works with brokerd and with every cluster that speaks Kafka's protocol; its tests also run
against Apache Kafka. It needs only the address of a broker: `-b HOST:PORT`, or `PYLOG_BOOTSTRAP`,
or the default `localhost:9092`.

Client settings (TLS, SASL, ...) come from a properties file as for Java clients
(`-c client.properties`; you can share one file with Kafka's tools), or from `-X key=value`. A
**profile** is such a file with a name: `-P prod` (or `PYLOG_PROFILE=prod`) reads
`~/.config/pylog/prod.properties`. Keep secrets in another place and refer to them, as with Kafka's
config providers: `sasl.password=${env:KAFKA_PASSWORD}`,
`${file:/etc/kafka/secrets.properties:password}`, `${dir:/run/secrets:kafka}`.

- **`--json` works everywhere.** It prints one document. Commands that run until you stop them
  print one line per record. Keys do not change between versions.
- **Exit codes** are 0 for success, 1 for failure, 2 for wrong usage and 130 for Ctrl-C.
- **Errors** are one line on stderr. If you mistype a topic, group, setting or command, the line
  suggests the nearest valid name. A traceback never appears, except for a bug with
  `PYLOG_TRACEBACK=1`.
- **Totals** of records, bytes and lag that exclude partitions without a leader are lower bounds,
  printed as `>=400`. The command names these partitions (`missing_partitions` with `--json`) and
  exits with 1. The group lists do the same for groups whose coordinator cannot be reached.
- **Colours and progress bars** appear only on terminals, and `NO_COLOR` turns colours off. A pipe
  receives plain columns, which can be of any width.
- **Completion** covers commands, options, topics and groups: `eval "$(pylog completion bash)"`.
  zsh and fish work too.
- **Topic patterns** use `*` and `?` as in a shell: `pylog topics delete 'tmp-*'`,
  `pylog consume 'orders.*' -g audit` (which also reads topics that are created later).
- **`--watch 2`** (`-w`) repeats `cluster`, `groups describe`, `topics list` and similar commands
  every two seconds.
- **Times** are `2026-11-01T10:00` (local time if you give no zone), `-10m`, `-1h30m` or `now`. In
  `consume`, plain numbers are offsets and `@1793527200` is a time.

## A tour
"""
_SECTIONS = (
    ("Topics and records", 7, """\
`produce` reads one record per line. `--format` selects other input: `raw` (a file is one record),
`json`, `avro` (with `--registry`), and `records`, which is the output of `consume --json`, so that
you can copy records unchanged. `produce` succeeds only if every record is acknowledged. It creates
a topic only with `--create`, so that a mistyped name is an error.

`consume` stops at the offsets where the partitions ended when it started. With `--follow`, it
continues with new records. `--format '%t [%p] %o: %k %s\\n'` prints records by a template with
kcat's letters. `raw` writes the bytes of the value. `json`, `avro` and `table` are for people to
read. Records of internal topics are shown decoded.

`topics branch SRC DST` (or `topic branch`) makes an instant copy of a topic on brokerd, for tests
and replays. Both topics share the existing segment files and receive new records independently.
`--at` omits records at or after an offset or a time.
`topics delete-records orders --before -7d` deletes older records."""),
    ("Groups", 13, """\
Lag is shown in records and in time. The time is the age of the first record that is not committed;
the command fetches that record to read its timestamp.

- `reset-offsets` shows the changes. `--execute` applies them, but only if the group has no members.
  The command reports each offset that it had to move to stay inside the log.
- `delete-offsets` deletes the offsets of a topic that no member reads.
- `explain` finds out why a group lags: no members, rebalances, throttling, an open transaction (and
  its owner), a slow member and its rate, a hot partition, cold reads, or too few consumers. It
  queries brokerd's metrics endpoint (`metrics.listener`), which has data of the last minutes. With
  any other broker, it takes two samples, `--seconds` apart, and cannot detect throttling and cold
  reads.
- `history` queries the same endpoint for the reasons of past rebalances: which members joined, left
  (with the reason that the client gave), timed out or delayed the others, how long the rebalance
  took, and how long each member had no work. The coordinator keeps the last 8 MiB of this history
  in its first log directory (`group-rebalances.jsonl`), so it survives restarts. A broker that
  takes over the group starts with an empty history."""),
    ("Offsets, settings, cluster", 18, """\
- `configs` changes the settings of topics, brokers (`default` means all brokers), groups and
  loggers. One command applies all of its changes or none.
- `quotas set --user alice producer_byte_rate=1048576` limits users, client ids and addresses.
- `registry` lists the subjects and schemas of a schema registry (`--registry` or `PYLOG_REGISTRY`),
  registers schemas (`registry register orders-value order.avsc`), checks in advance whether the
  registry would accept a schema (`registry check`), and deletes schemas.
- `cluster moves` lists the reassignments in progress, and `cluster cancel` cancels them.
- `cluster reassign plan.json` executes a plan in the format of kafka-reassign-partitions and writes
  the plan that reverts it.
- `cluster elect` makes the preferred replicas leaders again."""),
    ("Files", 20, """\
`log verify` reads segments of brokerd or Kafka, also while a broker uses them. It checks CRCs, the
order of batches, every record, and that the index entries point to the starts of batches.
`log dump` prints segments. `log verify` reports each damaged range with its position and the offset
at which valid batches continue. Both commands only read. Preallocated space and an incomplete batch
at the end of a log do not count as damage.

`log repair` needs a stopped broker, and refuses to run while a broker holds the directory. It shows
its repairs; `--execute` applies them:

- It cuts torn tails.
- It rebuilds missing or wrong indexes, producer snapshots and epoch files.
- It completes or reverts swaps and moves that were interrupted.

brokerd also does all of this when it starts. `log repair` leaves damage between valid batches in
place: readers skip a damaged header, and a wrong CRC stops consumers that check CRCs. With
`--quarantine`, it rewrites the segment without the damaged bytes. It saves removed bytes next to
the segment as `<segment>.log.<position>.corrupt`. Afterwards, brokerd or Kafka starts as after a
crash.

A batch has one CRC for all of its records. So one damaged record costs its whole batch, because the
damaged record cannot be told from the others. Kafka's recovery removes that batch and everything
after it; `log repair` keeps the batches after it. Print the records that can still be decoded with
`log dump -r FILE.corrupt`, check them, and send them again."""),
    ("How fast", 22, """\
The results are for one process with a Python client, and "processor time" is that of the client.
[Performance](../../bench/results/full.md) has the broker's own figures. At full speed, the latency
is mostly time in the producer's buffer. With `--rate`, it is the broker's latency."""),
    ("What is wrong", 99, """\
`doctor` checks the limits, memory and clock of this machine, and the broker's disks if they are on
this machine (it tests a flush in an unnamed file). Then it checks every address that the brokers
advertise, as seen by a client here, and the partitions. Each finding includes what to do. The exit
code is 1 if a check failed."""),
)


def document(tour: str) -> str:
    """Return the whole file. tour: `$ command` blocks with their outputs."""
    blocks = [block.rstrip() for block in tour.split("\n$ ") if block.strip()]
    blocks = [block if block.startswith("$ ") else f"$ {block}" for block in blocks]
    parts, at = [_INTRODUCTION], 0
    for title, end, text in _SECTIONS:
        shown = "\n\n".join(blocks[at:end])
        parts.append(f"### {title}\n\n```\n{shown}\n```\n\n{text}\n")
        at = end
    parts.append("## Every command\n\nEvery command accepts `-b`, `-c`, `-P`, `-X`, `--timeout`, "
                 "`--json` and `--help`. The `log` commands accept only the last two.\n")
    parts += _reference()
    return "\n".join(parts)


def _reference() -> Iterator[str]:
    root = app.root()
    context = click.Context(root, info_name="pylog")
    for name in root.list_commands(context):
        if name == "config":
            yield "### pylog config\n\nThe same as `brokerd config`: `explain KEY` and `list`.\n"
            continue
        command = root.get_command(context, name)
        assert command is not None, name
        yield from _command(command, f"pylog {name}")


def _command(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path, max_content_width=100)
    text = " ".join((command.help or "").replace("\b", "").split())
    if isinstance(command, click.Group):
        yield f"### {path}\n\n{text}\n"
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, name
            yield from _command(below, f"{path} {name}")
        return
    pieces = command.collect_usage_pieces(context)
    rows = [record for option in command.params if isinstance(option, click.Option)
            and option.expose_value and (record := option.get_help_record(context))]
    listed = "".join(f"- `{names}` {text}\n" for names, text in rows
                     if not names.startswith(("-h,", "--help")))
    usage = " ".join([path, *[piece for piece in pieces if piece != "[OPTIONS]"]])
    yield f"#### `{usage}`\n\n{text}\n" + (f"\n{listed}" if listed else "")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(TOUR.read_text()))
