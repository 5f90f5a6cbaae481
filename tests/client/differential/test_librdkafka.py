"""Our client and librdkafka execute the same random programs: same records, same reports.

PROGRAMS=200 in the environment sets their number; --seed is that of the first program.
"""

import os

import pytest

from pylog.testing import Broker
from tests.client.differential import program
from tests.client.differential.execution import SETTINGS, Execution, Mismatch
from tests.client.differential.players import ConfluentPlayer, Outcome, PylogPlayer
from tests.client.differential.program import (
    FORGET, IDEMPOTENT, NO_EVENT, Program, Row, Step,
)

PROGRAMS = 2
PROGRAMS_SLOW = 1000
SECONDS_PER_PROGRAM = 60


@pytest.fixture(scope="module")
def broker():
    with Broker(settings=SETTINGS, process=True) as made:
        yield made
    made.close()


@pytest.fixture
def first_seed(request, random_source):
    """Return the seed of the first program: --seed if it is a number."""
    given = request.config.getoption("--seed")
    return int(given) if given and given != "random" else random_source.getrandbits(32)


@pytest.mark.parametrize("count", [
    pytest.param(PROGRAMS, marks=pytest.mark.timeout(PROGRAMS * SECONDS_PER_PROGRAM)),
    pytest.param(PROGRAMS_SLOW, marks=[
        pytest.mark.slow, pytest.mark.timeout(PROGRAMS_SLOW * SECONDS_PER_PROGRAM)]),
], ids=["short", "slow"])
def test_both_clients_behave_identically(broker, first_seed, count):
    for seed in range(first_seed, first_seed + int(os.environ.get("PROGRAMS", count))):
        print(f"--seed {seed}", flush=True)
        Execution(broker, program.written(seed)).run()


class ReportsRefusedRecords(PylogPlayer):
    """Reports rejected records as delivered, without an offset."""

    def flush(self):
        super().flush()
        for number, outcome in self.outcomes.items():
            if outcome.code:
                self.outcomes[number] = Outcome(0, 0, -1)


class LosesRecords(PylogPlayer):
    """Never sends every seventh record, and reports it with the offset of the previous record."""

    def send(self, kind, topic, partition, row, timestamp):
        if row.number % 7:
            super().send(kind, topic, partition, row, timestamp)
        else:
            self.outcomes[row.number] = Outcome(0, partition or 0, 0)


class SendsTwice(PylogPlayer):
    """Sends every seventh record of an idempotent producer twice."""

    def send(self, kind, topic, partition, row, timestamp):
        super().send(kind, topic, partition, row, timestamp)
        if row.number % 7 == 0:
            self.producer(kind).send(topic, row.value, row.key, partition=partition,
                                     timestamp=timestamp, headers=row.headers)


class SkipsRecords(PylogPlayer):
    """Does not return every fifth record."""

    def poll(self, consumer, count, wait_s):
        return [found for found in super().poll(consumer, count, wait_s) if found[2].offset % 5]


class CommitsTooEarly(PylogPlayer):
    """Reports success for a commit that never reached the broker."""

    def commit(self, consumer):
        return True


@pytest.mark.parametrize(("fault", "event", "message"), [
    (LosesRecords, NO_EVENT, r"pylog: record 7 was reported as .*, where the log has \d"),
    (LosesRecords, FORGET, r"pylog: record 7 was reported as .*, where the log has \d"),
    (SendsTwice, NO_EVENT, r"pylog: .*7, 7, .*sent were last"),
])
@pytest.mark.timeout(120)
def test_a_planted_fault_is_found_in_flight(broker, fault, event, message):
    rows = [Row(number, b"k", b"v", []) for number in range(1, 11)]
    steps = [Step("hold_produce"), Step("send", (IDEMPOTENT, "first", 0, rows)),
             Step("disrupt_in_flight", ("first", event, "none", ""))]
    settings = program.written(0).settings
    with pytest.raises(Mismatch, match=message):
        Execution(broker, Program(0, settings, steps), (fault, ConfluentPlayer)).run()


@pytest.mark.parametrize(("fault", "message"), [
    (ReportsRefusedRecords, r"pylog reports Outcome\(code=0.* of a record that the broker refuses"),
    (LosesRecords, r"pylog: record \d+ was reported as Outcome\(code=0.*where the log has"),
    (SendsTwice, r"are two offsets|pylog: .* has record \d+ twice|pylog: .* ends at \d+ after"),
    (SkipsRecords, r"pylog(: the group)? reads \(.*in place of"),
    (CommitsTooEarly, r"pylog committed None of|pylog: the group has read and committed"),
])
@pytest.mark.timeout(300)
def test_a_planted_fault_is_found(broker, fault, message, monkeypatch):
    monkeypatch.setattr("tests.client.differential.execution.WAIT_S", 2.0)
    with pytest.raises(Mismatch, match=message):
        for seed in range(20):
            Execution(broker, program.written(seed), (fault, ConfluentPlayer)).run()
