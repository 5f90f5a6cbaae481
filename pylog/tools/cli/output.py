"""Output of commands: tables for people, plain columns for pipes, JSON for programs.

Owns: standard output, and the progress bar on standard error.
Invariants: colours and progress bars appear only on terminals, and NO_COLOR disables colours; with
  --json standard output is only JSON: one document, or one per line for endless output; all rows of
  a command have the same keys; text is escaped here, before it is printed.
Source: no-color.org; rich for terminals. A pipe gets plain text that is not wrapped at 80 columns.
"""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from pylog.tools.cli.escapes import escaped

GOOD, BAD, DULL, WARN = "green", "bold red", "dim", "yellow"
_NUMBERS = (int, float)


class AtLeast(int):
    """A sum without its unknown terms: `>=400` in text, 400 in JSON."""

    def __str__(self) -> str:
        return f">={int(self)}"


def with_buffer(stream: TextIO) -> TextIO:
    """Return the stream, or with PYTHONUNBUFFERED a buffered one over the same descriptor.

    A raw file can write only a part of its argument, and Python's text streams ignore that.
    """
    if not isinstance(getattr(stream, "buffer", None), io.RawIOBase):
        return stream
    return open(stream.fileno(), "w", encoding=stream.encoding, errors=stream.errors,
                closefd=False)


class Printer:
    """Formats and prints output. as_json: print only JSON to standard output."""

    def __init__(self, as_json: bool = False, out: TextIO | None = None, err: TextIO | None = None):
        self.as_json = as_json
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self.is_rich = self.out.isatty() and not plain
        self.has_bars = self.err.isatty() and not plain
        self._console: Any = None

    def flush(self) -> None:
        """Write all buffered output. A regular file is on disk afterwards.

        Raises OSError: network file systems and quotas report a full disk only here.
        """
        self.out.flush()
        try:
            descriptor = self.out.fileno()
        except (OSError, AttributeError):
            return  # Not a file: a test captures the output.
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fsync(descriptor)

    def line(self, text: str = "") -> None:
        """Print one line for people; omitted with --json."""
        self.lines(text, allowed="")

    def lines(self, text: str, allowed: str = "\n") -> None:
        """Print text that can have several lines, such as a schema; omitted with --json."""
        if not self.as_json:
            print(escaped(text, allowed), file=self.out)

    def note(self, text: str) -> None:
        """Print one line to standard error."""
        print(escaped(text), file=self.err, flush=True)

    def write_bytes(self, data: bytes | memoryview) -> None:
        """Write raw records; on a terminal everything except newlines and tabs is escaped."""
        binary = getattr(self.out, "buffer", None)
        if binary is None or self.out.isatty():
            text = bytes(data).decode("utf-8", "replace")
            self.out.write(escaped(text, "\n\t") if self.out.isatty() else text)
        else:
            self.out.flush()
            binary.write(data)

    def document(self, value: Any) -> None:
        """Print one JSON document, indented on a terminal."""
        indent = 2 if self.out.isatty() else None
        text = json.dumps(value, indent=indent, ensure_ascii=False, default=_plain)
        print(escaped(text, "\n"), file=self.out)

    def json_line(self, value: Any) -> None:
        print(escaped(json.dumps(value, ensure_ascii=False, default=_plain)), file=self.out)

    def result(self, value: Mapping[str, Any], text: str) -> None:
        """Print the result of a change: JSON, or one sentence."""
        if self.as_json:
            self.document(value)
        else:
            self.line(text)

    def rows(self, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Any],
             title: str = "", empty: str = "nothing") -> None:
        """Print a table. columns: {key of a row: heading, or (heading, function of the value)}."""
        if self.as_json:
            self.document(list(rows))
            return
        self.table(rows, columns, title, empty)

    def table(self, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Any],
              title: str = "", empty: str = "nothing") -> None:
        """Print a table; omitted with --json."""
        if title:
            self.title(title)
        if not rows:
            self.line(empty)
            return
        heads, cells, right = _laid_out(rows, columns)
        if self.is_rich:
            self._rich(heads, cells, right)
            return
        widths = [max(map(len, column)) for column in zip(heads, *cells)]
        for row in (heads, *cells):
            parts = [text.rjust(width) if number else text.ljust(width)
                     for text, width, number in zip(row, widths, right)]
            print("  ".join(parts).rstrip(), file=self.out)

    def title(self, text: str) -> None:
        if self.is_rich:
            self.console.print(escaped(text), style="bold", markup=False, highlight=False)
        else:
            self.line(text)

    def styled(self, text: str, style: str) -> None:
        """Print a line in a colour if colours are enabled."""
        if self.is_rich:
            self.console.print(escaped(text), style=style, markup=False, highlight=False,
                               soft_wrap=True)
        else:
            self.line(text)

    def _rich(self, heads: list[str], cells: list[list[str]], right: list[bool]) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, header_style="bold cyan", pad_edge=False)
        for head, number in zip(heads, right):
            table.add_column(head, justify="right" if number else "left", overflow="fold")
        for row in cells:
            table.add_row(*[Text(text, style=_style(text)) for text in row])
        self.console.print(table)

    @property
    def console(self) -> Any:
        if self._console is None:
            from rich.console import Console

            self._console = Console(file=self.out)
        return self._console

    def progress(self, what: str, total: float | None, unit: str = "") -> Any:
        """Return a context manager. Call its value with the amount of progress."""
        if self.has_bars:
            return Bar(what, total, unit, self.err)
        return NoBar()


