"""Each `while` loop of a coroutine of the client yields to the event loop in every iteration.

One event loop serves all clients of a process: a busy loop stops all of them.
"""

import ast
import pathlib
import textwrap
from collections.abc import Container

import pytest

import pylog.client

ROOT = pathlib.Path(pylog.client.__file__).parent

# Awaits that always yield, with a reason if it is not obvious.
YIELDING = {
    "asyncio.sleep": "",
    "asyncio.wait": "its tasks are new, or it removes those that are done",
    "self._wakeup": "a new future",
    "self.poll": "an asynchronous iterator's; poll() yields before it returns",
    "self._fetch": "sends a request and waits for the response, or raises",
    "connection.send": "waits for a response",
    "self._wait": "in the fetcher, which has just cleared the event",
    "self._join": "sends JoinGroup and waits for the response, or raises",
    "self._sleep": "in ConsumerMembership, it clears its event: the next one yields",
}

# Loops that the analysis reports although they yield or end: (coroutine, reason).
EXCEPTIONS = {
    "Producer.send": "metadata that is there, or new room in the buffer, ends the loop",
    "ConsumerMembership._beat": "the inner loop, which yields, runs when the outer one is late",
    "ClassicMembership.run_pending_work":
        "MEMBER_ID_REQUIRED, which is retried at once, is a response",
}


