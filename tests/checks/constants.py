"""Integer constants of Python and Cython that repeat or contradict a constant of C.

Owns: the lists of constants that share a name by coincidence, with the same or another value.
Invariants: a value that both languages need is written only in C: Python imports it from the
  extension module, which reads it through csrc.pxd.
"""

import ast
import functools
import operator
import re
from pathlib import PurePath

# Constants of Python with a different meaning than the constant of C with that name and value.
COINCIDENCES = {
    "pylog/_native/protocol/encode.pxd:PIECES_MAX":
        "pieces of an encoder, not of a connection's output",
    "pylog/config/client_quotas.py:NS_PER_MS": "a unit, which cannot change",
    "pylog/log/topic_branches.py:ATTEMPTS":
        "of linking segments, not of reading aborted transactions",
    "pylog/log/log_directories.py:PROBE_BYTES": "of a disk probe, not of a segment's index",
    "pylog/peer/dial.py:SIZE_BYTES": "the frame length of Kafka's protocol; its import from the "
                                     "reactor would load that into every tool",
}
# Constants of Python with a different meaning and value than the constant of C with that name.
DIFFERENT = {
    "pylog/_native/client/batch_builder.pyx:FULL": "a returned position, not a result of C",
    "pylog/_native/client/columns.pyx:LOG_APPEND_TIME": "a timestamp type, not the attribute's bit",
    "pylog/config/limits.py:INPUT_BYTES_MAX": "of the process, not a reactor's default",
    "pylog/coordinator/groups/metrics.py:STEP": "groups, not bytes that a reader skips",
    "pylog/coordinator/runtime/journal.py:BATCH_BYTES_MAX":
        "batches that the coordinator writes, not every valid batch",
    "pylog/replication/assignments.py:REPLICAS_MAX": "per request, not per partition",
    "pylog/share/dead_letters.py:HEADER_BYTES": "of a record's header, not of a batch",
    "pylog/testing/broker.py:PORT_ATTEMPTS": "starts of a broker, not binds of a listener",
    "pylog/client/admin/partition_offsets.py:FETCH_VERSION_MAX":
        "the last version that names topics, not the broker's last version",
    "pylog/tools/cluster/verify.py:FETCH_VERSION_MAX":
        "the last version that names topics, not the broker's last version",
    "pylog/tools/records/histogram.py:BUCKETS": "of a finer histogram than a meter's",
    "pylog/tools/segments/corrupt_ranges.py:WINDOW_BYTES": "of a damaged file, not of a scan",
}
# Names of limits that many modules have: another value counts only between files with one stem.
GENERIC = {"BYTES_MAX", "GROUPS_MAX", "PARTITIONS_MAX", "WAIT_MS_MAX"}
# Files whose numbers a test compares with those of C.
COMPARED = {"pylog/protocol/api.py": "tests/native/server/test_api_keys.py"}
_LIMITS = {f"{sign}INT{bits}_{end}": value for bits in (8, 16, 32, 64) for sign, end, value in (
    ("", "MAX", 2 ** (bits - 1) - 1), ("", "MIN", -(2 ** (bits - 1))), ("U", "MAX", 2**bits - 1))}
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.BitOr: operator.or_, ast.BitAnd: operator.and_, ast.Invert: operator.invert,
    ast.USub: operator.neg}
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([A-Z][A-Z0-9_]*)[ \t]+(\S.*)$", re.MULTILINE)
_ENUM = re.compile(r"\benum\b[^{;()]*\{(.*?)\}", re.DOTALL)
_CAST = re.compile(r"\((?:unsigned|size_t|int|long|u?int\d+_t)\)")
_SUFFIX = re.compile(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b")
_NAME = re.compile(r"_?[A-Z][A-Z0-9_]*")
_CYTHON = re.compile(r"_?[A-Z][A-Z0-9_]*(?:, _?[A-Z][A-Z0-9_]*)* = ")


def repeated(texts: dict[PurePath, str]):
    """Yield (path, line, message) of each constant below pylog/ that C has, with the same value or
    another one. texts: of all sources.
    """
    known = of_c(texts)
    for path, text in texts.items():
        if path.parts[0] != "pylog" or path.suffix not in {".py", ".pyx", ".pxd"} \
                or str(path) in COMPARED:
            continue
        for line, name, value in of_python(path, text):
            short, place = name.lstrip("_"), f"{path}:{name}"
            named = known.get(short, {})
            if value in named:
                if place not in COINCIDENCES:
                    yield str(path), line, (
                        f"{name} repeats {_described(named[value])}: import it from the native "
                        "module")
            elif place not in DIFFERENT:
                rivals = [f"{_described(found)} ({other})" for other, found in named.items()
                          if short not in GENERIC or found[1].stem == path.stem]
                if rivals:
                    yield str(path), line, (
                        f"{name} = {value} differs from {', '.join(rivals)}: import it from the "
                        "native module, rename it or list the difference in "
                        "tests/checks/constants.py")


def _described(found: tuple[str, PurePath]) -> str:
    return f"{found[0]} of {found[1]}"


def of_c(texts: dict[PurePath, str]) -> dict[str, dict[int, tuple[str, PurePath]]]:
    """Return name -> value -> the constant of C and its file, for the name with and without its
    module's prefix.
    """
    written = [(path, name, value) for path, text in texts.items()
               if path.parts[0] == "csrc" for name, value in _written(_COMMENT.sub(" ", text))]
    terms = {name: value for _, name, value in written}
    found: dict[str, dict[int, tuple[str, PurePath]]] = {}
    for path, name, text in written:
        value = _value_of_c(text, terms)
        if value is not None:
            for short in (name, *_without_prefix(path, name)):
                found.setdefault(short, {}).setdefault(value, (name, path))
    return found


def _written(text: str):
    """Yield (name, expression) of each macro and enumerator."""
    yield from _DEFINE.findall(text)
    for body in _ENUM.findall(text):
        before = "-1"
        for entry in body.split(","):
            name, _, value = (word.strip() for word in entry.partition("="))
            if _NAME.fullmatch(name):
                before = value or f"({before}) + 1"
                yield name, before


def _without_prefix(path: PurePath, name: str):
    """Yield the name without the file's stem, and without the first words of the stem."""
    words = path.stem.upper().split("_")
    for count in range(1, len(words) + 1):
        prefix = "_".join(words[:count]) + "_"
        if name.startswith(prefix):
            yield name.removeprefix(prefix)


def _value_of_c(text: str, terms: dict[str, str]) -> int | None:
    for _ in range(8):  # Names may refer to names, to a limited depth.
        text = _SUFFIX.sub(r"\1", _CAST.sub("", text))
        replaced = _NAME.sub(lambda name: f"({terms.get(name[0], name[0])})", text)
        if replaced == text or not _NAME.search(text):
            break
        text = replaced
    try:
        return _value(ast.parse(text.strip().replace("/", "//"), mode="eval").body, _LIMITS)
    except SyntaxError:
        return None


@functools.cache
def of_python(path: PurePath, text: str) -> list[tuple[int, str, int]]:
    """Return (line, name, value) of each integer constant of a module or a class."""
    known: dict[str, int] = {}
    found = []
    for line, node in _assignments(path, text):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts))
            for name, value in pairs:
                number = _value(value, known) if value is not None else None
                if isinstance(name, ast.Name) and _NAME.fullmatch(name.id) and number is not None:
                    known[name.id] = number
                    found.append((line, name.id, number))
    return found


def _assignments(path: PurePath, text: str):
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Module, ast.ClassDef)):
                for entry in node.body:
                    if isinstance(entry, (ast.Assign, ast.AnnAssign)):
                        yield entry.lineno, entry
        return
    for number, line in enumerate(text.split("\n"), 1):
        if _CYTHON.match(line.strip()):
            try:
                yield number, ast.parse(line.strip()).body[0]
            except SyntaxError:
                continue  # The expression continues in the next line, so it is not a plain number.


def _value(node: ast.AST, known: dict[str, int]) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        operand = _value(node.operand, known)
        return None if operand is None else _OPERATORS[type(node.op)](operand)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, known), _value(node.right, known)
        if left is None or right is None:
            return None
        if isinstance(node.op, ast.Pow):
            return left ** right if 0 <= right < 128 else None
        apply = _OPERATORS.get(type(node.op))
        return None if apply is None else apply(left, right)
    return None
