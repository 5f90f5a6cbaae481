"""Serve with reactors and a control plane that responds to everything with 100 bytes: `python -m
bench.native.echo`. Prints its port; ends when its input ends.
"""

import select
import struct
import sys

from pylog._native.log.io_pool import IoPool
from pylog._native.server.grants import Grants
from pylog._native.server.reactor import Reactors

THREADS = 2
API_VERSIONS = [(0, 3, 13, 9), (1, 4, 18, 12), (18, 0, 4, 3)]


def main() -> None:
    reactors = Reactors(
        grants=Grants(), io_pool=IoPool(), network_threads=THREADS, api_versions=API_VERSIONS,
        request_bytes_max=1 << 20, idle_ms_max=-1, queued_requests_max=500,
        fetch_bytes_max=1 << 20, sessions_max=10)
    print(reactors.listen(0, "127.0.0.1", 0, 1024), flush=True)
    reactors.start()
    rest = b"\0" * 92
    while True:
        readable = select.select([reactors, sys.stdin], [], [])[0]
        for event in reactors.poll():
            reactors.reply(event.token, struct.pack(">ii", 96, event.correlation_id) + rest)
        if sys.stdin in readable:
            break
    reactors.stop(0)


if __name__ == "__main__":
    main()
