"""The "Called by" lines of heads, compared with the imports.

Owns: nothing.
Called by: tests.tidy.
Invariants: (1) a module that a line names imports the module whose head it is, or says through
  what it gets it; (2) a name that looks like a module is one.

The line is a list, its items parted by commas, semicolons, full stops and "and"; text in
parentheses is prose. An item that begins with a module's name (`log.manager`, `broker`, `hints` for
a neighbour, `dispatch` where only one module is called so, `test_tidy.py` for a file) names a
caller, and a package stands for any module in it.
An item of one word names somebody of OTHERS. Whatever else is prose.
Import means an import or cimport, also of a name that a package's `__init__` hands on. With
"through X" the caller gets it from X, a module that imports it, or code in backticks; with "by
name" its text has the module's name for an import_module; "as a program" needs no import. All three
count in parentheses too. In csrc/, "Called by x.c" means that x.c or x.h includes the header.
"""

import re
from pathlib import PurePath

from tests import layers

# Who calls, and is no module.
OTHERS = {"applications", "benches", "executors", "make", "people", "pytest", "Spark", "tests",
          "users"}
FOLDERS = ("pylog", "tests", "bench", "spark", "release")
SUFFIXES = {".py", ".pyx", ".pxd"}
_HEAD = re.compile(r'"""(.*?)"""', re.DOTALL)
_LINE = re.compile(r"^Called by:(.*?)(?=^\w[\w -]*:|^\s*$|\Z)", re.DOTALL | re.MULTILINE)
_C_LINE = re.compile(r"\bCalled by:? ((?:\w+\.[ch]\b[\s,*]*(?:and )?)+)")
_SPLIT = re.compile(r"[,;]|\.(?=\s|$)|:(?=\s)|\band\b")
_NAME = re.compile(r"\.?[A-Za-z_]\w*(\.\w+)*$")
_THROUGH = re.compile(r"\bthrough\s+(\S+)")
_WAYS = re.compile(r"\bthrough\s+\S+|\bby name\b|\bas a program\b")


class Tree:
    """The modules of a tree and what each imports."""

    def __init__(self, texts: dict[PurePath, str]):
        self._imports: dict[str, set[str]] = {}
        self.paths = {module_of(path): path for path in texts if _is_code(path)}
        self.texts = {module_of(path): text for path, text in texts.items() if _is_code(path)}
        self._packages = {name[:at] for name in self.paths for at in range(len(name))
                          if name[at] == "."}
        # What a package's __init__ hands on, before those who take it.
        self._handed: dict[str, str] = {}
        for path in sorted(filter(_is_code, texts), key=lambda path: path.stem != "__init__"):
            own = module_of(path)
            found = self._imports.setdefault(own, set())
            for _, whole, names in layers.sources(path, texts[path]):
                for name in names or [""]:
                    inner = f"{whole}.{name}"
                    found |= {inner} if self.is_module(inner) else {
                        whole, self._handed.get(inner, whole)}
                    if path.stem == "__init__":
                        self._handed[f"{own}.{name}"] = whole

    def is_module(self, name: str) -> bool:
        """Whether a module or a package has this name."""
        return name in self._packages or name in self.paths

    def resolve(self, word: str, own: str) -> str | None:
        """The whole name of a module that the head of `own` calls `word`."""
        if word.endswith(".py"):
            stem = word.rpartition("/")[2][:-3]
            near = [name for name in self.paths if name.rpartition(".")[2] == stem]
            return next(iter(sorted(near, key=lambda name: _distance(name, own))), None)
        above = own if self.paths[own].stem == "__init__" else own.rpartition(".")[0]
        word = word.lstrip(".")
        tops = ("pylog.", "") if own.startswith("pylog") else ("", "pylog.")
        for start in (f"{above}.", *tops):
            if self.is_module(start + word) and start + word != own:
                return start + word
        return None

    def only(self, word: str, own: str) -> str | None:
        """The one module of pylog, other than `own`, that ends in `word`, or None."""
        alike = [name for name in self.paths
                 if name.startswith("pylog.") and name.endswith(f".{word}") and name != own]
        return alike[0] if len(alike) == 1 else None

    def imports(self, caller: str, own: str) -> bool:
        """Whether a module, or any of a package, imports `own` (1)."""
        inside = [name for name in self._imports if name == caller or name.startswith(caller + ".")]
        return any(own in self._imports[name] for name in inside if name != own)

    def imports_itself(self, caller: str, own: str) -> bool:
        """Whether a module, or a package's __init__, imports `own`."""
        return own in self._imports.get(caller, ())