class NoBar:
    """Not a terminal: no progress bar."""

    def __enter__(self) -> NoBar:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def __call__(self, more: float) -> None:
        pass


class Bar(NoBar):
    """A progress bar on standard error that disappears at the end."""

    def __init__(self, what: str, total: float | None, unit: str, err: TextIO):
        from rich import progress
        from rich.console import Console

        amount = (progress.DownloadColumn(), progress.TransferSpeedColumn()) if unit == "bytes" \
            else (progress.MofNCompleteColumn(),)
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(), *amount,
            progress.TimeRemainingColumn(), console=Console(file=err), transient=True)
        self.task = self.bar.add_task(escaped(what), total=total)

    def __enter__(self) -> Bar:
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()

    def __call__(self, more: float) -> None:
        self.bar.advance(self.task, more)


def _laid_out(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Any]
              ) -> tuple[list[str], list[list[str]], list[bool]]:
    """Return (headings, cells, flags of the numeric columns)."""
    heads, shown, right = [], [], []
    for key, column in columns.items():
        head, text = column if isinstance(column, tuple) else (column, cell)
        values = [row.get(key) for row in rows]
        heads.append(head)
        shown.append([escaped(text(value)) for value in values])
        right.append(any(isinstance(value, _NUMBERS) and not isinstance(value, bool)
                         for value in values))
    return heads, [list(row) for row in zip(*shown)], right


def _style(text: str) -> str:
    return {"ok": GOOD, "warn": WARN, "fail": BAD, "skip": DULL, "-": DULL, "Stable": GOOD,
            "Empty": WARN, "Dead": BAD, "none": BAD}.get(text, "")


def cell(value: Any) -> str:
    """Return a value as text: a dash for none, lists joined by commas."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        return ",".join(map(str, value)) or "-"
    return str(value)


def size(value: int | None) -> str:
    """Return bytes in a suitable unit."""
    if value is None or value < 0:
        return "-"
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    mark = ">=" if isinstance(value, AtLeast) else ""
    return f"{mark}{amount:.0f} {unit}" if unit == "B" else f"{mark}{amount:.1f} {unit}"


def span(seconds: float | None) -> str:
    """Return a duration in a suitable unit."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for limit, unit, length in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds / 86_400:.1f} d"


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    raise TypeError(type(value).__name__)
