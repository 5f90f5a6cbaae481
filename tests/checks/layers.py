"""The permitted imports and module names: ranks of packages and folders, cycles, endings.

Owns: nothing.
Invariants: a module imports only modules of a lower rank, or of its own package; the same holds for
  the folders at the top of the tree, and for the folders inside a package; no files import each
  other in a cycle; no two modules in a folder have names that differ only in their endings.
Source: docs/internals/architecture.md, The file map.
"""

import ast
import functools
import re
from collections import Counter
from pathlib import PurePath

from tests.checks import c_calls

ORDER = (
    ("_commit",),       # Written by setup.py into its builds.
    ("installation", "version"),
    ("_native",),
    ("child_process", "port_owner", "supervisor"),
    ("config",),
    ("protocol",),
    ("eventloop",),
    ("log", "security"),
    ("peer",),
    ("metadata",),
    ("replication",),
    ("coordinator",),
    ("share",),
    ("api",),
    ("client", "monitor", "server"),
    ("broker",),
    ("testing",),
    ("console", "registry"),
    ("tools",),
    ("cli",),
    ("__main__",),
)
RANKS = {name: rank for rank, names in enumerate(ORDER) for name in names}
# Folders at the top of the tree, lowest first.
TREE = ("pylog", "bench", "spark", "release", "tests")
# Folders inside a package, and modules of the package itself, lowest first. "." is every module of
# the package itself that the list does not name.
INSIDE: dict[str, tuple[str, ...]] = {
    "security": ("errors", "core_dumps", "registry_access", "principals", "authorizer", "tls",
                 "oauth", "sasl", "authorization"),
    "metadata": ("image", "log", "quorum", "controller/partitions", "controller", "."),
    "coordinator": ("runtime", "transactions", "share", "groups/assignors", "groups/state",
                    "groups/classic", "groups/consumer", "groups/streams", "groups/share",
                    "groups"),
    "api": ("handler", "versions", "security", "cluster", "groups", "data", "authorization", "."),
    "client": ("errors", "extras", "arguments", "callbacks", "types", "generics", "interfaces",
               "options", "columns", "serialization", "blocking", "config", "background_loop",
               "shutdown", "network", "telemetry", "consumer", "producer", "share", "admin", "aio",
               "spark", "docs", "."),
    "console": ("groups", "clusters", "pages", "rendering", "listings", "audit", "session",
                "oidc", "trusted_proxy", "values", "records", "permissions", "app", ".", "views",
                "serving"),
    "registry": ("formats", "errors", "subjects", "records", "contracts", "store",
                 "write_gate", "compatibility", "parsed_schemas", "topic", "access", "audit",
                 "http", "negotiation", "registry", "bodies", "routes", "application", ".",
                 "serving"),
    "tools": ("cli", "records", "segments", "topics", "groups", "cluster", "security", "host",
              "app", "."),
    "_native": ("protocol", "records", "log", "server", "client"),
}
# More modules make a folder hard to read.
FOLDER_MODULES = 20
# Folders with more. The list only gets shorter.
CROWDED: set[str] = set()
# Folders whose files are checked for cycles and for names.
CHECKED = ("pylog", "bench")
# Endings that do not tell two modules of a folder apart.
ENDINGS = ("ment", "ing", "ion", "ed", "er", "s")
STEM_CHARACTERS_MIN = 3
# Folders of csrc/; `columns` is what only a client needs.
C_ORDER = (("format",), ("os",), ("segment", "columns"), ("log",), ("log_manager",),
           ("compaction", "tables", "transport"), ("serve",), ("net",), ("replica",))
C_RANKS = {name: rank for rank, names in enumerate(C_ORDER) for name in names}
_C_INCLUDE = re.compile(r'^#include "([^"]+)"')
_CYTHON_IMPORT = re.compile(
    r"^\s*(?:from\s+(?P<source>[.\w]+)\s+c?import\s+(?P<names>.+)|c?import\s+(?P<plain>[.\w, ]+))")


def part_of(path: PurePath) -> str:
    """Return the layer of a file below pylog/: its package, or its stem; "" for pylog itself."""
    inside = path.parts[path.parts.index("pylog") + 1:]
    if len(inside) > 1:
        return inside[0]
    return "" if inside[0] == "__init__.py" else inside[0].rpartition(".")[0]


def imported(path: PurePath, text: str):
    """Yield (line, dotted name) of each imported name, relative names made absolute."""
    for line, whole, names in sources(path, text):
        # In `from pylog import x`, x is the module.
        for name in names if whole == "pylog" else [""]:
            yield line, f"{whole}.{name}".rstrip(".")


def sources(path: PurePath, text: str):
    """Yield (line, dotted name, [names, or ""]) of each import, names made absolute."""
    parts = path.parts
    package = list(parts[parts.index("pylog") if "pylog" in parts else 0:-1])
    found = _of_python(text) if path.suffix == ".py" else _of_cython(text)
    for line, source, names in found:
        level = len(source) - len(source.lstrip("."))
        base = package[:len(package) - level + 1] if level else []
        yield line, ".".join([*base, *filter(None, [source.lstrip(".")])]), names


def upward(path: PurePath, text: str):
    """Yield (line, message) of each import of a package that is not below the module's."""
    own = part_of(path)
    for line, name in imported(path, text):
        parts = name.split(".")
        if parts[0] != "pylog" or len(parts) < 2 or not own or parts[1] == own:
            continue
        if parts[1].startswith("__"):
            continue
        if own not in RANKS or parts[1] not in RANKS:
            missing = own if own not in RANKS else parts[1]
            yield line, f"{missing} has no rank in tests/checks/layers.py"
        elif RANKS[parts[1]] >= RANKS[own]:
            yield line, f"{own} imports {name}, which is not below it"


