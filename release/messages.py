"""Generate docs/reference/messages.md: every text of pylog that reaches a user, on one page.

Owns: nothing; the page is derived from the syntax trees of the sources.
Invariants: the same sources give the same bytes; the page has no line numbers, so that it
changes only with a text.
Source: none; the format is our own.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
# Other pages show these texts: settings, metrics, protocol, commands.
ELSEWHERE = {
    "pylog/client/docs.py", "pylog/config/document.py", "pylog/config/kafka_settings.py",
    "pylog/config/own_settings.py", "pylog/monitor/document.py", "pylog/monitor/metrics.py",
    "pylog/protocol/document.py", "pylog/tools/docs.py"}
_WORDS = re.compile(r"[A-Za-z][a-z']+ [a-z(]")
_NATIVE = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
# Adjacent literals are one text, also across lines.
_JOINED = re.compile(r'"\s*\n\s*"')
_DOCSTRING = re.compile(r'""".*?"""', re.DOTALL)
_NATIVE_WORDS = re.compile(r"[A-Za-z][a-z']+ [a-z']+ [a-z']+|^[A-Z][a-z]+ [a-z]+")
_NOT_SHOWN = re.compile(r"assert|#include|__asm|//|/\*|^\s*\*")
_INTRODUCTION = """\
# Messages

`make docs` generates this page from the sources. It lists every log line, every error and every
other text of brokerd, the client and the `pylog` command. Texts in `{braces}` and `%s` are replaced
by values. A log line also has fields, printed behind the text as `name=value`.

Help texts are in [pylog.md](pylog.md), settings in [settings.md](settings.md) and
[client-settings.md](client-settings.md), metrics in [metrics.md](metrics.md).
"""


@dataclass(frozen=True, order=True)
class Message:
    """A text with its kind (a log level, an exception class or "text") and its fields."""

    kind: str
    text: str
    fields: tuple[str, ...] = ()


def messages(source: str) -> list[Message]:
    """Return the distinct messages of a module, sorted."""
    tree = ast.parse(source)
    found, seen = set(), set()
    for node in ast.walk(tree):
        remedy = [""]
        if isinstance(node, ast.Call) and (level := _level(node)):
            texts, kind, fields = node.args[:1], f"log {level}", _fields(node)
        elif isinstance(node, ast.Call) and (given := _remedy(node)):
            texts, kind, fields = node.args[:1], ast.unparse(node.func), ()
            kind = "text" if kind.endswith("__") else kind
            remedy = [f": {text}" for text in _texts(given)] or [f": {{{ast.unparse(given)}}}"]
            seen |= {id(inner) for inner in ast.walk(given)}
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) \
                and not _remedy(node.exc):
            texts, kind, fields = node.exc.args, ast.unparse(node.exc.func), ()
        else:
            continue
        for argument in texts:
            for inner in ast.walk(argument):
                seen.add(id(inner))
            found |= {Message(kind, text + more, fields) for text in _texts(argument)
                      for more in remedy}
    documented = _documentation(tree)
    for node in _parts(tree):
        if id(node) not in seen and id(node) not in documented:
            found |= {Message("text", text) for text in _texts(node) if _WORDS.search(text)}
    return sorted(found)


def _remedy(call: ast.Call) -> ast.expr | None:
    """Return an error's argument `remedy`, which its text ends with."""
    return next((word.value for word in call.keywords if word.arg == "remedy" and call.args), None)


def _level(call: ast.Call) -> str:
    """Return the level of a call of a logger, or ""."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr not in LEVELS or not call.args:
        return ""
    owner = ast.unparse(func.value).rpartition(".")[2].lstrip("_")
    return {"exception": "error"}.get(func.attr, func.attr) if owner in {"log", "logger"} else ""


def _fields(call: ast.Call) -> tuple[str, ...]:
    """Return the names of the fields of a log line that are written where it is logged."""
    extra = next((word.value for word in call.keywords if word.arg == "extra"), None)
    if not isinstance(extra, ast.Dict):
        return ()
    return tuple(key.value for key in extra.keys
                 if isinstance(key, ast.Constant) and isinstance(key.value, str))


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the outermost strings below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr) or _is_text(child):
            yield child
        else:
            yield from _parts(child)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield each text that an expression may be."""
    if isinstance(node, ast.JoinedStr):
        yield " ".join("".join(
            str(value.value) if isinstance(value, ast.Constant) else "{" + ast.unparse(
                value.value if isinstance(value, ast.FormattedValue) else value) + "}"
            for value in node.values).split())
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, str) and " " in node.value.strip():
            yield " ".join(node.value.split())
    elif not isinstance(node, ast.Call):
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)
    else:
        for child in [*node.args, *(word.value for word in node.keywords)]:
            yield from _texts(child)


def _documentation(tree: ast.AST) -> set[int]:
    """Return the ids of docstrings and of command help, which other pages show."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and _is_text(node.value):
            found.add(id(node.value))
        elif isinstance(node, ast.keyword) and node.arg in {"help", "short_help", "epilog"}:
            found |= {id(inner) for inner in ast.walk(node.value)}
    return found


def native_messages(source: str) -> list[Message]:
    """Return the distinct texts of a C or Cython module, sorted."""
    code = _JOINED.sub("", _DOCSTRING.sub("", source))
    lines = [line for line in code.splitlines() if not _NOT_SHOWN.search(line)]
    return sorted({Message("text", found[1]) for line in lines
                   for found in _NATIVE.finditer(line) if _NATIVE_WORDS.search(found[1])})


def page(root: Path) -> str:
    """Return docs/reference/messages.md for the sources below root."""
    lines = [_INTRODUCTION]
    paths = [path for folder, ending in (("csrc", ".c"), ("pylog", ".py"), ("pylog", ".pyx"))
             for path in (root / folder).rglob(f"*{ending}")
             if str(path.relative_to(root)) not in ELSEWHERE]
    for path in sorted(paths):
        read = messages if path.suffix == ".py" else native_messages
        if not (found := read(path.read_text())):
            continue
        lines.append(f"\n## `{path.relative_to(root)}`\n")
        for message in found:
            fields = f" ({', '.join(message.fields)})" if message.fields else ""
            lines.append(f"- {message.kind}: `` {message.text} ``{fields}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(ROOT))
