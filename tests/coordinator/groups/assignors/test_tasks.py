"""Assignment of Streams tasks and standby replicas."""

import random

import pytest

from pylog.coordinator.groups.assignors.tasks import Runner, assign
from pylog.coordinator.groups.assignors.tasks import Assignment
from pylog.coordinator.groups.streams.group import tasks_of

WALKS = 60


def runners(found, **processes):
    """Return runners for name=process, with their previous assignments."""
    return [Runner(name, process, found.get(name, Assignment()))
            for name, process in processes.items()]


def counts(found, kind="active"):
    return sorted(len(tasks_of(getattr(row, kind))) for row in found.values())


def test_each_task_runs_once_and_members_have_as_much_to_do():
    found = assign(runners({}, a="p", b="q", c="r"), {"0": 4, "1": 3}, [], 0)
    assert sorted(task for row in found.values() for task in tasks_of(row.active)) == [
        *(("0", index) for index in range(4)), *(("1", index) for index in range(3))]
    assert counts(found) == [2, 2, 3]


def test_tasks_are_proportional_to_the_members_of_a_process():
    found = assign(runners({}, a="p", b="p", c="q"), {"0": 6}, [], 0)
    assert counts(found) == [2, 2, 2]


def test_tasks_stay_with_their_members_when_others_join_and_leave():
    two = assign(runners({}, a="p", b="q"), {"0": 6}, [], 0)
    three = assign(runners(two, a="p", b="q", c="r"), {"0": 6}, [], 0)
    assert all(three[name].active["0"] < two[name].active["0"] for name in "ab")
    assert counts(three) == [2, 2, 2]
    again = assign(runners(three, a="p", b="q"), {"0": 6}, [], 0)
    assert all(three[name].active["0"] < again[name].active["0"] for name in "ab")


def test_standby_takes_over_the_task_of_a_departed_member():
    before = assign(runners({}, a="p", b="q", c="r"), {"0": 3}, ["0"], 1)
    after = assign(runners(before, a="p", b="q"), {"0": 3}, ["0"], 1)
    (left,) = before["c"].active["0"]
    keeper = next(name for name in "ab" if left in before[name].standby.get("0", ()))
    assert left in after[keeper].active["0"]


def test_standby_tasks_exist_only_for_stateful_tasks_and_available_processes():
    found = assign(runners({}, a="p", b="q"), {"0": 2, "1": 2}, ["1"], 2)
    copies = [task for row in found.values() for task in tasks_of(row.standby)]
    assert sorted(copies) == [("1", 0), ("1", 1)]


def test_no_members_get_no_tasks():
    assert assign([], {"0": 2}, ["0"], 1) == {}
    assert assign(runners({}, a="p"), {}, [], 1) == {"a": Assignment()}


@pytest.mark.parametrize("number", range(WALKS))
def test_random_task_assignments_keep_the_invariants(random_source, number):
    chance = random.Random(random_source.randrange(1 << 30))
    tasks = {str(id_): chance.randrange(1, 9) for id_ in range(chance.randrange(1, 4))}
    stateful = [id_ for id_ in tasks if chance.random() < 0.6]
    copies = chance.randrange(3)
    found: dict[str, Assignment] = {}
    members: dict[str, str] = {}
    for step in range(12):
        if members and chance.random() < 0.4:
            del members[chance.choice(sorted(members))]
        else:
            members[f"m{step}"] = f"p{chance.randrange(4)}"
        given = runners(found, **members)
        found = assign(given, tasks, stateful, copies)
        assert found == assign(given[::-1], tasks, stateful, copies)
        check(found, members, tasks, stateful, copies)
    # Without a new member nothing changes.
    assert assign(runners(found, **members), tasks, stateful, copies).keys() == found.keys()


def check(found, members, tasks, stateful, copies) -> None:
    wanted = [(id_, index) for id_ in sorted(tasks) for index in range(tasks[id_])]
    active = sorted(task for row in found.values() for task in tasks_of(row.active))
    assert active == (wanted if members else [])
    of_process: dict[str, list] = {}
    for name, row in found.items():
        of_process.setdefault(members[name], []).extend(
            [*tasks_of(row.active), *tasks_of(row.standby)])
    assert all(len(set(some)) == len(some) for some in of_process.values()), of_process
    standby = [task for row in found.values() for task in tasks_of(row.standby)]
    most = min(copies, max(0, len(of_process) - 1))
    assert sorted(standby) == sorted(
        task for task in wanted if task[0] in stateful for _ in range(most if members else 0))
