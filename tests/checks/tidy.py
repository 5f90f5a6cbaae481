"""The rules of the code that a program can check: `python -m tests.checks.tidy`, `make tidy`.

Owns: nothing.
Invariants: a rule is checked from the text, without importing the checked module.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path, PurePath

from tests.checks import asserts, c_calls, constants, layers, walks

ROOT = Path(__file__).resolve().parents[2]
LINE_COLUMNS = 100
# Lengths are reported, not enforced: see long_functions_and_files().
FUNCTION_LINES = 60
FILE_LINES = 600
SOURCES = {".py", ".pyx", ".pxd", ".pyi", ".c", ".h"}
# Declarative tables may be long.
TABLES = {"pylog/config/kafka_settings.py", "pylog/monitor/metrics.py", "pylog/protocol/errors.py",
          "csrc/format/crc32c_table.h"}
EMPTY_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "base"}
CLOCK_READERS = {"pylog/broker/broker.py", "pylog/cli.py", "pylog/testing/clock.py",
                 "pylog/testing/data_directories.py", "pylog/testing/topics.py"}
CLOCK_PACKAGES = ("pylog/client/", "pylog/tools/")
CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns",
          "clock_gettime", "clock_gettime_ns", "sleep"}
# Background work of these packages is not part of the broker.
UNSUPERVISED_PACKAGES = ("pylog/client/", "pylog/spark/", "pylog/testing/", "pylog/tools/")
STARTERS = {"create_task", "ensure_future", "Thread"}
# path:function of each task or thread that runs without pylog.supervisor, and how its end is
# handled.
OWN_SUPERVISION = {
    "pylog/api/groups/classic.py:delete_groups": "the response awaits it",
    "pylog/broker/broker.py:begin": "_task_ended() stops the broker",
    "pylog/broker/process.py:_serve": "awaited below",
    "pylog/broker/process.py:_begun": "awaited below",
    "pylog/coordinator/runtime/broker_client.py:_call_unless_fenced": "awaited below",
    "pylog/coordinator/runtime/internal_topic.py:ensure": "awaited below",
    "pylog/metadata/controller_service.py:_run_election": "awaited below",
    "pylog/metadata/controller_service.py:start_election": "Broker._task_ended() stops the broker",
    "pylog/metadata/quorum/etcd_process.py:start": "_keep() catches, logs and restarts",
    "pylog/eventloop/threads.py:whole": "awaited below",
    "pylog/metadata/quorum/voter_status.py:states": "awaited below",
    "pylog/registry/access.py:_check": "awaited below",
    "pylog/replication/channel.py:_rest": "awaited below",
    "pylog/replication/channel.py:_sleep": "awaited below",
    "pylog/replication/channel.py:send": "awaited below",
}
HEAD = ("Owns:", "Invariants:")
UNFINISHED = re.compile(r"\b(TO" "DO|FIX" "ME|XX" r"X|NotImplemented" r"Error)\b")
CYTHON_RULES = (
    (re.compile(r"^\s*include\s+[\"']"), "include: declare in a .pxd instead"),
    (re.compile(r"^\s*(DEF|IF|ELIF|ELSE)\b"), "DEF and IF are deprecated"),
    (re.compile(r"\bvoid\b[^#]*\bexcept\s*\*"), "void `except *` takes the GIL at every call"),
    (re.compile(r"^\s*except\s*:"), "bare except"),
)
_PYX_DEF = re.compile(r"^(\s*)(?:async\s+def|cpdef|cdef|def)\b.*\(")


def check(root: Path = ROOT):
    """Return (path, line, message) of every rule violation in the tree of `root`."""
    texts = {}
    for name in tracked(root):
        path = PurePath(name)
        if path.suffix == ".pxi":
            yield name, 1, ".pxi: declare in a .pxd instead"
        if path.suffix in SOURCES:
            texts[path] = text = (root / name).read_text()
            for line, message in sorted(check_text(path, text)):
                yield name, line, message
    yield from ((folder, 1, f"{count} modules, at most {layers.FOLDER_MODULES}")
                for folder, count in layers.crowded(texts) if folder not in layers.CROWDED)
    yield from ((group[0], 1, f"import cycle: {', '.join(group)}")
                for group in sorted(map(sorted, layers.cycles(texts))))
    yield from ((group[0], 1, f"cycle of calls: {', '.join(group)}")
                for group in sorted(map(sorted, layers.c_cycles(texts))))
    yield from ((folder, 1, f"{name}() is static in {' and '.join(files)}: name one by its file")
                for folder, name, files in c_calls.shared_names(texts)
                if (folder, name) not in c_calls.SHARED_NAMES)
    yield from ((file, 1, f"may not include {header}")
                for file, header in c_calls.foreign_internals(texts))
    yield from ((file, 1, message) for file, message in walks.broken(texts))
    yield from ((folder, 1, f"{' and '.join(modules)} differ only in their endings")
                for folder, modules in layers.twins(texts))
    yield from asserts.too_few(texts)
    yield from constants.repeated(texts)


def tracked(root: Path) -> list[str]:
    """Return the tracked files, and untracked ones that git does not ignore."""
    done = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, check=True,
                          capture_output=True, text=True)
    return [name for name in done.stdout.splitlines() if (root / name).is_file()]


def check_text(path: PurePath, text: str):
    """Yield (line, message) of rule violations in one file, whose path is relative to the tree."""
    yield from _lines(path, text)
    if path.stem in EMPTY_NAMES:
        yield 1, f"the name {path.stem} says nothing: name the noun"
    if path.suffix in {".c", ".h"}:
        yield from _c_source(path, text)
        return
    if path.suffix == ".pyi":
        return
    tree = ast.parse(text) if path.suffix == ".py" else None
    if tree is None:
        yield from _cython(text)
    else:
        yield from _python(path, tree)
        yield from module_aliases(path, tree)
        yield from ((line, f"{name}() in {function}(): run it under pylog.supervisor")
                    for line, name, function in unsupervised(path, tree)
                    if f"{path}:{function}" not in OWN_SUPERVISION)
        yield from layers.out_of_tree_order(path, text)
    if path.parts[0] == "pylog":
        yield from layers.upward(path, text)
        yield from ((line, f"{file} imports {module}, which is not below it")
                    for line, file, module in layers.inside(path, text))
        if path.suffix != ".pxd":
            yield from _head(path, text)


def _lines(path: PurePath, text: str):
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_COLUMNS:
            yield number, f"{len(line)} columns, at most {LINE_COLUMNS}"
        if UNFINISHED.search(line):
            yield number, "something is left undone"


def _head(path: PurePath, text: str):
    """A module states what it owns; so does a package's __init__ that contains more than a
    docstring.
    """
    quoted = re.match(r'(?:#.*\n|\s)*(?:r)?"""(.*?)"""(.*)', text, re.DOTALL)
    if path.name == "__init__.py" and (not text.strip() or quoted and "import" not in quoted[2]):
        return
    missing = [word for word in HEAD if quoted is None or word not in quoted[1]]
    if missing:
        yield 1, f"the module head lacks {', '.join(missing)}"


def _python(path: PurePath, tree: ast.Module):
    may_read_clock = (path.parts[0] != "pylog" or str(path) in CLOCK_READERS
                      or str(path).startswith(CLOCK_PACKAGES))
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield node.lineno, "bare except"
        elif not may_read_clock:
            yield from _clock(node)


def module_aliases(path: PurePath, tree: ast.Module):
    """Yield (line, message) of each import that hides the name of a module or function of pylog.

    An alias may only repeat words of the module's path, to tell two modules of one name apart:
    `from pylog.coordinator.groups.share import heartbeat as share_heartbeat`.
    """
    if path.parts[0] != "pylog" or path.name == "__init__.py":
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("pylog"):
            continue
        for name in node.names:
            words = {word.rstrip("s") for word in re.split(r"[._]+", f"{node.module}.{name.name}")}
            # A constant may be named after its module: KIND of protobuf as PROTOBUF.
            if name.asname and not name.name.isupper() and not (
                    name.asname.endswith(name.name)
                    or {word.rstrip("s") for word in name.asname.split("_")} <= words
                    and len(name.asname.split("_")) > len(name.name.split("_"))):
                yield node.lineno, f"{name.asname} hides the name of {node.module}.{name.name}"


def unsupervised(path: PurePath, tree: ast.Module):
    """Yield (line, what starts it, function) of each task or thread of the broker without a
    supervisor.

    An exception that ends an unsupervised task is not reported.
    """
    if path.parts[0] != "pylog" or str(path) == "pylog/supervisor.py" \
            or str(path).startswith(UNSUPERVISED_PACKAGES):
        return
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        node, function = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        waiting += [(child, function) for child in ast.iter_child_nodes(node)]
        if isinstance(node, ast.Call) and _called(node) in STARTERS:
            inner = node.args[0] if node.args else None
            if not (isinstance(inner, ast.Call)
                    and ast.unparse(inner.func).startswith("supervisor.")):
                yield node.lineno, _called(node), function


def _called(call: ast.Call) -> str:
    """Return the last name of the called function."""
    return getattr(call.func, "attr", "") or getattr(call.func, "id", "")


def _clock(node: ast.AST):
    if isinstance(node, ast.ImportFrom) and node.module == "time":
        if CLOCKS & {alias.name for alias in node.names}:
            yield node.lineno, "the clock is passed in"
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        if node.value.id == "time" and node.attr in CLOCKS:
            yield node.lineno, f"time.{node.attr}: the clock is passed in"
        elif node.value.id in {"datetime", "date"} and node.attr in {"now", "utcnow", "today"}:
            yield node.lineno, f"{node.value.id}.{node.attr}: the clock is passed in"


def _cython(text: str):
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        for pattern, message in CYTHON_RULES:
            if pattern.search(line):
                yield number, message


def lengths(path: PurePath, text: str):
    """Yield (line, message) for a file or function that is long enough to deserve a second look.

    A report, not a rule: splitting code to satisfy a number makes it harder to read.
    """
    lines = text.split("\n")
    if len(lines) > FILE_LINES + 1 and str(path) not in TABLES:
        yield 1, f"{len(lines) - 1} lines (most files have fewer than {FILE_LINES})"
    for line, count in _functions(path, text, lines):
        if count > FUNCTION_LINES:
            yield line, f"a function of {count} lines (most have fewer than {FUNCTION_LINES})"


def _functions(path: PurePath, text: str, lines: list[str]):
    """Yield (line, length in lines) of each function of a source file."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.lineno, node.end_lineno - node.lineno + 1
    elif path.suffix == ".pyx":
        for number, line in enumerate(lines, 1):
            start = _PYX_DEF.match(line)
            if start:
                yield number, _indented(lines[number:], len(start[1]))
    elif path.suffix in {".c", ".h"}:
        yield from _c_functions(lines)


