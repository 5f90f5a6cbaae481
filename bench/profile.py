"""Profile a broker's CPU in one load: `python -m bench.profile produce-1k-rdkafka`.

Invariants: the load and its setup are those of bench.vs; only the sampler is added.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.process import BrokerProcess
from bench.programs import cache_dir
from bench.scenarios import FULL, QUICK, SCENARIOS, Side
from bench.secured import SECURED, secured_broker

SAMPLES_PER_S = 997


def _record(broker: BrokerProcess, output: Path) -> subprocess.Popen:
    return subprocess.Popen(
        ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(SAMPLES_PER_S), "-g",
         "-p", str(broker.pid), "-o", str(output)],
        stderr=subprocess.DEVNULL)


def _report(data: Path, lines_max: int, *options: str) -> str:
    done = subprocess.run(
        ["perf", "report", "-i", str(data), "--stdio", "--no-children", "-g", "none", *options],
        capture_output=True, text=True)
    rows = [line.rstrip() for line in done.stdout.splitlines()
            if line.strip() and not line.startswith("#")]
    return "\n".join(rows[:lines_max])


def main(argv: list[str]) -> int:
    """Run one load with perf attached; print the shares by object and by symbol."""
    parser = argparse.ArgumentParser(prog="python -m bench.profile")
    parser.add_argument("load", choices=sorted(SCENARIOS | SECURED))
    parser.add_argument("--side", default="pylog", choices=["pylog", "kafka"])
    parser.add_argument("--full", action="store_true", help="the sizes of a full run")
    parser.add_argument("--lines", type=int, default=40)
    parser.add_argument("--keep", metavar="FILE", help="keep perf's data here")
    options = parser.parse_args(argv)
    if shutil.which("perf") is None:
        print("the profile needs `perf` on PATH (Debian: linux-perf)", file=sys.stderr)
        return 1
    setup = "flushed" if "flush" in options.load else "cached"
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="profile-", dir=cache_dir()) as folder:
        side = Side(options.side, Path(folder), FULL if options.full else QUICK)
        data = Path(options.keep or f"{folder}/perf.data")
        try:
            broker = secured_broker(side, "tls") if options.load in SECURED else side.shared(setup)
            sampler = _record(broker, data)
            figures = (SCENARIOS | SECURED)[options.load].run(side)
            sampler.terminate()
            sampler.wait()
        finally:
            side.stop()
        print(" ".join(f"{key}={value:.4g}" for key, value in figures.items()))
        print("\nby object\n" + _report(data, 12, "--sort", "dso"))
        print("\nby symbol\n" + _report(data, options.lines, "--sort", "dso,symbol"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