def module_of(path: PurePath) -> str:
    """The dotted name of a file."""
    parts = [*path.parts[:-1], path.stem]
    return ".".join(parts[:-1] if path.stem == "__init__" else parts)


def _is_code(path: PurePath) -> bool:
    return path.parts[0] in FOLDERS and path.suffix in SUFFIXES and len(path.parts) > 1


def untrue(texts: dict[PurePath, str]):
    """(path, line, message) of each caller that a head names wrongly. texts: of all sources."""
    tree = Tree(texts)
    for path, text in texts.items():
        found = _of_c(path, text, texts) if path.suffix in {".c", ".h"} \
            else _of_module(path, text, tree)
        for line, message in found:
            yield str(path), line, f'"Called by": {message}'


def _of_module(path: PurePath, text: str, tree: Tree):
    found = _HEAD.search(text)
    said = found and _LINE.search(found[1])
    if not said or path.suffix == ".pxd" or module_of(path) not in tree.paths:
        return
    line = text.count("\n", 0, found.start(1) + said.start()) + 1
    own = module_of(path)
    for item in items(said[1]):
        fault = _fault(item, own, tree)
        if fault:
            yield line, fault


def items(text: str):
    """The parts of a line, without what is in parentheses unless it says "through"."""
    text = re.sub(r",\s+(?=through\b)", " ", re.sub(r"\([^()]*\)", _kept, text))
    for whole in _SPLIT.split(text):
        item = " ".join(whole.split())
        if item:
            yield item


def _kept(match: re.Match) -> str:
    way = _WAYS.search(match[0].strip("()"))
    return f" {way[0]} " if way else ""


def _fault(item: str, own: str, tree: Tree) -> str | None:
    word, *rest = item.split()
    if not _NAME.match(word) or word in OTHERS or item.endswith("as a program"):
        return None
    caller = tree.resolve(word, own)
    if caller is None and (not rest or _WAYS.search(item)):
        caller = tree.only(word, own)
    if caller is None:
        if rest and "." not in word:
            return None
        return f"{word} is no module, and none of OTHERS in tests/callers.py"
    through = _THROUGH.search(item)
    if through:
        way = through[1].rstrip(".,;")
        if way.startswith("`") or _leads(way, own, tree):
            return None
        return f"{word} (through {way}): {way} does not import {own}, and is no code in backticks"
    if item.endswith("by name"):
        named = re.search(rf"[\"'.]{own.rpartition('.')[2]}[\"']", tree.texts[caller])
        return None if named else f"{word} does not name {own} in a string"
    if tree.imports(caller, own):
        return None
    return (f"{word} does not import {own}: take it out, or say how it gets there: (through X), "
            "(by name), (as a program)")


def _leads(way: str, own: str, tree: Tree) -> bool:
    """Whether `way`, a module or a name in one, imports `own`."""
    found = tree.resolve(way, own) or tree.only(way, own)
    if found is not None:
        return tree.imports(found, own)
    module = tree.resolve(way.rpartition(".")[0], own)
    return module is not None and tree.imports_itself(module, own)


def _distance(name: str, own: str) -> int:
    """How few folders two modules share, as a number to sort by."""
    shared = 0
    for left, right in zip(name.split("."), own.split("."), strict=False):
        if left != right:
            break
        shared += 1
    return -shared


def _of_c(path: PurePath, text: str, texts: dict[PurePath, str]):
    head = text.split("*/", 1)[0]
    found = _C_LINE.search(head)
    if found is None:
        return
    line = text.count("\n", 0, found.start()) + 1
    for name in re.findall(r"\b(\w+)\.[ch]\b", found[1]):
        near = [other for other in texts if other.stem == name and other.suffix in {".c", ".h"}
                and other.parts[0] == path.parts[0]]
        if not any(_includes(texts[other], path) for other in near):
            yield line, f"{name} does not include {path.name}: take it out"


def _includes(text: str, header: PurePath) -> bool:
    short = "/".join(header.parts[1:]) if header.parts[0] == "csrc" else header.name
    return f'#include "{short}"' in text or f'#include "{header.name}"' in text