def _indented(rest: list[str], indent: int) -> int:
    """Return the number of lines of the block below a header of this indent, including the header.
    """
    length = last = 1
    for line in rest:
        length += 1
        stripped = line.strip()
        if stripped and len(line) - len(line.lstrip()) <= indent and stripped[0] not in ")#":
            break
        if stripped:
            last = length
    return last


def _c_source(path: PurePath, text: str):
    if not text.lstrip().startswith(("/*", "//")):
        yield 1, "the file opens with its contract or method"
    if path.parts[0] == "csrc":
        if "Python.h" in text:
            yield 1, "csrc/ knows no Python"
        yield from ((line, message) for line, _, message in layers.c_upward(path, text))


def _c_functions(lines: list[str]):
    """Yield (line, length) of each function: from a name at the margin to the brace at the margin.
    """
    start, opened = 0, False
    for number, line in enumerate(lines, 1):
        if not start and "(" in line and (line[0].isalpha() or line[0] == "_"):
            start, opened = number, False
        if start and not opened:
            if line.endswith(";"):
                start = 0
            opened = line.endswith("{")
        elif start and line.startswith("}"):
            yield start, number - start + 1
            start = 0


def report(root: Path = ROOT):
    """Yield (path, line, message) of every long file and function in the tree of `root`."""
    for name in tracked(root):
        path = PurePath(name)
        if path.suffix in SOURCES - {".pxd", ".pyi"}:
            for line, message in lengths(path, (root / name).read_text()):
                yield name, line, message


def main() -> int:
    """Print broken rules and exit with 1 if there are any; `--lengths` prints the length report."""
    if "--lengths" in sys.argv[1:]:
        print("".join(f"{name}:{line}: {message}\n" for name, line, message in report()), end="")
        return 0
    found = list(check())
    print("".join(f"{name}:{line}: {message}\n" for name, line, message in found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
