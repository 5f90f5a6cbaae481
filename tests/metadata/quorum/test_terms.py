"""Controller elections in isolation: what a node reads, when it becomes a candidate, and the end of
its term. Time is virtual; the quorum, the copy and the service are simulated.
"""

import asyncio
import logging
from types import SimpleNamespace

import pytest

from pylog._native.log.log import StorageError
from pylog.metadata.log.metadata_log import Conflict
from pylog.metadata.quorum import controller_election
from pylog.metadata.quorum.controller_election import ControllerElection
from pylog.metadata.quorum.quorum_state import Holder, QuorumLost, Term, Trimmed, View
from pylog.peer.errors import PeerError
from tests.metadata.virtual import run

NODE, TTL_S = 1, 9
OTHER, THIRD = Holder(2, 4, "h2", 92), Holder(3, 5, "h3", 93)
REFUSES, SILENT = "refuses", "silent"


class World:
    """views: results of queries, in order, the last one repeated; an exception is raised. `done`:
    actions in order, with times. `listeners`: by host: REFUSES, SILENT, or the seconds after which
    its connection ends.
    """

    def __init__(self, monkeypatch, *views, listeners=None, end=0):
        self.views, self.listeners = list(views), listeners or {}
        self.done, self.stirs, self.open, self.looks = [], [], 0, []
        self.end_offset, self.term, self.batches_left, self.snapshots = end, None, [], []
        self.last_epoch, self.lost_keys = 0, ""
        self.failures = {}               # name -> exceptions of its next calls
        self.appointed = asyncio.Event()
        self.quorum = self
        self.election = ControllerElection(self, self, NODE, "own", 91, TTL_S, "credentials")
        monkeypatch.setattr(controller_election, "Peer", SimpleNamespace(connect=self.connect))

    def did(self, name, *arguments):
        self.done.append((name, *arguments))
        failures = self.failures.get(name)
        if failures:
            raise failures.pop(0)

    def run(self, seconds, meanwhile=None):
        """Run for this long; return the exception that ended it."""
        async def go(loop):
            self.loop, self.began_s = loop, loop.time()
            task = loop.create_task(self.election.run())
            await asyncio.sleep(0)
            if meanwhile is not None:
                await meanwhile()
            await asyncio.sleep(max(0, self.began_s + seconds - loop.time()))
            ended = task.exception() if task.done() else None
            task.cancel()
            await asyncio.wait([task])
            await asyncio.sleep(0.1)
            assert self.open == 0
            return ended
        return run(go)

    def times(self, name):
        return [round(at, 1) for what, at in self.looks if what == name]

    def names(self):
        return [entry[0] for entry in self.done]

    # ---- quorum

    def read_view(self):
        self.looks.append(("look", self.loop.time() - self.began_s))
        view = self.views.pop(0) if len(self.views) > 1 else self.views[0]
        if isinstance(view, Exception):
            raise view
        return view

    async def watch(self, stir):
        self.stirs.append(stir)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.stirs.remove(stir)

    def campaign(self, node_id, host, port, ttl_s, view):
        self.did("campaign", node_id, host, port, ttl_s, view)
        return Term(view.epoch + 1, b"text", view.end, 70, Holder(node_id, view.epoch + 1, host,
                                                                  port))

    def renew(self, term, ttl_s):
        self.looks.append(("renew", self.loop.time() - self.began_s))
        self.did("renew", term.lease, ttl_s)
        return term._replace(lease=term.lease + 1)

    def resign(self, term):
        self.did("resign", term.epoch)

    # ---- copy of the log

    def catch_up(self):
        self.did("catch_up")
        self.end_offset += 2
        return [self.end_offset]

    def load_snapshot(self):
        self.did("load_snapshot")
        if not self.snapshots:
            return False
        self.end_offset = self.snapshots.pop()
        return True

    def begin_term(self, term):
        self.did("begin_term", term.epoch, self.end_offset)
        self.term = term

    def end_term(self):
        self.did("end_term")
        self.term = None

    # ---- service

    async def follow(self, batches):
        self.did("follow", batches)

    async def reload_snapshot(self):
        self.did("begin_anew")

    def learned(self, holder):
        self.did("learned", holder.node_id)

    async def become_active(self, epoch, heard):
        self.failed = asyncio.Event()
        self.did("appoint", epoch)
        self.heard = heard
        return self.failed

    async def step_down(self):
        self.did("dismiss")

    # ---- listeners

    async def connect(self, host, port, client_id, timeout_s, credentials):
        self.looks.append((host, self.loop.time() - self.began_s))
        assert (client_id, credentials) == (f"standby-{NODE}", "credentials")
        what = self.listeners.get(host, SILENT)
        if isinstance(what, list):
            what = what.pop(0)
        if what == SILENT:
            await asyncio.sleep(timeout_s)
            raise PeerError("no answer") from TimeoutError()
        if what == REFUSES:
            raise PeerError("refused") from ConnectionRefusedError()
        self.open += 1
        world = self

        class Peer:
            watched = False

            def watch_host(self):
                self.watched = True

            async def ended(self):
                assert self.watched
                await asyncio.sleep(what)

            def silent_s(self):
                return 1.5

            def close(self):
                world.open -= 1
        return Peer()


