"""Integer constants of Python and Cython that repeat a constant of C.

Owns: the list of constants that share a name and a value by coincidence.
Invariants: a value that both languages need is written only in C: Python imports it from the
  extension module, which reads it through csrc.pxd.
"""

import ast
import operator
import re
from pathlib import PurePath

# Constants of Python with a different meaning than the constant of C with that name and value.
COINCIDENCES = {
    "pylog/_native/encode.pxd:PIECES_MAX": "pieces of an encoder, not of a connection's output",
    "pylog/config/client_quotas.py:NS_PER_MS": "a unit, which cannot change",
    "pylog/coordinator/runtime/snapshot_writer.py:THREADS":
        "threads that save shards, not flushers",
    "pylog/log/topic_branches.py:ATTEMPTS":
        "of linking segments, not of reading aborted transactions",
    "pylog/log/log_directories.py:PROBE_BYTES": "of a disk probe, not of a segment's index",
    "pylog/peer/dial.py:SIZE_BYTES": "the frame length of Kafka's protocol; its import from the "
                                     "reactor would load that into every tool",
}
# Files whose numbers a test compares with those of C.
COMPARED = {"pylog/protocol/api.py": "tests/native/test_api_keys.py"}
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
    """Yield (path, line, message) of each repeated constant below pylog/. texts: of all sources."""
    known = of_c(texts)
    for path, text in texts.items():
        if path.parts[0] != "pylog" or path.suffix not in {".py", ".pyx", ".pxd"} \
                or str(path) in COMPARED:
            continue
        for line, name, value in of_python(path, text):
            found = known.get((name.lstrip("_"), value))
            if found is not None and f"{path}:{name}" not in COINCIDENCES:
                yield str(path), line, f"{name} repeats {found}: import it from the native module"


def of_c(texts: dict[PurePath, str]) -> dict[tuple[str, int], str]:
    """Return (name, value) -> the constant of C, for its name with and without its module's prefix.
    """
    written = [(path, name, value) for path, text in texts.items()
               if path.parts[0] == "csrc" for name, value in _written(_COMMENT.sub(" ", text))]
    terms = {name: value for _, name, value in written}
    found = {}
    for path, name, text in written:
        value = _value_of_c(text, terms)
        if value is not None:
            for short in (name, *_without_prefix(path, name)):
                found.setdefault((short, value), f"{name} of {path}")
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


def of_python(path: PurePath, text: str):
    """Yield (line, name, value) of each integer constant of a module or a class."""
    known: dict[str, int] = {}
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
                    yield line, name.id, number


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
