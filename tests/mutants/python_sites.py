"""Sites for mutations in a Python file, found in its syntax tree and changed in its text.

Owns: nothing.
Invariants: behaviour only: docstrings, annotations, asserts, logging and code under TYPE_CHECKING
  are never changed.
"""

import ast
import re

from tests.mutants.sites import COMPARISONS, Site, call_kind

_SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
          ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"}
_TURNED = {**COMPARISONS, "is": "is not", "is not": "is", "in": "not in", "not in": "in"}
_LOGS = re.compile(r"^(log|logger|_log|logging)\.")


def sites(path: str, text: str) -> list[Site]:
    """Return every site of a file, in the order of the text."""
    finder = _Finder(path, text)
    finder.visit(ast.parse(text))
    return sorted(finder.found, key=lambda site: (site.start, site.kind))


class _Finder(ast.NodeVisitor):
    """Collects sites inside functions."""

    def __init__(self, path: str, text: str):
        self.path = path
        self.text = text
        self.found: list[Site] = []
        self.depth = 0
        # Columns of the syntax tree count bytes of UTF-8, those of the text characters.
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        return (self.at(node.lineno, node.col_offset),
                self.at(node.end_lineno, node.end_col_offset))

    def add(self, kind: str, start: int, end: int, new: str) -> None:
        if self.depth:
            self.found.append(Site(self.path, kind, start, end, new))

    def between(self, left: ast.AST, right: ast.AST, sign: str) -> tuple[int, int] | None:
        """Return the span of an operator between two operands."""
        low, high = self.span(left)[1], self.span(right)[0]
        words = r"\s+".join(map(re.escape, sign.split()))
        found = re.search(rf"\b{words}\b" if sign[0].isalpha() else words, self.text[low:high])
        return None if found is None else (low + found.start(), low + found.end())

    # Nodes that are never changed. Keeps behaviour only.

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        pass

    def _function(self, node) -> None:
        self.depth += 1
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)
        for statement in node.body:
            self.visit(statement)
        self.depth -= 1

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_Expr(self, node: ast.Expr) -> None:
        inner = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(inner, ast.Constant):
            return  # a docstring
        if isinstance(inner, ast.Call):
            name = ast.unparse(inner.func)
            if _LOGS.match(name) or name.endswith("super().__init__"):
                return
            self.add(call_kind(name.rpartition(".")[2]), *self.span(node), "pass")
        self.generic_visit(node)

    # Nodes that are changed.

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for sign, right in zip(node.ops, node.comparators):
            name = _SIGNS[type(sign)]
            place = self.between(left, right, name)
            if place is not None:
                self.add("comparison", *place, _TURNED[name])
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:]):
            place = self.between(left, right, old)
            if place is not None:
                self.add("condition", *place, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start, end = self.span(node)
            self.add("condition", start, end, f"({self.text[self.span(node.operand)[0]:end]})")
        elif isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            if node.operand.value == 1:
                self.add("constant", *self.span(node), "0")  # all negative values mean the same
                return
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            return
        start, end = self.span(node.test)
        self.add("condition dropped", start, end, f"False and ({self.text[start:end]})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Skip minimum and maximum of two operands: how equal operands compare does not matter."""
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 \
                and isinstance(test.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) \
                and {ast.dump(test.left), ast.dump(test.comparators[0])} \
                == {ast.dump(node.body), ast.dump(node.orelse)}:
            for one in (test.left, test.comparators[0]):
                self.visit(one)
            return
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, (ast.Add, ast.Sub)):
            old, new = ("+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
            place = self.between(node.left, node.right, old)
            step = isinstance(node.right, ast.Constant) and node.right.value == 1
            if place is not None and step:
                self.add("off by one", place[0], self.span(node.right)[1], "")
            elif place is not None:
                self.add("arithmetic", *place, new)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.op, (ast.Add, ast.Sub)):
            old, new = ("+=", "-=") if isinstance(node.op, ast.Add) else ("-=", "+=")
            place = self.between(node.target, node.value, old)
            if place is not None:
                self.add("arithmetic", *place, new)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add("flag", *self.span(node), str(not node.value))
        elif isinstance(node.value, int):
            self.add("constant", *self.span(node), str(node.value + 1))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add("ignored error", *self.span(node), "pass")
