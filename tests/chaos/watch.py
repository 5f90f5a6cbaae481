"""The clients of a run: reports clients that fail or hang, and replaces them.

Owns: the clients, the reports about clients without progress.
Invariants: single hang: a client hangs only if other clients make progress, otherwise the cluster
  is stuck; client's fault: a hang is a problem unless the brokers answered all its requests and its
  replacement makes progress; new name: a replacement has its own name, so that late events of the
  old client stay separate.
"""

import sys
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

from tests.chaos.traces import Trace
from tests.chaos.writers import Client

HUNG_S = 120.0  # Longer than any timeout of a client.
FRESH_S = 15.0  # A client makes progress if its last progress is at most this old.
REPLACED_MAX = 8
SHOWN_MAX = 3
FRAMES_SHOWN_MAX = 4


class Role(NamedTuple):
    """A client's role. make: creates a client with a given name for this role."""

    name: str
    make: Callable[[str], Client]


def untraced(name: str) -> Trace | None:
    return None


class Crew:
    """The clients of a run.

    roles: one client for each. trace: returns the known requests of a client. say: prints a line.
    problems: failures of clients or brokers.
    """

    def __init__(self, roles: list[Role], say, trace=untraced, clock=time.monotonic,
                 hung_s: float = HUNG_S):
        self._say, self._trace, self._clock, self._hung_s = say, trace, clock, hung_s
        self._of = {role: role.make(role.name) for role in roles}
        self._own: list[str] = []
        # Hangs that are the client's own fault if the replacement makes progress.
        self._excused: list[tuple[str, Client]] = []
        self._since_s = clock()
        self._before: dict[Client, int] = {}
        self._replaced = 0
        self.problems: list[str] = []

    @property
    def clients(self) -> list[Client]:
        return list(self._of.values())

    def start(self) -> None:
        for client in self.clients:
            client.start()

    def mark(self) -> None:
        """Expect progress of every client from now on."""
        self._since_s = self._clock()
        self._before = {client: client.progress for client in self.clients}

    def waiting(self) -> list[str]:
        """Return the clients without progress since mark()."""
        return [client.name for client in self.clients
                if client.progress <= self._before.get(client, 0)]

    def replace_hung(self) -> int:
        """Report and replace clients that ended or hang. Return their number."""
        found = 0
        for role, client in self._of.items():
            if self._replaced >= REPLACED_MAX:
                break
            if client.failure is not None:
                self.problems.append(_ended(client))
                self._replace(role)
                found += 1
            elif others := self._hangs(client):
                sentence, is_own = self._described(client, others)
                successor = self._replace(role)
                if is_own:
                    self._excused.append((sentence, successor))
                else:
                    self.problems.append(sentence)
                found += 1
        return found

    def _hangs(self, client: Client) -> list[Client]:
        """Return clients that make progress while this one hangs, its own kind first.

        Return an empty list if it does not hang. Keeps the single hang.
        """
        now_s = self._clock()
        if now_s - max(client.went_on_s, self._since_s) < self._hung_s:
            return []
        others = [other for other in self.clients
                  if other is not client and now_s - other.went_on_s < FRESH_S]
        return sorted(others, key=lambda other: other.kind != client.kind)

    def _replace(self, role: Role) -> Client:
        hung = self._of[role]
        hung.is_abandoned = True
        hung.stopping.set()
        self._replaced += 1
        self._of[role] = successor = role.make(f"{role.name}.{self._replaced}")
        successor.start()
        return successor

    def _described(self, hung: Client, others: list[Client]) -> tuple[str, bool]:
        """Return a description, and True if it seems to be the client's own fault. Keeps the
        client's fault.
        """
        trace = self._trace(hung.name)
        went_on = ", ".join(other.name for other in others[:SHOWN_MAX]) or "nobody"
        sentence = (f"{hung.name} hangs for {self._clock() - hung.went_on_s:.0f} s and asked for "
                    f"{hung.asked} ({_at(hung)}) while {went_on} went on; "
                    + (trace.summary() if trace else "what it was answered is not known"))
        self._say(f"HUNG {sentence}")
        return sentence, bool(trace and not trace.unanswered()
                              and others and others[0].kind == hung.kind)

    def end(self, wait_s: float, is_last: Callable[[Client], bool]) -> None:
        """Stop all clients, those with `is_last` after the others.

        wait_s: for each of the two groups, and again for replacements of clients that do not stop.
        """
        for last in (False, True):
            chosen = [role for role, client in self._of.items() if is_last(client) == last]
            for role in chosen:
                self._of[role].stopping.set()
            self._join([self._of[role] for role in chosen], wait_s)
            self._finish(chosen, wait_s)
        self._of.clear()

    def _join(self, clients: list[Client], wait_s: float) -> None:
        end_s = self._clock() + wait_s
        for client in clients:
            client.join(max(end_s - self._clock(), 0.0))

    def _finish(self, roles: list[Role], wait_s: float) -> None:
        """Complete the work of failed or hung clients with replacements that do nothing else."""
        of = {role: self._of[role] for role in roles}
        left = {role: client for role, client in of.items()
                if client.is_alive() or client.failure is not None}
        ended = [client for role, client in of.items() if role not in left]
        successors = [self._replace(role) for role in left]
        for successor in successors:
            successor.stopping.set()
        self._join(successors, wait_s)
        for client, successor in zip(left.values(), successors, strict=True):
            if client.failure is not None:
                self.problems.append(_ended(client))
                continue
            others = sorted(ended, key=lambda other, kind=client.kind: other.kind != kind)
            sentence, is_own = self._described(client, others)
            if is_own and not successor.is_alive() and successor.failure is None:
                self._own.append(sentence)
            else:
                self.problems.append(sentence)

    def verdict(self) -> tuple[list[str], list[str]]:
        """Return (problems, hangs that are the clients' own fault)."""
        return ([*self.problems,
                 *(sentence for sentence, successor in self._excused if not successor.progress)],
                [*self._own,
                 *(sentence for sentence, successor in self._excused if successor.progress)])


def _ended(client: Client) -> str:
    return f"{client.name} ended as it asked for {client.asked}: {client.failure!r}"


def _at(client: Client) -> str:
    """Return the position of the client's thread in the code."""
    frame = sys._current_frames().get(client.ident or 0)
    if frame is None:
        return "not in Python"
    return " < ".join(f"{entry.name}:{entry.lineno}" for entry in
                      reversed(traceback.extract_stack(frame)[-FRAMES_SHOWN_MAX:]))
