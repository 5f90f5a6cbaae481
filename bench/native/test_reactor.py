"""The cost of a request on a reactor: native (an empty Fetch: only epoll, recv, parsing and send)
and with a round trip to Python.

CPU is that of the whole process with the reactors, from /proc; the client is bench/csrc/requests.c.
"""

import json
import os
import struct
import subprocess
import sys

import pytest

from bench.programs import load_client

REQUESTS = 100_000
CLIENT = struct.pack(">h", 5) + b"bench"
FETCH = struct.pack(">hhi", 1, 4, 7) + CLIENT + struct.pack(">iiiibi", -1, 0, 0, 1 << 20, 0, 0)
API_VERSIONS = struct.pack(">hhi", 18, 0, 7) + CLIENT


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def echo():
    process = subprocess.Popen([sys.executable, "-m", "bench.native.echo"], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.port = int(process.stdout.readline())
    yield process
    process.stdin.close()
    assert process.wait(timeout=10) == 0


@pytest.mark.parametrize("connections, in_flight", [(1, 1), (8, 1), (8, 5), (1000, 1)])
@pytest.mark.parametrize("kind", ["native", "python"])
def test_requests(benchmark, echo, kind, connections, in_flight):
    benchmark.group = f"requests, {connections} connections, {in_flight} in flight"
    frame = FETCH if kind == "native" else API_VERSIONS
    command = [load_client("requests"), str(echo.port), str(connections), str(in_flight),
               str(REQUESTS), frame.hex()]
    rates = []

    def run() -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        rates.append(json.loads(done.stdout)["requests_s"])

    before_s = cpu_seconds(echo.pid)
    benchmark.pedantic(run, rounds=1 if benchmark.disabled else 3)
    spent_s = cpu_seconds(echo.pid) - before_s
    benchmark.extra_info["requests/s"] = max(rates)
    benchmark.extra_info["CPU us/request"] = round(spent_s / len(rates) / REQUESTS * 1e6, 2)
