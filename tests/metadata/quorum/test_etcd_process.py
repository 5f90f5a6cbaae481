"""Restarts of this host's etcd: the process is simulated, time is virtual."""

import asyncio
import logging
from types import SimpleNamespace

import pytest

from pylog.metadata.quorum import etcd_process
from pylog.log.errors import StartError
from pylog.metadata.quorum.etcd_bootstrap import EXISTING, NEW
from pylog.metadata.quorum.etcd_process import Host, Member
from tests.metadata.virtual import run

HOSTS = [Host(1, "h1", 11, 12), Host(2, "h2", 21, 22), Host(3, "::3", 31, 32)]


class Joining:
    """Replaces etcd_joining.Joining. outcome: result of state(), or an exception."""

    def __init__(self, outcome=NEW):
        self.outcome, self.calls = outcome, []

    async def check_address(self, directory):
        self.calls.append("check_address")

    async def publish_address(self, directory):
        self.calls.append(f"publish_address {directory}")

    async def state(self):
        self.calls.append("state")
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def member(tmp_path, joining=None):
    made = Member("true", str(tmp_path / "etcd"), 1, HOSTS[:1], "token")
    made._joining = joining or Joining()
    return made


def started(monkeypatch, tmp_path, *runs, seconds=100.0):
    """Return the start times. runs: duration of each run, or an exception; the last one runs
    forever.
    """
    starts, left, made = [], list(runs), member(tmp_path)

    async def go(loop):
        began_s = loop.time()

        async def ran(flags):
            starts.append(round(loop.time() - began_s, 1))
            step = left.pop(0) if left else 1 << 30
            if isinstance(step, Exception):
                raise step
            await asyncio.sleep(step)
            return 1, "its last word"
        monkeypatch.setattr(made, "_run", ran)
        made.start()
        await asyncio.sleep(seconds)
        await made.stop()
        await made.stop()
        count = len(starts)
        await asyncio.sleep(100)
        assert len(starts) == count and made.pid is None

    run(go)
    return starts


def test_process_that_ends_early_is_restarted_with_backoff(monkeypatch, tmp_path):
    assert started(monkeypatch, tmp_path, *[0] * 8) == [
        0, 0.2, 0.6, 1.4, 3.0, 6.2, 11.2, 16.2, 21.2]


def test_process_that_ran_long_is_restarted_at_once(monkeypatch, tmp_path):
    assert started(monkeypatch, tmp_path, 0, 0, 0, 10.5, 0) == [0, 0.2, 0.6, 1.4, 12.0, 12.2]
    assert started(monkeypatch, tmp_path, 0, 0, 9.5) == [0, 0.2, 0.6, 10.9]


@pytest.mark.parametrize("failure", [OSError(12, "no memory"), ValueError("no memory")])
def test_process_that_cannot_start_is_retried(monkeypatch, tmp_path, caplog, failure):
    assert started(monkeypatch, tmp_path, failure) == [0, 0.2]
    row, = [row for row in caplog.records if row.getMessage() == "etcd exited; restarting it"]
    assert row.exit == getattr(failure, "errno", None) and "no memory" in row.reason


def test_failed_member_start_is_reported_and_not_retried(tmp_path, caplog):
    failure = StartError("the port is in use")
    made = member(tmp_path, Joining(failure))

    async def go(loop):
        made.start()
        await made.settled.wait()
        assert made.failed.is_set() and made.failure is failure
        await asyncio.sleep(100)
        assert made._joining.calls == ["state"]
        await made.stop()

    run(go)
    assert [row.reason for row in caplog.records] == ["the port is in use"]


def test_removed_member_is_not_restarted(monkeypatch, tmp_path):
    made = member(tmp_path)

    async def go(loop):
        process = Process([b'{"level":"warn","msg":"server error","error":"the member has been '
                           b'permanently removed from the cluster"}\n', b"later"])

        async def create(*_, **__):
            process.end()
            return process
        monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
        made.start()
        await made.failed.wait()
        assert "was removed from its cluster" in str(made.failure)
        await made.stop()

    run(go)


