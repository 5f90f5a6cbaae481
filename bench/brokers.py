"""pylog's brokerd as a child process, with the interface of bench.kafka.KafkaBroker.

Invariants: the broker runs from this checkout and with this interpreter; it listens on loopback
only.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pylog.testing.ports import free_port
from bench.process import BrokerProcess
from bench.programs import cache_dir

CHECKOUT = Path(__file__).resolve().parent.parent
READY = re.compile(rb"brokerd ready .*\bms=(\d+)")
START_WAIT_S = 60.0
RELAXED = {"log.flush.acks.all.enable": "false"}
KAFKA_FLUSH_EACH = {"log.flush.interval.messages": "1"}


@contextmanager
def started(stem: str, names: Iterable[str],
            make: Callable[[str, Path], BrokerProcess]) -> Iterator[dict[str, BrokerProcess]]:
    """Yield brokers by name, in a separate folder. At the end, also after a failed start, all
    brokers are stopped and the folder is removed.
    """
    cache_dir().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{stem}-", dir=cache_dir()))
    with ExitStack() as ending:
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        brokers = {}
        for name in names:
            brokers[name] = make(name, folder).start()
            ending.callback(brokers[name].stop)
        yield brokers


@contextmanager
def command_line(words: Sequence[str], output: Path, is_ready: Callable[[], object], wait_s: float
                 ) -> Iterator[tuple[subprocess.Popen, float]]:
    """Run `pylog WORDS`, which serves. Yield (process, seconds until is_ready() raised no OSError).
    Exits with the program's output if it ends, or is not ready in time.
    """
    began_s = time.monotonic()
    with open(output, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", "from pylog.cli import pylog; pylog()", *words], stdout=file,
            stderr=file, cwd=CHECKOUT, env={**os.environ, "PYTHONPATH": str(CHECKOUT)})
    try:
        while True:
            try:
                is_ready()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() - began_s > wait_s:
                    sys.exit(output.read_text())
                time.sleep(0.01)
        yield process, time.monotonic() - began_s
    finally:
        process.terminate()
        process.wait(wait_s)


class PylogBroker(BrokerProcess):
    """A single brokerd on loopback. data_dir: its log.dirs; overrides: settings by Kafka's names.
    """

    name = "pylog"

    def _start(self) -> None:
        self.port = self.wanted_port or free_port()
        self.spawn_brokerd()
        self.wait_answer(START_WAIT_S, pause_s=0.001)

    def spawn_brokerd(self) -> None:
        """Start brokerd without waiting for a response."""
        settings = {
            "listeners": self.listener_addresses(),
            "log.dirs": self.data_dir,
            **self.overrides,
        }
        command = [sys.executable, "-m", "pylog"]
        for key, value in settings.items():
            command += ["--override", f"{key}={value}"]
        path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
        self.spawn(command, env={**os.environ, "PYTHONPATH": path})

    @property
    def ready_ms(self) -> int | None:
        """Return the milliseconds that brokerd prints in its ready line."""
        lines = READY.findall(self.output.read_bytes())
        return int(lines[-1]) if lines else None