def test_vacant_controller_lease_is_acquired_after_catch_up_and_renewed_thrice(
        monkeypatch):
    world = World(monkeypatch, View(4, 5, None))
    world.run(10)
    assert world.done[:7] == [
        ("catch_up",), ("follow", [2]), ("catch_up",), ("follow", [4]), ("catch_up",),
        ("follow", [6]), ("campaign", NODE, "own", 91, TTL_S, View(4, 5, None))]
    assert world.names()[7:10] == ["begin_term", "learned", "appoint"]
    assert world.times("renew") == [0, 3, 6, 9]
    assert [entry[1] for entry in world.done if entry[0] == "renew"] == [70, 71, 72, 73]
    # It is dismissed before the others are notified.
    assert world.names()[-3:] == ["end_term", "dismiss", "resign"] and world.heard is None
    assert world.election.holder is None


def test_own_term_from_before_a_restart_is_resumed(monkeypatch):
    world = World(monkeypatch, View(4, 0, Holder(NODE, 4, "own", 91)))
    world.run(1)
    assert ("appoint", 5) in world.done


def test_term_begins_only_at_the_end_of_the_won_log(monkeypatch):
    world = World(monkeypatch, View(4, 0, None), end=0)
    campaign = world.campaign
    world.campaign = lambda *given: campaign(*given)._replace(end=3)
    world.run(1)
    assert ("begin_term", 5, 4) in world.done


def test_running_holder_is_not_disturbed(monkeypatch):
    world = World(monkeypatch, View(4, 0, OTHER), listeners={"h2": 1000})
    world.run(10.5)
    assert "campaign" not in world.names() and world.done == [("learned", 2)]
    assert len(world.times("look")) == 11 and world.times("h2") == [0]
    assert world.election.holder == OTHER and world.stirs == []


@pytest.mark.parametrize("word", ["watch", "stir"])
def test_watch_events_are_handled_immediately(monkeypatch, word):
    world = World(monkeypatch, View(4, 0, OTHER), View(4, 4, OTHER), listeners={"h2": 1000})

    async def news():
        await asyncio.sleep(0.5)
        if word == "stir":
            world.election.wake()
        else:
            world.stirs[0]()
        await asyncio.sleep(0.1)
        assert world.end_offset == 4
    world.run(3, news)
    assert world.times("look") == [0, 0.5, 1.5, 2.5]


def test_controller_that_refuses_connections_is_replaced_immediately(monkeypatch):
    world = World(monkeypatch, View(4, 0, OTHER), listeners={"h2": REFUSES})
    world.run(0.5)
    assert ("appoint", 5) in world.done and world.heard is None


def test_unresponsive_holder_is_dialled_again_and_treated_as_running(monkeypatch):
    world = World(monkeypatch, View(4, 0, OTHER), listeners={"h2": SILENT})
    world.run(5)
    assert world.times("h2") == [0, 1.5, 3, 4.5] and "campaign" not in world.names()