class Loop:
    """Finds the paths through a loop's body that run it again, and if each of them has yielded."""

    def __init__(self, yielding: Container[str]):
        self.yielding = yielding
        self.cleared: set[str] = set()  # Events cleared since the last await.

    def spins(self, loop: ast.While) -> bool:
        """Return True if a path through the body runs the loop again without yielding."""
        after, again, _ = self.block(loop.body, {self.yields(loop.test)})
        return False in after | again

    def yields(self, node: ast.AST | None) -> bool:
        """Return True if the evaluation of an expression always yields."""
        if node is None or isinstance(node, (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        if isinstance(node, ast.IfExp):
            return self.yields(node.test) or (
                self.yields(node.body) and self.yields(node.orelse))
        if isinstance(node, ast.BoolOp):
            return self.yields(node.values[0])
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True  # The caller runs.
        if isinstance(node, ast.Await) and isinstance(node.value, ast.Call):
            name = ast.unparse(node.value.func)
            if name in self.yielding or self.waits(name):
                return True
        return any(self.yields(child) for child in ast.iter_child_nodes(node))

    def waits(self, name: str) -> bool:
        """Return True for the wait() of an event that the loop has just cleared."""
        return name.endswith(".wait") and name.removesuffix(".wait") in self.cleared

    def block(self, body: list[ast.stmt], states: set[bool]
              ) -> tuple[set[bool], set[bool], set[bool]]:
        """Return (states at the end, at `continue`, at `break`) of statements that begin in
        `states`.
        """
        again: set[bool] = set()
        left: set[bool] = set()
        for statement in body:
            states, continued, broken = self.statement(statement, states)
            again |= continued
            left |= broken
        return states, again, left

    def statement(self, node: ast.stmt, states: set[bool]
                  ) -> tuple[set[bool], set[bool], set[bool]]:
        if isinstance(node, ast.Continue):
            return set(), states, set()
        if isinstance(node, ast.Break):
            return set(), set(), states
        if isinstance(node, (ast.Return, ast.Raise)):
            return set(), set(), set()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return states, set(), set()
        if isinstance(node, ast.If):
            states = self.after(node.test, states)
            return joined(self.block(node.body, states), self.block(node.orelse, states))
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            # The body may not run. A `continue` or `break` in it belongs to this inner loop.
            entry = states if isinstance(node, ast.While) else self.after(node.iter, states)
            after, again, left = self.block(node.body, entry)
            ended, *outer = self.block(node.orelse, entry | after | again)
            is_endless = isinstance(node, ast.While) and ast.unparse(node.test) == "True"
            return (left if is_endless else ended | left), *outer
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                states = self.after(item.context_expr, states)
            return self.block(node.body, states)
        if isinstance(node, (ast.Try, ast.TryStar)):
            return self.tried(node, states)
        if isinstance(node, ast.Match):
            found = (states, set(), set())
            for case in node.cases:
                found = joined(found, self.block(case.body, self.after(node.subject, states)))
            return found
        after = self.after(node, states)
        text = ast.unparse(node)
        if text.endswith(".clear()"):
            self.cleared.add(text.removesuffix(".clear()"))
        elif any(isinstance(child, ast.Await) for child in ast.walk(node)):
            self.cleared.clear()
        return after, set(), set()

    def tried(self, node: ast.Try | ast.TryStar, states: set[bool]
              ) -> tuple[set[bool], set[bool], set[bool]]:
        """An exception may occur before anything in the body has yielded."""
        found = self.block(node.body, states)
        if node.orelse:
            after, again, left = self.block(node.orelse, found[0])
            found = after, found[1] | again, found[2] | left
        for handler in node.handlers:
            found = joined(found, self.block(handler.body, states | found[0]))
        if not node.finalbody:
            return found
        paths = [self.block(node.finalbody, part)[0] if part else set() for part in found]
        return paths[0], paths[1], paths[2]

    def after(self, node: ast.AST | None, states: set[bool]) -> set[bool]:
        return {True} if states and self.yields(node) else states


def joined(*found: tuple[set[bool], set[bool], set[bool]]
           ) -> tuple[set[bool], set[bool], set[bool]]:
    return (set().union(*(part[0] for part in found)), set().union(*(part[1] for part in found)),
            set().union(*(part[2] for part in found)))


def spinning(source: str, yielding: Container[str] = YIELDING) -> list[tuple[str, int]]:
    """Return (coroutine, line) of each loop that may run again without yielding."""
    found = []

    def visit(node: ast.AST, names: tuple[str, ...], is_coroutine: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                visit(child, (*names, child.name), isinstance(child, ast.AsyncFunctionDef))
                continue
            if is_coroutine and isinstance(child, ast.While) and Loop(yielding).spins(child):
                found.append((".".join(names), child.lineno))
            visit(child, names, is_coroutine)

    visit(ast.parse(source), (), False)
    return found


def test_each_loop_of_a_coroutine_of_the_client_yields():
    found = {name: f"{path.name}:{line}" for path in sorted(ROOT.rglob("*.py"))
             for name, line in spinning(path.read_text())}
    assert {name: at for name, at in found.items() if name not in EXCEPTIONS} == {}
    assert found.keys() == EXCEPTIONS.keys()  # No exception is outdated.


SPINS = {
    "an event that stays set": "await self.kick.wait()",
    "a path without an await": "if ready:\n    continue\nawait asyncio.sleep(1)",
    "a handler": "try:\n    await asyncio.sleep(f())\nexcept ValueError:\n    pass",
    "an inner loop that may not run":
        "for item in items:\n    await asyncio.sleep(0)\nself.step()",
    "half of a condition": "await asyncio.sleep(0) if slow else None",
    "another await before the wait": "event.clear()\nawait self.work()\nawait event.wait()",
}
YIELDS = {
    "a sleep": "await asyncio.sleep(0)",
    "an event that was cleared": "event.clear()\nself.step()\nawait event.wait()",
    "an event with a time limit":
        "event.clear()\nasync with asyncio.timeout(1):\n    await event.wait()",
    "every path": "if ready:\n    await asyncio.sleep(0)\nelse:\n    await asyncio.sleep(1)",
    "the path that goes on": "if done:\n    return\nawait asyncio.sleep(1)",
    "a handler that leaves":
        "try:\n    await asyncio.sleep(1)\nexcept ValueError:\n    break",
    "a finally": "try:\n    self.step()\nfinally:\n    await asyncio.sleep(0)",
}


def within_a_loop(body: str) -> str:
    return "async def f(self):\n    while True:\n" + textwrap.indent(body, " " * 8)


@pytest.mark.parametrize("body", SPINS.values(), ids=SPINS)
def test_a_loop_that_may_spin_is_found(body):
    assert spinning(within_a_loop(body)) == [("f", 2)]


@pytest.mark.parametrize("body", YIELDS.values(), ids=YIELDS)
def test_a_loop_that_yields_is_not_reported(body):
    assert spinning(within_a_loop(body)) == []
