"""Count instructions of a Produce or Fetch on a reactor: `python -m bench.instructions [TREE ...]`.

Owns: a broker under callgrind for each tree (a built checkout; by default this one).
Invariants: counts everything that reactors do below connection_run: receive, parse, check, append,
  respond, send; excludes the kernel and the control plane; excludes the first requests, which use
  the control plane.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import loads
from pylog.testing.ports import free_port
from bench.process import BrokerProcess

WARM_REQUESTS, REQUESTS = 300, 3000
COUNTED = "connection_run"
START_SECONDS = 180.0
# Records of 100 B, requests in flight, idempotent.
SHAPES = {
    "one 100 B record": (1, 1, False),
    "10 records of 100 B": (10, 1, False),
    "4 of 5 in flight": (1, 5, False),
    "idempotent": (1, 1, True),
}
FETCHED_BYTES_MAX = 600  # of one Fetch; several batches of one record
SUMMARY = re.compile(r"^(?:summary|totals): (\d+)", re.M)


class CountedBroker(BrokerProcess):
    """Runs brokerd of a tree under callgrind."""

    name = "counted"

    def __init__(self, data_dir, tree: Path):
        super().__init__(data_dir)
        self.tree = tree

    def _start(self) -> None:
        self.port = free_port()
        self.spawn(["valgrind", "--tool=callgrind", "--collect-atstart=no",
                    f"--toggle-collect={COUNTED}", "--separate-threads=no",
                    f"--callgrind-out-file={self.data_dir}.out", sys.executable, "-m", "pylog",
                    "--override", f"listeners=PLAINTEXT://127.0.0.1:{self.port}",
                    "--override", f"log.dirs={self.data_dir}",
                    "--override", "num.network.threads=1",
                    "--override", "log.flush.acks.all.enable=false"], cwd=self.tree)
        self.wait_answer(START_SECONDS, pause_s=0.2)

    def counted(self) -> int:
        """Return instructions since the last call."""
        found = set(self.data_dir.parent.glob("*.out.*"))
        subprocess.run(["callgrind_control", "--dump", str(self.pid)], check=True,
                       capture_output=True)
        end_s = time.monotonic() + 30
        while time.monotonic() < end_s:
            new = set(self.data_dir.parent.glob("*.out.*")) - found
            for path in new:
                total = SUMMARY.search(path.read_text())
                if total:
                    return int(total[1])
            time.sleep(0.1)
        raise TimeoutError("callgrind wrote no counts")


def instructions(tree: Path) -> dict:
    """Return instructions per request by shape, of Produce and of Fetch."""
    figures = {}
    with tempfile.TemporaryDirectory(prefix="counted-") as folder:
        broker = CountedBroker(Path(folder) / "data", tree)
        with broker:
            for number, (shape, (records, in_flight, idempotent)) in enumerate(SHAPES.items()):
                topic = f"t{number}"
                loads.create_topic(broker, topic, 1)
                for requests in (WARM_REQUESTS, REQUESTS):
                    broker.counted()
                    loads.raw_produce(broker, topic, 1, 1, in_flight, records, 100,
                                      requests=requests, idempotent=idempotent)
                figures[shape] = broker.counted() / REQUESTS
            for _ in range(2):
                broker.counted()
                line = loads.native("fetch", broker, "t0", 1, FETCHED_BYTES_MAX, 0)
            figures[f"Fetch of {FETCHED_BYTES_MAX} B"] = broker.counted() / line["requests"]
    return figures


def main(argv: list[str]) -> int:
    """Print one line per tree."""
    parser = argparse.ArgumentParser(prog="python -m bench.instructions")
    parser.add_argument("trees", nargs="*", type=Path, default=[Path.cwd()])
    for tree in parser.parse_args(argv).trees:
        print(tree.name, *(f"{shape}: {count:.0f};"
                           for shape, count in instructions(tree.resolve()).items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
