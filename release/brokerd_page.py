"""Generate docs/reference/brokerd.md: the arguments, commands and exit codes of `brokerd`.

    python -m release.brokerd_page docs/reference/brokerd.md

Owns: nothing; the page is derived from the arguments themselves.
Invariants: the same arguments give the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pylog import cli

_HEAD = """\
# brokerd

`make docs` generates this page.

    brokerd [OPTIONS] [server.properties]

Without options, brokerd listens on `localhost:9092` and keeps its data in `./data`. It is ready
when it prints the ready line:

    brokerd ready address=localhost:9092 node.id=1 log.dirs=/srv/data reach=loopback ms=90

| field | meaning |
|---|---|
| `address` | the addresses of all listeners |
| `node.id`, `log.dirs` | these settings |
| `reach` | who can connect: `loopback` means only this machine |
| `acks.all` | in a cluster: where a record is when the producer gets its acknowledgement, see \
[durability](../explain/durability.md) |
| `ms` | the time that the start took |

The line goes to standard output, the log to standard error.

## Options

"""
_EXIT_CODES = """
## Signals

SIGTERM and SIGINT stop the broker cleanly. It first transfers the leadership of its partitions, and
then writes its checkpoints. `kill -9` loses no acknowledged record; the next start checks the logs.

## Exit codes

| code | meaning |
|---|---|
| 0 | the broker stopped cleanly |
| 1 | the start failed, or another error ended the broker |
| 2 | a setting or an argument is wrong; do not restart before you have changed it |
| 70 | a fault in brokerd ended it: please report it with the last log lines |
"""


def page() -> str:
    """Return the text of docs/reference/brokerd.md."""
    rows = ["| option | effect |", "|---|---|"]
    for action in cli._serve_arguments()._actions:
        names = ", ".join(action.option_strings) or str(action.metavar)
        value = f" {action.metavar}" if action.option_strings and action.metavar else ""
        text = " ".join(str(action.help).split())
        rows.append(f"| `{names}{value}` | {text} |")
    commands = ["\n\n## Commands\n", "| command | effect |", "|---|---|"]
    commands += [f"| `brokerd {name}` | {text} |" for name, (_, text) in cli.COMMANDS.items()]
    return _HEAD + "\n".join([*rows, *commands]) + "\n" + _EXIT_CODES


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