def inside(path: PurePath, text: str):
    """Yield (line, file, module) of each import against the order inside a package."""
    package = part_of(path)
    ranks = {place: rank for rank, place in enumerate(INSIDE.get(package, ()))}
    own = path.parts[path.parts.index("pylog") + 2:]
    if not ranks or own == ("__init__.py",):
        return
    here = _place(ranks, PurePath(*own).with_suffix("").parts)
    for line, source, names in sources(path, text):
        if source != f"pylog.{package}" and not source.startswith(f"pylog.{package}."):
            continue
        for name in names:
            parts = [*source.split("."), *filter(None, [name])]
            there = _place(ranks, parts[2:])
            if there != here and ranks.get(there, -1) >= ranks.get(here, len(ranks)):
                module = name and source == f"pylog.{package}" and not name[:1].isupper()
                yield line, str(path), f"{source}.{name}" if module else source


def _place(ranks: dict[str, int], parts) -> str:
    """Return the longest path that has a rank."""
    for count in range(len(parts), 0, -1):
        if "/".join(parts[:count]) in ranks:
            return "/".join(parts[:count])
    return "."


def crowded(paths):
    """Yield (folder, count of modules) of each folder of pylog/ with too many, exceptions included.
    """
    modules = {(str(path.parent), path.stem) for path in paths
               if path.parts[0] == "pylog" and path.suffix in {".py", ".pyx"}
               and path.name != "__init__.py"}
    for folder, count in sorted(Counter(folder for folder, _ in modules).items()):
        if count > FOLDER_MODULES:
            yield folder, count


def cycles(texts: dict[PurePath, str]) -> set[frozenset[str]]:
    """Return the import cycles among files of CHECKED, as sets of paths.

    texts: path -> content. An import inside a function or for type checkers counts too.
    """
    modules = {}
    for path in texts:
        if path.parts[0] in CHECKED and path.suffix in {".py", ".pyx"}:
            name = ".".join(path.with_suffix("").parts)
            modules[name.removesuffix(".__init__")] = path
    edges = {path: _imported_files(path, texts[path], modules) for path in modules.values()}
    return {frozenset(map(str, group)) for group in _components(edges) if len(group) > 1}


def _imported_files(path: PurePath, text: str, modules: dict[str, PurePath]) -> set[PurePath]:
    found = set()
    for _, source, names in sources(path, text):
        for name in names:
            module = modules.get(f"{source}.{name}") or modules.get(source)
            if module is not None and module != path:
                found.add(module)
    return found


def _components(edges: dict[PurePath, set[PurePath]]) -> list[list[PurePath]]:
    """Return the strongly connected components of a graph (Tarjan)."""
    numbers: dict[PurePath, int] = {}
    lowest: dict[PurePath, int] = {}
    stack: list[PurePath] = []
    components = []

    def visit(node: PurePath) -> None:
        numbers[node] = lowest[node] = len(numbers)
        stack.append(node)
        for other in sorted(edges[node]):
            if other not in numbers:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], numbers[other])
        if lowest[node] == numbers[node]:
            at = stack.index(node)
            components.append(stack[at:])
            del stack[at:]

    for node in sorted(edges):
        if node not in numbers:
            visit(node)
    return components


def c_cycles(texts: dict[PurePath, str]) -> set[frozenset[str]]:
    """Return the cycles of calls among files of csrc/, as sets of paths. texts: path -> content."""
    return {frozenset(map(str, group)) for group in _components(c_calls.calls(texts))
            if len(group) > 1}


def twins(paths):
    """Yield (folder, modules) of modules in one folder whose names differ only in their endings."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in paths:
        if path.parts[0] in CHECKED and path.suffix in {".py", ".pyx"}:
            found.setdefault((str(path.parent), _stem(path.stem)), set()).add(path.stem)
    for (folder, _), modules in sorted(found.items()):
        if len(modules) > 1:
            yield folder, sorted(modules)


def _stem(name: str) -> str:
    for ending in ENDINGS:
        if name.endswith(ending) and len(name) - len(ending) >= STEM_CHARACTERS_MIN:
            return _stem(name.removesuffix(ending))
    return name


def out_of_tree_order(path: PurePath, text: str):
    """Yield (line, message) of each import against the order of the folders at the top."""
    own = path.parts[0]
    if own not in TREE:
        return
    above = TREE[TREE.index(own) + 1:]
    for line, source, _ in _of_python(text):
        if source.partition(".")[0] in above:
            yield line, f"{own} imports {source}, which is not below it"


def c_upward(path: PurePath, text: str):
    """Yield (line, header, message) of each include of a folder that is not below the file's
    folder.
    """
    own = path.parts[1]
    for line, include in enumerate(text.split("\n"), 1):
        match = _C_INCLUDE.match(include)
        if match is None:
            continue
        folder, _, name = match[1].rpartition("/")
        if own not in C_RANKS or folder not in C_RANKS:
            yield line, match[1], f"{match[1]} has no rank in tests/checks/layers.py"
        elif folder != own and C_RANKS[folder] >= C_RANKS[own]:
            yield line, match[1], f"{own} includes {match[1]}, which is not below it"


@functools.cache
def _of_python(text: str) -> list[tuple[int, str, list[str]]]:
    """Return (line, source, names) of each import. Several checks read each file."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            found.append((node.lineno, source, [alias.name for alias in node.names]))
        elif isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, [""]) for alias in node.names]
    return found


def _of_cython(text: str):
    for number, line in enumerate(text.split("\n"), 1):
        match = _CYTHON_IMPORT.match(line)
        if match and match["source"]:
            yield number, match["source"], re.findall(r"\w+", match["names"].split("#")[0])
        elif match:
            for name in match["plain"].split(","):
                yield number, name.split()[0], [""]
