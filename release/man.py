"""Generate the man pages of `brokerd`, `pylog` and each command of `pylog`.

    python -m release.man docs/man

Owns: nothing; the pages are derived from the commands and CHANGELOG.md.
Invariants: the same commands give the same bytes; a page has the date of its version.
Source: man(7); PEP 491 (share/man in a wheel's data).
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from pylog import __version__, cli
from pylog.tools import app
from release.wheels import ROOT

# Leaves space for quoted characters.
WIDTH = 64
BROKERD_ENDING = """.SH SIGNALS
SIGTERM and SIGINT stop the broker cleanly.
.SH EXIT STATUS
.TP
0
The broker stopped cleanly.
.TP
1
The start failed, or another error ended the broker.
.TP
2
A setting or an argument is wrong.
.TP
70
A fault in brokerd ended it. Please report it with the last log lines.
"""
PYLOG_ENDING = """.SH ENVIRONMENT
.TP
PYLOG_BOOTSTRAP
The address of a broker, if \\-b is not given.
.TP
PYLOG_REGISTRY
The address of a schema registry.
.SH EXIT STATUS
.TP
0
The command succeeded.
.TP
1
The command failed, or found a problem.
.TP
2
The arguments are wrong.
.TP
130
Ctrl-C ended the command.
"""


def main(argv: list[str]) -> int:
    folder = Path(argv[0])
    folder.mkdir(parents=True, exist_ok=True)
    made = pages(date_of((ROOT / "CHANGELOG.md").read_text(), __version__))
    for old in folder.glob("*.1"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (folder / name).write_text(text)
    return 0


def date_of(changelog: str, version: str) -> str:
    """Return the date in the heading of a version, as 2026-11-28."""
    found = re.search(rf"^## {re.escape(version)} - (\d{{4}}-\d\d-\d\d)$", changelog, re.M)
    if found is None:
        raise SystemExit(f"CHANGELOG.md: add a heading `## {version} - YYYY-MM-DD`")
    return found[1]


def pages(date: str) -> dict[str, str]:
    """Return the text of each page by its file name."""
    made = {"brokerd.1": brokerd_page(date)}
    root = app.root()
    context = click.Context(root, info_name="pylog")
    rows = {name: text for group in app.COMMANDS.values() for name, (_, text) in group.items()}
    made["pylog.1"] = "".join([
        heading("pylog", date), names("pylog", root.help or ""), ".SH SYNOPSIS\n.B pylog\n",
        "[OPTIONS] COMMAND [ARGS]...\n.SH COMMANDS\n",
        *[f".TP\n.BR pylog\\-{roff(name)} (1)\n{filled(text)}\n" for name, text in rows.items()],
        ".SH OPTIONS\n", *options(root, context), PYLOG_ENDING, see("brokerd")])
    for name, text in rows.items():
        command = root.get_command(context, name)
        assert command is not None, name
        made[f"pylog-{name}.1"] = "".join([
            heading(f"pylog-{name}", date), names(f"pylog-{name}", text), ".SH SYNOPSIS\n",
            *synopses(command, f"pylog {name}"), ".SH DESCRIPTION\n", *described(command, name),
            see("pylog", "brokerd")])
    return made


def brokerd_page(date: str) -> str:
    parser = cli._serve_arguments()
    formatted = [(", ".join(action.option_strings) or str(action.metavar), action)
                 for action in parser._actions]
    return "".join([
        heading("brokerd", date), names("brokerd", parser.description or ""),
        ".SH SYNOPSIS\n.B brokerd\n[OPTIONS] [server.properties]\n",
        *[f".br\n.B brokerd {roff(name)}\n" for name in cli.COMMANDS],
        ".SH DESCRIPTION\n", filled(
            "Without a command, brokerd runs a broker. Without settings, it listens on "
            "localhost:9092 and keeps its data in the directory that log.dirs names. "
            "`brokerd config list` prints all settings."), "\n.SH OPTIONS\n",
        *[f".TP\n.B {roff(label)}{metavar(action)}\n{filled(action.help or '')}\n"
          for label, action in formatted],
        ".SH COMMANDS\n",
        *[f".TP\n.B brokerd {roff(name)}\n{sentence(text)}\n"
          for name, (_, text) in cli.COMMANDS.items()],
        BROKERD_ENDING, see("pylog")])


def metavar(action: argparse.Action) -> str:
    return f" {roff(str(action.metavar))}" if action.option_strings and action.metavar else ""


def synopses(command: click.Command, path: str) -> Iterator[str]:
    """Yield one line for each command at the end of `path`."""
    first = next(leaves(command, path))[1]
    for found, place in leaves(command, path):
        pieces = found.collect_usage_pieces(click.Context(found, info_name=place))
        separator = "" if place == first else ".br\n"
        yield f"{separator}.B {roff(place)}\n{filled(' '.join(pieces))}\n"


def described(command: click.Command, name: str) -> Iterator[str]:
    for found, place in leaves(command, f"pylog {name}"):
        context = click.Context(found, info_name=place, max_content_width=100)
        if found is not command:
            yield f".SS {roff(place)}\n"
        yield f"{filled(found.help or '')}\n"
        yield from options(found, context)


def leaves(command: click.Command, path: str) -> Iterator[tuple[click.Command, str]]:
    """Yield all commands below a group with their full names, or the command itself."""
    if not isinstance(command, click.Group):
        yield command, path
        return
    context = click.Context(command, info_name=path)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None, name
        yield from leaves(below, f"{path} {name}")


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    for option in command.params:
        if isinstance(option, click.Option) and (row := option.get_help_record(context)):
            yield f".TP\n.B {roff(row[0])}\n{filled(row[1])}\n"


def heading(name: str, date: str) -> str:
    return f'.TH {roff(name.upper())} 1 {date} "pylog {__version__}" "pylog manual"\n'


def names(name: str, text: str) -> str:
    return f".SH NAME\n{roff(name)} \\- {filled(text.rstrip('.'), WIDTH - len(name))}\n"


def see(*others: str) -> str:
    listed = ",\n".join(f".BR {roff(name)} (1)" for name in others)
    return f".SH SEE ALSO\n{listed}\n"


def sentence(text: str) -> str:
    return roff(text[:1].upper() + text[1:] + ".")


def filled(text: str, width: int = WIDTH) -> str:
    """Return a paragraph in lines of at most 80 bytes, which mandoc asks for."""
    lines = textwrap.wrap(" ".join(text.replace("\b", "").split()), width, break_long_words=False,
                          break_on_hyphens=False)
    return roff("\n".join(lines))


def roff(text: str) -> str:
    """Return a text with the characters quoted that troff interprets."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = text.replace("`", "\\(ga").replace("^", "\\(ha").replace("~", "\\(ti")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
