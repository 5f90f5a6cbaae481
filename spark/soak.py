"""Kill a broker under load repeatedly, and verify that no record was lost.

    make soak SECONDS=600        # python -m spark.soak --seconds 600

Owns: its own brokerd in a temporary directory, the processes of load and validator.
Invariants: the broker is killed with SIGKILL only; the exit code is 0 only if every record was
  acknowledged and the verdict is good.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.brokers import PylogBroker
from pylog.testing.ports import free_port

ROOT = Path(__file__).resolve().parent.parent
END_S = 900.0


def main(argv: list[str] | None = None) -> int:
    options = arguments().parse_args(argv)
    directory = Path(tempfile.mkdtemp(prefix="pylog-soak-"))
    # It restarts on the same port and directory.
    broker = PylogBroker(directory / "data", free_port())
    try:
        broker.start()
        code, kills = soak(options, broker, directory)
    finally:
        broker.kill()
        if options.keep:
            print(f"soak: kept {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print(f"soak: {'good' if code == 0 else 'BAD'} after {kills} kills")
    return code


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark.soak", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--seconds", type=float, default=60.0,
        help="how long to send records (default: %(default)s)")
    add("--every", type=float, default=5.0,
        help="mean seconds between two kills (default: %(default)s)")
    add("--rate", default="20000", help="rate, as in spark.load (default: %(default)s)")
    add("--engine", choices=["pylog", "kafka"], default="pylog",
        help="producer of the load (default: %(default)s)")
    add("--partitions", type=int, default=4, help="partitions of the topic (default: %(default)s)")
    add("--seed", type=int, default=None, help="seed of content and kills (default: random)")
    add("--report", default="", metavar="FILE", help="write the verdict as one HTML file")
    add("--keep", action="store_true", help="keep the directory with the data and the manifest")
    return parser


def soak(options: argparse.Namespace, broker: PylogBroker, directory: Path) -> tuple[int, int]:
    """Return (exit code, number of kills)."""
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    print(f"soak: seed {seed}, {options.seconds:.0f} s, a kill every {options.every:.0f} s")
    common = ["--bootstrap", f"127.0.0.1:{broker.port}", "--topic", "soak",
              "--manifest", str(directory / "manifest")]
    loading = subprocess.Popen(
        [sys.executable, "-m", "spark.load", *common, "--create", "--partitions",
         str(options.partitions), "--engine", options.engine, "--duration", str(options.seconds),
         "--rate", options.rate, "--seed", str(seed), "--keys", "1000", "--sizes",
         "uniform:50:500"], cwd=ROOT)
    chance, kills, end_s = random.Random(seed), 0, time.monotonic() + options.seconds + END_S
    while loading.poll() is None:
        pause_s = chance.uniform(0.5, 1.5) * options.every
        try:
            loading.wait(pause_s)
        except subprocess.TimeoutExpired:
            broker.kill()
            broker.start()
            kills += 1
        if time.monotonic() > end_s:
            loading.kill()
            print(f"soak: the load did not end within {END_S:.0f} s of its time", file=sys.stderr)
            return 1, kills
    if loading.returncode:
        return loading.returncode, kills
    more = ["--report", options.report] if options.report else []
    return subprocess.run([sys.executable, "-m", "spark.validate", *common, *more],
                          cwd=ROOT).returncode, kills


if __name__ == "__main__":
    sys.exit(main())