def test_controller_is_dialled_again_when_its_connection_ends(monkeypatch):
    world = World(monkeypatch, View(4, 0, OTHER), listeners={"h2": [2, REFUSES]})
    world.run(3)
    assert world.times("h2") == [0, 2] and ("appoint", 5) in world.done
    assert world.heard.node_id == 2
    assert world.heard.at_s - world.began_s == pytest.approx(0.5, abs=0.1)


def test_last_contact_of_an_earlier_controller_is_not_used(monkeypatch):
    """It may have recovered: its session has not expired."""
    world = World(monkeypatch, View(4, 0, OTHER), View(5, 0, THIRD), View(5, 0, THIRD),
                  View(5, 0, None), listeners={"h2": [0.5, SILENT], "h3": SILENT})
    world.run(5)
    assert ("appoint", 6) in world.done and world.heard is None


def test_new_lease_holder_is_watched_instead_of_the_previous_one(monkeypatch):
    world = World(monkeypatch, View(4, 0, OTHER), View(5, 0, THIRD), View(5, 0, THIRD),
                  listeners={"h2": 1000, "h3": 1000})
    world.run(5)
    assert [entry for entry in world.done if entry[0] == "learned"] == [
        ("learned", 2), ("learned", 3)]
    assert (world.times("h2"), world.times("h3")) == ([0], [1])


def test_failed_append_ends_the_term_immediately(monkeypatch):
    world = World(monkeypatch, View(4, 0, None))

    async def fails():
        await asyncio.sleep(1)
        world.term = None
        world.failed.set()
        await asyncio.sleep(0.2)
        assert world.names().count("dismiss") == 1
    world.run(2, fails)
    assert world.times("renew")[:2] == [0, 1]  # of the next term


def test_failure_that_keeps_the_term_is_ignored(monkeypatch):
    world = World(monkeypatch, View(4, 0, None))

    async def wakes():
        await asyncio.sleep(1)
        world.failed.set()
        await asyncio.sleep(1)
        assert "dismiss" not in world.names()
    world.run(2, wakes)
    assert world.times("renew") == [0]


@pytest.mark.parametrize(("error", "pause_s", "level"), [
    (Conflict("another"), 0, logging.INFO), (QuorumLost("away"), 0.1, logging.WARNING),
    (StorageError(5, 0, "no room"), 1.0, logging.ERROR)])
@pytest.mark.parametrize("name", ["campaign", "renew", "begin_term", "appoint"])
def test_node_returns_to_standby_after_any_failed_start_of_a_term(
        monkeypatch, caplog, name, error, pause_s, level):
    caplog.set_level(logging.INFO, "pylog.metadata")
    world = World(monkeypatch, View(4, 0, None))
    world.failures[name] = [error]
    world.run(2)
    first, second = [at for what, at in world.looks if what == "look"]
    assert second - first == pytest.approx(pause_s, abs=0.05)
    assert world.names().count("appoint") == (2 if name in ("renew", "appoint") else 1)
    assert world.names().count("dismiss") == (1 if name == "campaign" else 2)
    assert [row.levelno for row in caplog.records
            if getattr(row, "reason", None) == str(error)] == [level]


@pytest.mark.parametrize(("name", "error"), [
    ("catch_up", ValueError("damaged")), ("catch_up", Trimmed("no snapshot"))])
def test_unrecoverable_error_ends_the_term(monkeypatch, name, error):
    world = World(monkeypatch, View(4, 5, None))
    world.failures[name] = [error]
    assert world.run(1) is error and world.stirs == []


def test_long_absent_node_starts_with_the_newest_snapshot(monkeypatch):
    world = World(monkeypatch, View(4, 9, None))
    world.failures["catch_up"], world.snapshots = [Trimmed("gone")], [8]
    world.run(1)
    assert world.names()[:6] == [
        "catch_up", "load_snapshot", "begin_anew", "catch_up", "follow", "campaign"]
    assert world.end_offset == 10
