"""Disconnect the leader's machine: `python -m bench.cluster.gone SIDE COUNT SETTINGS` disconnects
the leader of three machines of one kind COUNT times, and prints the results as a line of JSON.

Owns: its own network and mount namespaces, which must be created at the start of a process.
Invariants: nothing outside of the process's own namespaces is changed.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from bench.network import Network, enter


def main(argv: list[str]) -> int:
    side, count, settings = argv[0], int(argv[1]), json.loads(argv[2])
    enter()
    # Imported here: librdkafka starts threads, which would stay in the old namespaces.
    from bench.cluster import losses
    from bench.cluster.nodes import NODES, Cluster
    from bench.programs import cache_dir

    network = Network(NODES)
    cache_dir().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="gone-", dir=cache_dir()))
    try:
        with Cluster(side, folder, settings, network) as cluster:
            print(json.dumps(losses.host(cluster, network, "gone", count)))
    finally:
        network.close()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
