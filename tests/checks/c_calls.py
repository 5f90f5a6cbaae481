"""The functions of csrc/ and which of them call each other.

Owns: nothing.
Invariants: no files of csrc/ call each other in a cycle; two files of a folder have no static
  function of the same name; a header named *_internal.h is included only by its own folder, and
  one of RESTRICTED only by the folders listed there.
"""

import functools
import re
from collections import defaultdict
from pathlib import PurePath
from typing import NamedTuple

# A comment, a string or a character. Strings stay as "" so that calls keep their shape.
_TEXT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])+'", re.DOTALL)
_DIRECTIVE = re.compile(r"^#(?:.*\\\n)*.*$", re.M)
# A definition at the margin: types, name, parameters, annotations, and the opening brace.
_DEFINITION = re.compile(r"^((?!typedef\b)(?:[\w*]+[ \n]+\**)+)(\w+)\(([^;{}]*?)\)"
                         r"(?:\s*[A-Z_]+(?:\([^)]*\))?)*\s*\{", re.M)
_CALL = re.compile(r"\b([a-z]\w*)\(")
_INCLUDE = re.compile(r"^#include \"(?P<header>(?P<folder>[\w/]+)/\w+\.h)\"", re.M)
# (folder, function) of names that two files of a folder share. The list only gets shorter.
SHARED_NAMES: set[tuple[str, str]] = {
    ("csrc/columns", "headers_put"),
    ("csrc/compaction", "by_producer"),
    ("csrc/compaction", "make_room"),
    ("csrc/os", "put"),
}
# Headers of a structure, and the folders that may include them.
RESTRICTED = {"log/log_struct.h": {"log", "log_manager", "compaction"}}


class Function(NamedTuple):
    """A function that a file defines: whether only that file can call it, and what it calls."""

    static: bool
    calls: tuple[str, ...]


@functools.cache
def functions(text: str) -> dict[str, Function]:
    """Return the functions that a C file or header defines, by name."""
    text = _TEXT.sub(lambda match: '""' if match[0].startswith('"') else " ", text)
    text = _DIRECTIVE.sub("", text)
    found = {}
    for match in _DEFINITION.finditer(text):
        end = text.find("\n", match.end())
        if not text[match.end():end].rstrip().endswith("}"):  # Not on one line.
            end = text.find("\n}", match.end())
        body = text[match.end():end]
        if match[2] == "__attribute__":
            continue
        found[match[2]] = Function("static" in match[1].split(), tuple(_CALL.findall(body)))
    return found


def calls(texts: dict[PurePath, str]) -> dict[PurePath, set[PurePath]]:
    """Return the files that each .c file of csrc/ calls. texts: path -> content."""
    files = {path: functions(text) for path, text in texts.items()
             if path.parts[0] == "csrc" and path.suffix == ".c"}
    homes = {name: path for path, found in files.items()
             for name, function in found.items() if not function.static}
    edges: dict[PurePath, set[PurePath]] = {path: set() for path in files}
    for path, found in files.items():
        for function in found.values():
            # A file's own function hides one of another file.
            edges[path] |= {homes[name] for name in function.calls
                            if name not in found and name in homes}
    return edges


def shared_names(texts: dict[PurePath, str]):
    """Yield (folder, function, files) of static functions that two files of a folder define."""
    found = defaultdict(set)
    for path, text in texts.items():
        if path.parts[0] == "csrc" and path.suffix == ".c":
            for name, function in functions(text).items():
                if function.static:
                    found[str(path.parent), name].add(path.name)
    for (folder, name), files in sorted(found.items()):
        if len(files) > 1:
            yield folder, name, sorted(files)


def foreign_internals(texts: dict[PurePath, str]):
    """Yield (file, header) of includes of a header that the file's folder may not include."""
    for path, text in sorted(texts.items()):
        if path.parts[0] == "csrc" and path.suffix in {".c", ".h"}:
            for match in _INCLUDE.finditer(text):
                header = match["header"]
                own = {match["folder"]} if header.endswith("_internal.h") else None
                allowed = RESTRICTED.get(header, own)
                if allowed is not None and path.parts[1] not in allowed:
                    yield str(path), header

