"""A seeded sample of mutants against the tests: near ones first, then a wider set.

Owns: nothing.
Called by: tests.mutants.__main__, test_mutants.py.
Invariants: (1) the sample follows from seed, parts, count and the sources alone; (2) a mutant
  counts as killed only when the test that failed fails again on it and passes without it.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.mutants import c_sites, parts, python_sites
from tests.mutants.sites import Site
from tests.mutants.trees import Ran, Tree

NEAR_SECONDS_MAX = 900
WIDE_SECONDS_MAX = 1800
KILLS_TRIED_MAX = 4


class Verdict(NamedTuple):
    """what: "killed", "survived", "same code", "stillborn", "no verdict", "not run"."""

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
    """Drawn by kind first, so that rare kinds are not crowded out. Keeps (1)."""
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


class Runner:
    """Tries mutants one after the other in one copy of the tree."""

    def __init__(self, tree: Tree, say: Callable[[str], None] = print, wide: bool = True):
        self.tree = tree
        self.say = say
        self.wide = wide
        self.broken: set[str] = set()  # fail without a mutant too

    def prepare(self) -> None:
        """Raises AssertionError when the tree itself does not build."""
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
        near = parts.near(part, site.path, self.tree.at)
        stages = [(near, parts.NEAR_MARKS, NEAR_SECONDS_MAX)]
        if self.wide:
            stages += [(near, parts.KAFKA_MARKS, NEAR_SECONDS_MAX),
                       (parts.wide(part, self.tree.at), parts.WIDE_MARKS, WIDE_SECONDS_MAX)]
        undecided = ""
        for files, marks, seconds_max in stages:
            what, by = self._stage(site, files, marks, seconds_max) if files else ("survived", "")
            if what == "killed":
                return what, by
            undecided = undecided or (by if what == "no verdict" else "")
        return ("no verdict", undecided) if undecided else ("survived", "")

    def _stage(self, site: Site, files: list[str], marks: str, seconds_max: float
               ) -> tuple[str, str]:
        end_s = time.monotonic() + seconds_max
        flaky: set[str] = set()
        for _ in range(KILLS_TRIED_MAX):
            ran = self.tree.test(files, marks, end_s - time.monotonic(),
                                 without=tuple(self.broken | flaky))
            if ran.how == "passed":
                return "survived", ""
            if not ran.test:
                assert not self._breaks_without(site, files[0]), f"{files[0]} does not run at all"
                return "killed", "nothing can be imported"
            if ran.how == "late":
                return "no verdict", f"time ran out at {ran.test}"
            again = self._alone(ran.test)
            if again.how == "passed":
                flaky.add(ran.test)
            elif self._breaks_without(site, ran.test):
                self.broken.add(ran.test)
            else:
                return "killed", ran.test + (" (a crash)" if again.how == "crashed" else "")
        return "no verdict", "tests that fail now and then: " + ", ".join(sorted(flaky))

    def _alone(self, test: str) -> Ran:
        return self.tree.test([test], parts.WIDE_MARKS, 300)

    def _breaks_without(self, site: Site, test: str) -> bool:
        """Keeps (2). The mutant is in the tree again at the end."""
        mutant = (self.tree.at / site.path).read_text()
        native = not site.path.endswith(".py")
        self.tree.restore(site.path)
        if native:
            self.tree.build()
        fails = self._alone(test).how != "passed"
        if fails:
            self.say(f"{test} fails without a mutant too: left out")
            self.tree.put(site.path, mutant)
            if native:
                self.tree.build()
        return fails


def run(sites: list[tuple[str, Site]], runner: Runner, budget_s: float,
        done: Callable[[list[Verdict]], None]) -> list[Verdict]:
    """A verdict for each; `done` gets those so far after every one."""
    end_s = time.monotonic() + budget_s
    verdicts: list[Verdict] = []
    for number, (part, site) in enumerate(sites, 1):
        if time.monotonic() > end_s:
            verdicts.append(Verdict(part, site, "not run", "", 0.0))
            continue
        verdict = runner.judge(part, site)
        verdicts.append(verdict)
        line = site.line((runner.tree.root / site.path).read_text())
        runner.say(f"{number}/{len(sites)} {site.path}:{line} {site.kind}: {verdict.what} "
                   f"{verdict.by} ({verdict.seconds:.0f} s)")
        done(verdicts)
    done(verdicts)
    return verdicts
