"""The most expensive legal requests of every API: memory, and latency of other clients."""

import re
import struct
import threading
import time

import pytest

from pylog.protocol import api, elements, tables
from tests.fixtures.brokers import Brokerd
from tests.protocol.longest import longest
from tests.wire import raw
from tests.wire.raw import Closed, Connection, frame, header

MIB = 1 << 20
REQUEST_BYTES_MAX = 2 * MIB
MEMORY_BYTES_MAX = 64 * MIB
ELEMENTS_MAX = 200_000
# With these settings memory is bounded as below: a request twice, a response three times, the
# objects of one part.
SETTINGS = {"auto.create.topics.enable": "false", "control.request.bytes.max": REQUEST_BYTES_MAX,
            "control.response.bytes.max": 12 * MIB}
SERVED = [key for key in api.SERVED if key not in (api.PRODUCE, api.FETCH)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    started = Brokerd(tmp_path_factory.mktemp("expensive"), SETTINGS).start()
    with Connection(started.port) as connection:
        # Create the offsets topic and allocate its partitions' memory before measuring.
        connection.call(10, 0, raw.string("g"))
        time.sleep(1)
    yield started
    assert started.alive() and started.alarms() == []
    started.kill()


def _memory_bytes(broker, name: str) -> int:
    with open(f"/proc/{broker.pid}/status") as status:
        return int(re.search(rf"{name}:\s+(\d+) kB", status.read())[1]) * 1024


def _reset_peak(broker) -> None:
    with open(f"/proc/{broker.pid}/clear_refs", "w") as file:
        file.write("5")


class Beats:
    """Sends heartbeats over a separate connection during a block."""

    def __init__(self, port: int):
        self._port = port
        self._over = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        body = raw.string("none") + struct.pack(">i", 1) + raw.string("m")
        with Connection(self._port, wait_s=60) as connection:
            while not (self.count and self._over.is_set()):
                connection.call(12, 0, body)
                self.count += 1
                time.sleep(0.002)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


@pytest.mark.parametrize("distinct", [False, True], ids=["repeats", "distinct"])
@pytest.mark.parametrize("key", SERVED, ids=lambda key: tables.name_of("request", key)[:-7])
def test_longest_requests_take_little_memory_and_delay_no_client(broker, key, distinct):
    version = api.SERVED[key][1]
    with Beats(broker.port) as beats:
        row = elements.of(key)
        in_pieces = elements.path_of(row.request_paths, "request", key, version)
        for path, body, count in longest(
                tables.name_of("request", key), version, REQUEST_BYTES_MAX - 100,
                ELEMENTS_MAX if in_pieces else min(row.whole_max - 10, ELEMENTS_MAX), distinct):
            _reset_peak(broker)
            before = _memory_bytes(broker, "VmRSS")
            with Connection(broker.port, wait_s=120) as connection:
                try:
                    connection.send(frame(header(key, version) + body))
                    size = len(connection.receive())
                except Closed:
                    size = -1
            grown = _memory_bytes(broker, "VmHWM") - before
            assert grown <= MEMORY_BYTES_MAX, (path, count, size, grown >> 20)
    assert beats.count > 0 and broker.alive()
