"""`make mutants`: runs a sample of mutants of the code against its tests.

Owns: nothing.
Invariants: the seed is printed, and accepted as an option.
"""

import argparse
import random
import sys
from pathlib import Path

from tests.mutants import parts, reports, runs
from tests.mutants.reach import Reach
from tests.mutants.trees import Tree


def main(arguments: list[str] | None = None) -> int:
    """Run a sample of mutants. Exit with 1 if the tests kill a smaller share than --least."""
    given = _parser().parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    names = given.part or list(parts.PARTS)
    sites = []
    for number, name in enumerate(names):
        count = given.count // len(names) + (number < given.count % len(names))
        sites += [(name, site) for site in runs.sample(name, count, seed)]
    if given.list:
        for name, site in sites:
            text = (parts.ROOT / site.path).read_text()
            print(f"{name} {site.path}:{site.line(text)} {site.kind}\n{site.diff(text)}\n")
        return 0
    title = f"Mutants: --seed {seed} --count {given.count} " + " ".join(
        f"--part {name}" for name in given.part or ())
    print(title, flush=True)
    reach = Reach(given.reach) if given.reach else None
    runners = [
        runs.Runner(Tree(parts.ROOT, Path(f"{given.tree}-{number}")),
                    lambda line: print(line, flush=True), wide=not given.near, reach=reach)
        for number in range(given.jobs)]
    for runner in runners:
        runner.prepare()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    found = runs.run(sites, runners, given.budget_seconds, lambda verdicts: given.out.write_text(
        reports.report(verdicts, title, parts.ROOT)))
    print(given.out.read_text())
    return int(reports.share(found) < given.least)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make mutants", description=main.__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--count", type=int, default=20, help="mutants in all, shared by the parts")
    parser.add_argument("--part", action="append", choices=list(parts.PARTS))
    parser.add_argument("--budget-seconds", type=float, default=float("inf"))
    parser.add_argument("--near", action="store_true", help="without the wider set of tests")
    parser.add_argument("--least", type=float, default=0.85)
    parser.add_argument("--list", action="store_true", help="only print the sample")
    parser.add_argument("--reach", type=Path, help="what `python -m tests.mutants.reach` noted: "
                                                   "only tests that come by the line are run")
    parser.add_argument("--jobs", type=int, default=1, help="mutants tried at a time")
    parser.add_argument("--tree", type=Path, default=parts.ROOT / "build/mutants",
                        help="where the copies are made, with a number behind")
    parser.add_argument("--out", type=Path, default=parts.ROOT / "build/mutants.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
