"""Reactors, io workers, a clock and a control plane on many connections at once, with sanitizers.
"""

import random
import socket
import struct
import subprocess
import threading
import time

import pytest

from tests.csrc.net.reactor_process import SANITIZED, ReactorServer, built, request
from tests.wire.raw import FETCH, METADATA, PRODUCE, Closed

CHOICES = [(PRODUCE, "AWXDJMSRTU"), (FETCH, "AWXDJMRBT"), (METADATA, "eelpwntv")]
AMOUNTS = {"R": 40_000, "B": 20_000, "M": 20}


def one_of_each(source: random.Random, correlation_id: int) -> tuple[bytes, bool]:
    """Return a random request, and True if it will be answered."""
    key, letters = source.choice(CHOICES)
    letter = source.choice(letters)
    amount = source.randrange(AMOUNTS.get(letter, 12))
    rest = b"x" * source.choice([0, 10, 1000, 70_000])
    return request(key, correlation_id, letter, amount, rest), letter not in "SUn"


def client(server: ReactorServer, seed: int, end_s: float, failures: list) -> None:
    source = random.Random(seed)
    try:
        while time.monotonic() < end_s:
            connection = server.connect(wait_s=30)
            for _ in range(source.randrange(1, 30)):
                burst = [one_of_each(source, i) for i in range(source.randrange(1, 8))]
                connection.send(b"".join(bytes_ for bytes_, _ in burst))
                for i, (_, answered) in enumerate(burst):
                    if answered:
                        connection.take(i)
            if source.random() < 0.5:
                connection.send(b"".join(one_of_each(source, i)[0] for i in range(5))[:-3])
            if source.random() < 0.3:
                connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                             struct.pack("ii", 1, 0))
            connection.close()
    except (AssertionError, OSError, Closed) as failure:
        failures.append(repr(failure))


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.timeout(120)
def test_many_clients_with_every_kind_of_request_leak_nothing(sanitizer, random_source):
    failures = []
    seed = random_source.randrange(1 << 30)
    with ReactorServer(sanitizer, threads=3, queued=4, quotas=1) as server:
        end_s = time.monotonic() + 4
        clients = [threading.Thread(target=client, args=(server, seed + i, end_s, failures))
                   for i in range(8)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        assert failures == []
        stats = server.stats()
    assert stats["requests_abandoned"] > 0 and stats["requests_missed"] > 0


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_small_parts_match_simple_models(sanitizer, random_source):
    seed = str(random_source.randrange(1 << 30))
    ran = subprocess.run([str(built(sanitizer, "reactor_units")), seed], capture_output=True,
                         text=True, timeout=60, env=SANITIZED)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")
