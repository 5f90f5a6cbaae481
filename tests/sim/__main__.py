"""Run many seeds in several processes: `python -m tests.sim --seeds 10000`.

Owns: its worker processes.
Invariants: a failing seed is printed with its error and fails the same when run by itself.
Source: none.
"""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.sim.world import run

SEEDS_PER_JOB = 20


def _tried(first: int, count: int) -> list:
    """Run a range of seeds and return [(seed, error)]."""
    wrong = []
    for seed in range(first, first + count):
        try:
            run(seed)
        except Exception as error:
            wrong.append((seed, f"{type(error).__name__}: {error}"))
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    began, wrong = time.monotonic(), 0
    firsts = range(args.first, args.first + args.seeds, SEEDS_PER_JOB)
    with ProcessPoolExecutor(args.workers) as pool:
        jobs = [pool.submit(_tried, first, min(
            SEEDS_PER_JOB, args.first + args.seeds - first)) for first in firsts]
        for number, job in enumerate(jobs):
            for seed, text in job.result():
                wrong += 1
                print(f"seed {seed}: {text}", flush=True)
            if number % 25 == 24:
                print(f"{(number + 1) * SEEDS_PER_JOB} seeds, {wrong} wrong, "
                      f"{time.monotonic() - began:.0f} s", flush=True)
    print(f"{args.seeds} seeds from {args.first}: {wrong} wrong, "
          f"{time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
