"""Statements that record their execution, inserted between those of a source text.

Owns: nothing.
Invariants: a probed text behaves like the original; a probe covers the statement after it, and the
  following statements up to the next probe.
"""

import ast
import re

from tests.mutants import c_sites

CELLS = 1 << 17
# These files exist only in copies of the tree.
C_HEADER = "/".join(("csrc", "os", "reach.h"))
PYTHON_MODULE = "/".join(("pylog", "reach.py"))
FILE_VARIABLE = "PYLOG_REACH"
# Weak and hidden: one copy in every extension and program, whatever sources they contain.
C_TEXT = """#pragma once
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#define REACHED(cell) __atomic_store_n(&reach_cells[cell], 1, __ATOMIC_RELAXED)
__attribute__((weak, visibility("hidden"))) unsigned char reach_none[CELLS];
__attribute__((weak, visibility("hidden"))) unsigned char *reach_cells = reach_none;
__attribute__((weak, visibility("hidden"), constructor)) void reach_open(void) {
    const char *path = getenv("VARIABLE");
    if (reach_cells != reach_none || path == NULL) return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *map = mmap(NULL, sizeof reach_none, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED) reach_cells = map;
}
""".replace("CELLS", str(CELLS)).replace("VARIABLE", FILE_VARIABLE)
PYTHON_TEXT = f"""import mmap
import os

if "{FILE_VARIABLE}" in os.environ:
    with open(os.environ["{FILE_VARIABLE}"], "r+b") as file:
        cells = mmap.mmap(file.fileno(), {CELLS})
else:
    cells = bytearray({CELLS})
"""
_BEGINS = re.compile(r"(?!(?:else|case|default)\b)[A-Za-z_*(+-]")


def probed(path: str, text: str, first: int) -> tuple[str, list[tuple[int, int]]]:
    """Return the text with probes, and for each probe the lines it covers (1-based, inclusive).

    first: the number of the first probe.
    """
    return (_python if path.endswith(".py") else _c)(text, first)


class _Prober(ast.NodeTransformer):
    """Inserts a probe before each statement inside functions."""

    def __init__(self, first: int):
        self.first = first
        self.depth = 0
        self.lines: list[tuple[int, int]] = []

    def _function(self, node):
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self.depth:
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list) and block:
                    setattr(node, name, self._block(node, name, block))
        return node

    def _block(self, node: ast.AST, name: str, block: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        is_function = name == "body" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for statement in block:
            first = statement is block[0]
            if first and is_function and isinstance(statement, ast.Expr) \
                    and isinstance(statement.value, ast.Constant):
                made.append(statement)
                continue
            if not isinstance(statement, (ast.Global, ast.Nonlocal)):
                begin = statement.lineno
                if is_function and not any(isinstance(one, ast.Assign) for one in made):
                    begin = min(node.lineno, begin)  # default values precede the body
                cell = self.first + len(self.lines)
                self.lines.append((begin, self._last_line(statement)))
                made.append(ast.parse(f"reach_cells[{cell}] = 1").body[0])
            made.append(statement)
        return made

    def _last_line(self, statement: ast.stmt) -> int:
        """Return the last line that always runs: a nested block has its own probes."""
        inner = [block[0].lineno for name in ("body", "orelse", "finalbody", "handlers", "cases")
                 if (block := getattr(statement, name, None)) and hasattr(block[0], "lineno")]
        return max(statement.lineno, min(inner) - 1) if inner else statement.end_lineno


def _python(text: str, first: int) -> tuple[str, list[tuple[int, int]]]:
    tree = ast.parse(text)
    prober = _Prober(first)
    prober.visit(tree)
    at = 0
    while at < len(tree.body) and (
            isinstance(tree.body[at], ast.Expr) or
            isinstance(tree.body[at], ast.ImportFrom) and tree.body[at].module == "__future__"):
        at += 1
    if prober.lines:
        tree.body.insert(at, ast.parse("from pylog.reach import cells as reach_cells").body[0])
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n", prober.lines


def _c(text: str, first: int) -> tuple[str, list[tuple[int, int]]]:
    code = c_sites.blanked(text)
    places = [at for low, high in c_sites.functions(code) for at in _statements(code, low, high)]
    places.sort()
    made, lines, before = [], [], 0
    for number, at in enumerate(places):
        made += [text[before:at], f"REACHED({first + number}); "]
        before = at
        line = text.count("\n", 0, at) + 1
        if lines:
            lines[-1] = (lines[-1][0], max(lines[-1][0], min(lines[-1][1], line - 1)))
        end = next((high for low, high in c_sites.functions(code) if low <= at <= high), at)
        lines.append((line, text.count("\n", 0, end) + 1))
    return f'#include "os/reach.h"\n{"".join(made)}{text[before:]}', lines


def _statements(code: str, low: int, high: int) -> list[int]:
    """Return the statements that begin a line. low, high: the body of a function."""
    found: list[int] = []
    stack = [True]  # True for each open brace that contains statements
    round_depth = 0
    last = "{"
    at = low
    while at < high:
        sign = code[at]
        if sign.isspace():
            at += 1
            continue
        line_begin = code.rfind("\n", 0, at) + 1
        if not code[line_begin:at].strip() and stack[-1] and round_depth == 0 \
                and last in "{};" and _BEGINS.match(code, at) and not _ends_do(code, at):
            found.append(at)
        if sign == "{":
            before = code[:at].rstrip()
            word = re.search(r"\w+$", before)
            is_block = stack[-1] and round_depth == 0 and (
                bool(word) and word.group() in ("else", "do")
                or before[-1] in ";{}" or before[-1] == ")" and _is_head(before))
            stack.append(is_block)
        elif sign == "}":
            stack.pop()
        elif sign in "([":
            round_depth += 1
        elif sign in ")]":
            round_depth -= 1
        last = sign
        at += 1
    return found


def _ends_do(code: str, at: int) -> bool:
    """Return True for a `while` without a body: the end of `do`."""
    return code.startswith("while (", at) and code[c_sites.closing(code, at + 6)] == ";"


def _is_head(before: str) -> bool:
    """Return True if the last bracket belongs to if, for or while, not to switch or a cast."""
    depth = 0
    for at in range(len(before) - 1, -1, -1):
        if before[at] == ")":
            depth += 1
        elif before[at] == "(":
            depth -= 1
            if depth == 0:
                return bool(re.search(r"\b(?:if|for|while)\s*$", before[:at]))
    return False