class Process:
    """A process with this output. It ends `ends_after` seconds after a stop request, None: never.
    """

    pid = 4711

    def __init__(self, lines=(), ends_after=0.0):
        self.lines, self.ends_after = list(lines), ends_after
        self.returncode, self.wishes = None, []
        self.stdout = self
        self.gone = asyncio.Event()

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.lines:
            return self.lines.pop(0)
        await self.gone.wait()
        raise StopAsyncIteration

    def terminate(self):
        self.wishes.append("terminate")
        if self.ends_after is not None:
            asyncio.get_running_loop().call_later(self.ends_after, self.end)

    def kill(self):
        self.wishes.append("kill")
        self.end()

    def end(self):
        self.returncode = 0
        self.gone.set()

    async def wait(self):
        await self.gone.wait()
        return self.returncode


@pytest.mark.parametrize(("ends_after", "wishes", "seconds"), [
    (0.0, ["terminate"], 0), (4.9, ["terminate"], 4.9), (None, ["terminate", "kill"], 5)])
def test_stop_terminates_and_then_kills_the_process(
        monkeypatch, tmp_path, ends_after, wishes, seconds):
    made = member(tmp_path)

    async def go(loop):
        process = Process(ends_after=ends_after)

        async def create(command, *flags, **fields):
            assert fields["cwd"] == made._directory and "--name=node-1" in flags
            return process
        monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
        made.start()
        await asyncio.sleep(1)
        assert made.pid == 4711
        began_s = loop.time()
        await made.stop()
        assert loop.time() - began_s == pytest.approx(seconds, abs=0.01)
        assert process.wishes == wishes and made.pid is None

    run(go)


def test_ended_process_is_not_signalled(tmp_path):
    async def go(loop):
        made, process = member(tmp_path), Process()
        process.end()
        made._process = process
        await made.stop()
        assert process.wishes == []

    run(go)


def test_output_is_bounded_and_its_end_logged(monkeypatch, tmp_path, caplog):
    caplog.set_level(logging.INFO, "pylog.etcd")
    fatal = b'{"level":"fatal","msg":"the end"}\n'

    async def go(loop):
        process = Process([b"a\n"] * 150 + [fatal])

        async def create(*_, **__):
            process.gone.set()
            process.returncode = 7
            return process
        monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
        assert await member(tmp_path)._run([]) == (7, "the end")

    run(go)
    said = [row.getMessage() for row in caplog.records if row.getMessage().startswith("etcd: ")]
    assert said == ["etcd: a"] * 100 + ["etcd: the end"]


@pytest.mark.parametrize(("has_data", "outcome", "state", "call"), [
    (True, EXISTING, NEW, "check_address"), (False, EXISTING, EXISTING, "state"),
    (False, NEW, NEW, "state")])
def test_only_a_member_without_data_checks_how_to_join(tmp_path, has_data, outcome, state, call):
    made = member(tmp_path, Joining(outcome))
    if has_data:
        (tmp_path / "etcd" / "member").mkdir(parents=True)
    flags = asyncio.run(made._arguments())
    assert f"--initial-cluster-state={state}" in flags and "--pre-vote" in flags
    assert f"--data-dir={tmp_path / 'etcd'}" in flags
    assert made._joining.calls == [call] and made.settled.is_set()


def test_secured_member_requires_certificates_from_all_clients():
    files = SimpleNamespace(own="own.pem", key="key.pem", trusted="ca.pem")
    flags = etcd_process.arguments("/d", 3, HOSTS, "t", files=files)
    assert {"--client-cert-auth", "--peer-client-cert-auth", "--peer-cert-file=own.pem",
            "--trusted-ca-file=ca.pem", "--key-file=key.pem"} <= set(flags)
    assert "--listen-peer-urls=https://[::3]:32" in flags
    assert not any("http://" in flag for flag in flags)


@pytest.mark.parametrize("has_data", [True, False])
def test_only_a_member_with_data_publishes_its_address(monkeypatch, tmp_path, has_data):
    made = member(tmp_path)
    if has_data:
        (tmp_path / "etcd" / "member").mkdir(parents=True)

    async def go(loop):
        monkeypatch.setattr(made, "_keep", lambda: asyncio.sleep(0))
        made.start()
        await asyncio.sleep(1)
        # A copy of the data may still run at the old address.
        assert made._joining.calls == []
        made.settled.set()
        await asyncio.sleep(1)
        await made.stop()

    run(go)
    assert made._joining.calls == [f"publish_address {tmp_path / 'etcd'}"] * has_data
