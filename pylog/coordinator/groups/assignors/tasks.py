"""Task assignment for Streams groups: active tasks and standby replicas.

Owns: nothing.
Invariants: each task is active on one member; a process holds the state of a task once; the number
  of active tasks per member differs by at most one between processes of the same size, as far as
  the previous assignment allows; a member keeps its tasks up to its fair share; the same input
  gives the same assignment.
Source: KIP-1071; Kafka's StickyTaskAssignor. Processes with the same load are ordered by name.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import NamedTuple

NAME = "sticky"

Task = tuple[str, int]  # (subtopology, partition)
Tasks = dict[str, frozenset[int]]  # Subtopology -> partitions.


class Assignment(NamedTuple):
    """The tasks of a member's target, or those that it reports."""

    active: Tasks = {}
    standby: Tasks = {}
    warmup: Tasks = {}


class Runner(NamedTuple):
    """A member, as input for the assignor. had: its previous target assignment."""

    id: str
    process: str
    had: Assignment


class Process:
    """Members that share a state directory. counts: member -> number of its tasks."""

    __slots__ = ("counts", "id", "tasks")

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.counts: dict[str, int] = {}
        self.tasks: set[Task] = set()

    @property
    def load(self) -> float:
        return len(self.tasks) / len(self.counts)

    def least(self) -> str:
        return min(self.counts, key=lambda member: (self.counts[member], member))


class Share:
    """The maximum number of tasks per member.

    Members that reach the maximum are removed, with their tasks, and the maximum is recalculated
    for the rest.
    """

    def __init__(self, tasks: int, members: int):
        self._tasks = tasks
        self._members = members
        self.most = _shared(tasks, members)

    def has(self, count: int) -> None:
        """Note that a member now has `count` tasks."""
        if count == self.most:
            self._members -= 1
            self._tasks -= count
            self.most = _shared(self._tasks, self._members)


def _shared(tasks: int, members: int) -> int:
    return -(-tasks // members) if members else 0


def assign(members: Iterable[Runner], tasks: Mapping[str, int], stateful: Iterable[str],
           standbys: int) -> dict[str, Assignment]:
    """Return {member: assignment}.

    tasks: subtopology -> number of tasks. stateful: subtopologies with state. standbys: standby
    replicas per stateful task, limited by the number of processes.
    """
    return _Assigning(sorted(members), tasks, frozenset(stateful), standbys).done()


class _Assigning:
    """The state of one assignment run."""

    def __init__(self, members: list[Runner], tasks: Mapping[str, int],
                 stateful: frozenset[str], standbys: int):
        self._stateful = stateful
        self._standbys = standbys
        self._tasks = [(id_, index) for id_ in sorted(tasks) for index in range(tasks[id_])]
        self._process_of = {member.id: member.process for member in members}
        self._processes: dict[str, Process] = {}
        self._ran: dict[Task, str] = {}
        self._retained: dict[Task, list[str]] = {}
        for member in members:
            self._processes.setdefault(
                member.process, Process(member.process)).counts[member.id] = 0
            for task in _tasks(member.had.active):
                self._ran[task] = member.id
            for task in _tasks(member.had.standby):
                self._retained.setdefault(task, []).append(member.id)
        copies = sum(tasks[id_] for id_ in stateful) * standbys
        self._active_share = Share(len(self._tasks), len(members))
        self._share = Share(len(self._tasks) + copies, len(members))
        self._active: dict[str, list[Task]] = {member.id: [] for member in members}
        self._standby: dict[str, list[Task]] = {member.id: [] for member in members}

    def done(self) -> dict[str, Assignment]:
        if self._processes:
            self._assign_active()
            if self._standbys:
                self._assign_standby()
        return {id_: Assignment(_by_subtopology(active), _by_subtopology(self._standby[id_]))
                for id_, active in self._active.items()}

    def _give(self, task: Task, member: str, is_active: bool) -> None:
        process = self._processes[self._process_of[member]]
        assert task not in process.tasks, (task, member)  # One copy per process.
        process.tasks.add(task)
        process.counts[member] += 1
        (self._active if is_active else self._standby)[member].append(task)
        if is_active:
            self._active_share.has(process.counts[member])
        self._share.has(process.counts[member])

    def _assign_active(self) -> None:
        """Assign active tasks: previous owners first, then standbys, then the least loaded."""
        left = sorted(self._tasks, key=lambda task: (task[1], task[0]))
        left = [task for task in left if not self._again(task, self._ran.get(task))]
        left = [task for task in left if not self._again(task, self._least_loaded(task))]
        queue = self._queue()
        for task in sorted(left):
            _, id_ = heapq.heappop(queue)
            process = self._processes[id_]
            self._give(task, process.least(), True)
            heapq.heappush(queue, (process.load, id_))

    def _again(self, task: Task, member: str | None) -> bool:
        """Assign an active task to `member` if it has room; return True if assigned."""
        if member is None or self._count(member) >= self._active_share.most:
            return False
        self._give(task, member, True)
        return True

    def _count(self, member: str) -> int:
        return self._processes[self._process_of[member]].counts[member]

    def _least_loaded(self, task: Task, without: bool = False) -> str | None:
        """Return the least loaded member that had a standby of the task.

        without: skip members whose process already has the task.
        """
        candidates = [member for member in self._retained.get(task, ()) if not (
            without and task in self._processes[self._process_of[member]].tasks)]
        return min(candidates, default=None, key=lambda member: (
            self._processes[self._process_of[member]].load, self._count(member), member))

    def _assign_standby(self) -> None:
        left: list[tuple[Task, int]] = []
        for task in sorted(self._tasks, key=lambda task: (task[1], task[0]), reverse=True):
            if task[0] not in self._stateful:
                continue
            open_ = self._standbys
            while open_ and self._keeps(task):
                open_ -= 1
            if open_:
                left.append((task, open_))
        queue = self._queue()
        for task, open_ in sorted(left, reverse=True):
            for _ in range(open_):
                self._to_least_loaded(task, queue)

    def _to_least_loaded(self, task: Task, queue: list[tuple[float, str]]) -> None:
        """Assign a standby to the least loaded process without the task, if there is one."""
        passed = []
        while queue:
            load, id_ = heapq.heappop(queue)
            process = self._processes[id_]
            if task not in process.tasks:
                self._give(task, process.least(), False)
                passed.append((process.load, id_))
                break
            passed.append((load, id_))
        for entry in passed:
            heapq.heappush(queue, entry)

    def _queue(self) -> list[tuple[float, str]]:
        queue = [(process.load, id_) for id_, process in self._processes.items()]
        heapq.heapify(queue)
        return queue

    def _keeps(self, task: Task) -> bool:
        """Keep a standby on a member with the task's state, if it has room; return True if kept."""
        ran = self._ran.get(task)
        for member in (ran, self._least_loaded(task, True)):
            if member is not None \
                    and task not in self._processes[self._process_of[member]].tasks \
                    and self._count(member) < self._share.most:
                self._give(task, member, False)
                return True
        return False


def _tasks(tasks: Mapping[str, Iterable[int]]) -> list[Task]:
    return [(id_, index) for id_, indexes in tasks.items() for index in indexes]


def _by_subtopology(tasks: Iterable[Task]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for id_, index in tasks:
        found.setdefault(id_, set()).add(index)
    return {id_: frozenset(found[id_]) for id_ in sorted(found)}
