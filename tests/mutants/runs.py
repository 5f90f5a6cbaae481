"""A seeded sample of mutants against the tests: near ones first, then a wider set.

Owns: nothing.
Invariants: reproducible: the sample depends only on seed, parts, count and the sources; confirmed
  kill: a mutant counts as killed only if the failed test fails again with it and passes without it.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.mutants import c_sites, parts, python_sites
from tests.mutants.reach import Reach, Test
from tests.mutants.sites import Site
from tests.mutants.trees import Ran, Tree

NEAR_SECONDS_MAX = 900
WIDE_SECONDS_MAX = 1800
ALONE_SECONDS_MAX = 200
QUICK_SECONDS_MAX = 0.5
# Time limits for the tests that reach a mutant, by their recorded times: fast and slow ones.
# Mutants that only the remaining tests would detect count as survivors.
TRIED_SECONDS_MAX = (60, 120)
FIRST_FILES = 12
QUICK_TIMEOUT_S = 20
KILLS_TRIED_MAX = 4
_HOW = {"crashed": " (a crash)", "late": " (hangs)"}


class Verdict(NamedTuple):
    """A result. what: "killed", "survived", "same code", "stillborn", "no verdict", "not run"."""

    part: str
    site: Site
    what: str
    by: str
    seconds: float


def all_sites(part: str, root: Path = parts.ROOT) -> list[Site]:
    found = []
    for path in parts.files(part, root):
        finder = python_sites if path.endswith(".py") else c_sites
        found += finder.sites(path, (root / path).read_text())
    return found


def sample(part: str, count: int, seed: int, root: Path = parts.ROOT) -> list[Site]:
    """Draw a sample, by kind first, so that rare kinds are represented. Keeps it reproducible."""
    source = random.Random(f"{seed} {part}")
    kinds: dict[str, list[Site]] = {}
    for site in all_sites(part, root):
        kinds.setdefault(site.kind, []).append(site)
    for found in kinds.values():
        source.shuffle(found)
    drawn: list[Site] = []
    while len(drawn) < count and any(kinds.values()):
        names = sorted(kind for kind, found in kinds.items() if found)
        source.shuffle(names)
        drawn += [kinds[name].pop() for name in names]
    return drawn[:count]


class Stage(NamedTuple):
    """Tests of one step. chosen: only these tests of the files, None for all."""

    files: list[str]
    marks: str
    seconds_max: float
    chosen: list[str] | None = None
    timeout_s: int = 60


def _chosen(tests: list[Test], timeout_s: int = 60) -> Stage:
    return Stage(list(dict.fromkeys(test.file for test in tests)), parts.NEAR_MARKS,
                 60 + 5 * sum(test.seconds for test in tests), [test.node for test in tests],
                 timeout_s)


def _in_time(tests: list[Test], seconds: float) -> list[Test]:
    sums = itertools.accumulate(test.seconds for test in tests)
    return [test for test, so_far in zip(tests, sums) if so_far - test.seconds < seconds]


def _by_files(tests: list[Test]) -> list[Stage]:
    """Group tests into stages, beginning with few files: most mutants get no further."""
    first = list(dict.fromkeys(test.file for test in tests))[:FIRST_FILES]
    return [_chosen([test for test in tests if test.file in first], QUICK_TIMEOUT_S),
            _chosen([test for test in tests if test.file not in first], QUICK_TIMEOUT_S)]


class Runner:
    """Tries mutants one after the other in one copy of the tree.

    reach: which tests reach a line; without it all near tests run.
    """

    def __init__(self, tree: Tree, say: Callable[[str], None] = print, wide: bool = True,
                 reach: Reach | None = None):
        self.tree = tree
        self.say = say
        self.wide = wide
        self.reach = reach
        self.broken: set[str] = set()  # tests that fail without a mutant too

    def prepare(self) -> None:
        """Build the tree. Raises AssertionError if it does not build without a mutant."""
        self.tree.refresh()
        complaint = self.tree.build()
        assert not complaint, complaint

    def judge(self, part: str, site: Site) -> Verdict:
        began_s = time.monotonic()
        try:
            what = self.tree.mutate(site)
            by = ""
            if what:
                what, _, by = what.partition(": ")
            else:
                what, by = self._tested(part, site)
        finally:
            self.tree.restore(site.path)
        return Verdict(part, site, what, by, time.monotonic() - began_s)

    def _tested(self, part: str, site: Site) -> tuple[str, str]:
        undecided = ""
        stages = self._stages(part, site)
        for stage in stages:
            what, by = self._stage(site, stage)
            if what == "killed":
                return what, by
            undecided = undecided or (by if what == "no verdict" else "")
        if undecided:
            return "no verdict", undecided
        return "survived", "" if stages else "no test comes here"

    def _stages(self, part: str, site: Site) -> list[Stage]:
        text = (self.tree.root / site.path).read_text()
        near = parts.near(part, site.path, self.tree.at)
        wide = parts.wide(part, self.tree.at)
        known = self.reach and self.reach.tests(site.path, site.line(text), text)
        if known is None:
            stages = [Stage(near, parts.NEAR_MARKS, NEAR_SECONDS_MAX)]
        else:
            changed = self.reach.changed(self.tree.root, near)
            known = sorted((test for test in known if test.file not in changed),
                           key=lambda test: -parts.shared(site.path, test.file))
            quick = [test for test in known if test.seconds < QUICK_SECONDS_MAX]
            slow = [test for test in known if test.seconds >= QUICK_SECONDS_MAX]
            stages = [*_by_files(_in_time(quick, TRIED_SECONDS_MAX[0])),
                      Stage(changed, parts.NEAR_MARKS, NEAR_SECONDS_MAX),
                      _chosen(_in_time(slow, TRIED_SECONDS_MAX[1]))]
        if self.wide:
            stages += [Stage(near, parts.KAFKA_MARKS, NEAR_SECONDS_MAX),
                       Stage(wide, parts.WIDE_MARKS, WIDE_SECONDS_MAX)]
        return [stage for stage in stages if stage.files]

    def _stage(self, site: Site, stage: Stage) -> tuple[str, str]:
        end_s = time.monotonic() + stage.seconds_max
        flaky: set[str] = set()
        for _ in range(KILLS_TRIED_MAX):
            ran = self.tree.test(stage.files, stage.marks, end_s - time.monotonic(),
                                 without=tuple(self.broken | flaky), chosen=stage.chosen,
                                 timeout_s=stage.timeout_s)
            if ran.how == "passed":
                return "survived", ""
            if not ran.test:
                assert not self._breaks_without(site, stage.files[0]), \
                    f"{stage.files[0]} does not run at all"
                return "killed", "nothing can be imported"
            again = self._alone(ran.test, stage.timeout_s)
            if again.how == "passed":
                if ran.how == "late":
                    return "no verdict", f"time ran out at {ran.test}"
                flaky.add(ran.test)
            elif self._breaks_without(site, ran.test):
                self.broken.add(ran.test)
            else:
                return "killed", ran.test + _HOW.get(again.how, "")
        return "no verdict", "tests that fail now and then: " + ", ".join(sorted(flaky))

    def _alone(self, test: str, timeout_s: int = 60) -> Ran:
        return self.tree.test([test], parts.WIDE_MARKS, ALONE_SECONDS_MAX, timeout_s=timeout_s)

    def _breaks_without(self, site: Site, test: str) -> bool:
        """Return True if the test fails without the mutant, which is then put back.

        Keeps the confirmed kill.
        """
        self.tree.restore(site.path)
        fails = self._alone(test).how != "passed"
        if fails:
            self.say(f"{test} fails without a mutant too: left out")
            self.tree.mutate(site)
        return fails


def run(sites: list[tuple[str, Site]], runners: list[Runner], budget_s: float,
        done: Callable[[list[Verdict]], None]) -> list[Verdict]:
    """Return a verdict for each site. `done` receives the verdicts so far after each one."""
    end_s = time.monotonic() + budget_s
    verdicts = [Verdict(part, site, "not run", "", 0.0) for part, site in sites]
    left = list(range(len(sites)))[::-1]
    lock = threading.Lock()

    def work(runner: Runner) -> None:
        while True:
            with lock:
                if not left or time.monotonic() > end_s:
                    return
                number = left.pop()
            part, site = sites[number]
            verdict = runner.judge(part, site)
            line = site.line((runner.tree.root / site.path).read_text())
            with lock:
                verdicts[number] = verdict
                runner.say(f"{number + 1}/{len(sites)} {site.path}:{line} {site.kind}: "
                           f"{verdict.what} {verdict.by} ({verdict.seconds:.0f} s)")
                done([one for at, one in enumerate(verdicts) if at not in left])

    with ThreadPoolExecutor(len(runners)) as pool:
        list(pool.map(work, runners))
    done(verdicts)
    return verdicts
