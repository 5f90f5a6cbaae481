"""The commands of the page on backups: back up, lose the data, restore, compare."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pylog.client import Admin, Consumer, NewTopic, Producer
from pylog.testing.child import pause
from tests.docs.session import ROOT
from tests.fixtures.brokers import Brokerd
from tests.monitor import scrape

PAGE = ROOT / "docs/howto/backup.md"
RECORDS, COMMITTED = 1000, 300
PYLOG = "import sys; from pylog import cli; sys.exit(cli.pylog(sys.argv[1:]))"
# The page's topic has one partition, so that its offsets are the numbers of the records.
SETTINGS = {"metrics.listener": "127.0.0.1:0", "offsets.topic.num.partitions": 4,
            "group.initial.rebalance.delay.ms": 0}


def section(title: str) -> str:
    """Return the commands of one section of the page."""
    text = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, title
    return "\n".join(found)


class Machine:
    """A broker, and a shell whose `systemctl` stops and starts it."""

    def __init__(self, root: Path):
        self.root = root
        self.broker = Brokerd(root / "broker", SETTINGS)
        self.backup = root / "backup"
        self.broker.start()

    def shell(self, commands: str) -> str:
        """Run commands of the page and return their output."""
        parts = re.split(r"^systemctl (stop|start) brokerd$", commands, flags=re.MULTILINE)
        output = self._run(parts[0])
        for action, rest in zip(parts[1::2], parts[2::2], strict=True):
            if action == "start":
                self.broker.start()
            elif self.broker.alive():
                assert self.broker.stop() == 0
            output += self._run(rest)
        return output

    def _run(self, commands: str) -> str:
        address = scrape.address_of(self.broker)
        prelude = (f"set -e\nDATA={shlex.quote(str(self.broker.data_dir))}\n"
                   f"BACKUP={shlex.quote(str(self.backup))}\n"
                   f'pylog() {{ {shlex.quote(sys.executable)} -c {shlex.quote(PYLOG)} "$@"; }}\n')
        done = subprocess.run(
            ["bash", "-c", prelude + commands], cwd=self.root, capture_output=True, text=True,
            timeout=100, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT),
                              "PYLOG_BOOTSTRAP": self.broker.bootstrap,
                              "PYLOG_HEALTH_URL": f"http://{address}"})
        assert done.returncode == 0, (commands, done.stdout, done.stderr)
        return done.stdout

    def fill(self) -> None:
        """Write the records, and commit an offset of the group `app`."""
        with Producer({"bootstrap.servers": self.broker.bootstrap}) as producer:
            for number in range(RECORDS):
                producer.send("orders", b"order %d" % number, key=b"%d" % (number % 7))
        with Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "app",
                       "enable.auto.commit": False}) as consumer:
            consumer.assign([("orders", 0)])
            consumer.commit({("orders", 0): COMMITTED})

    def records(self, topic: str = "orders") -> list:
        """Return (offset, key, value, timestamp) of every record."""
        with Consumer({"bootstrap.servers": self.broker.bootstrap,
                       "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([(topic, 0)])
            found: list = []
            end = consumer.end_offsets([(topic, 0)])[topic, 0]
            deadline = time.monotonic() + 30
            while len(found) < end and time.monotonic() < deadline:
                found += [(row.offset, row.key, row.value, row.timestamp)
                          for row in consumer.poll(1.0)]
            return found

    def committed(self) -> int | None:
        with Admin({"bootstrap.servers": self.broker.bootstrap}) as admin:
            found = admin.list_consumer_group_offsets("app")
            return next((int(getattr(value, "offset", value)) for key, value in found.items()
                         if tuple(key)[:2] == ("orders", 0)), None)


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    try:
        with Admin({"bootstrap.servers": made.broker.bootstrap}) as admin:
            admin.create_topics([NewTopic("orders", 1, 1, configs={"retention.ms": "-1"})])
        made.fill()
        yield made
    finally:
        made.broker.kill()


def test_copy_of_a_stopped_broker_restores_records_offsets_and_groups(machine):
    before = machine.records()
    assert len(before) == RECORDS and machine.committed() == COMMITTED
    machine.shell(section("Copy a stopped broker"))
    with Producer({"bootstrap.servers": machine.broker.bootstrap}) as producer:
        producer.send("orders", b"after the backup").result(30)
    machine.broker.kill()
    for path in machine.broker.data_dir.rglob("*.log"):
        path.write_bytes(b"overwritten by a faulty program")
    with pytest.raises(AssertionError, match="damage"):
        machine.shell('pylog log verify --quiet "$DATA"')
    machine.shell(section("Restore a copy"))
    assert machine.records() == before and machine.committed() == COMMITTED
    assert json.loads((machine.root / "offsets-after.json").read_text())


def test_copy_of_one_moment_of_a_running_broker_has_all_acknowledged_records(machine):
    before = machine.records()
    machine.shell("pylog offsets --json > offsets-before.json")
    pause(machine.broker.process)  # As a snapshot, it stops all changes.
    try:
        subprocess.run(["cp", "-a", machine.broker.data_dir, machine.backup], check=True)
    finally:
        machine.broker.process.send_signal(signal.SIGCONT)
    machine.broker.kill()
    machine.shell(section("Restore a copy"))
    assert machine.records() == before and machine.committed() == COMMITTED


def test_branch_and_copy_restore_a_topic_of_a_running_broker(machine):
    before = machine.records()
    blocks = section("Copy topics of a running broker")
    back_up, restore = blocks.split("systemctl stop", 1)
    machine.shell(back_up)
    with Producer({"bootstrap.servers": machine.broker.bootstrap}) as producer:
        producer.send("orders", b"after the backup").result(30)
    machine.broker.kill()
    machine.shell("systemctl stop" + restore)
    assert machine.records() == before == machine.records("orders-backup")
    assert machine.committed() == COMMITTED
    saved = json.loads((machine.root / "app.json").read_text())
    assert str(COMMITTED) in json.dumps(saved)


def test_branch_undoes_a_mistake(machine):
    before = machine.records()
    machine.shell(section("Undo a mistake in a topic"))
    assert machine.records() == before
