"""A controller node that joins and leaves the cluster, with a simulated quorum, on a virtual clock.
"""

import asyncio
from types import SimpleNamespace

import pytest

from pylog.config import ConfigError, Settings
from pylog.log.errors import StartError
from pylog.metadata import controller_service, meta_properties
from pylog.metadata.controller_service import FEW_RECORDS, FIRST_S, TOKEN, ControllerMember
from pylog.metadata.image.image import Image
from pylog.metadata.quorum.quorum_log import DIVERGED, PREFIX, UNKNOWN
from pylog.metadata.quorum.quorum_state import Holder, QuorumLost
from pylog.peer.controllers import Controllers, voters_of
from pylog.peer.errors import PeerError
from tests.client.virtual_time import VirtualTime

US, FIRST = 2, 1
CLUSTER = "c" * 22


def settings(**given):
    return Settings({
        "node.id": "2", "controller.quorum.voters": "1@a:1,2@b:1,3@c:1",
        "listeners": "PLAINTEXT://:0,CONTROLLER://:0", "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "process.roles": "broker,controller", **given})


class Quorum:
    """losses: number of calls without a majority. names: cluster ids that it returns, call by call.
    epochs, end, holder: of its log.
    """

    def __init__(self):
        self.losses, self.asked, self.closed = 0, [], 0
        self.names, self.epochs, self.end, self.holder = [], [3], 0, None
        self.keys = SimpleNamespace(name="etcd", addresses=["a:1", "b:2"])

    def _call(self, *what):
        self.asked.append(what)
        if self.losses:
            self.losses -= 1
            raise QuorumLost("two of three are away")

    def known_cluster_id(self):
        self._call("known")
        return self.names.pop(0) if self.names else None

    def cluster_id(self, proposed):
        self._call("cluster_id", proposed)
        return proposed

    def read_view(self):
        self._call("look")
        epoch = self.epochs.pop(0) if len(self.epochs) > 1 else self.epochs[0]
        return SimpleNamespace(epoch=epoch, end=self.end, holder=self.holder)

    def close(self):
        self.closed += 1


class World:
    """A node with only the parts under test. heard: its actions, in order."""

    def __init__(self, monkeypatch, node_id=US):
        async def at_once(work, *arguments):
            return work(*arguments)

        monkeypatch.setattr(controller_service, "in_thread", at_once)
        self.time, self.quorum, self.heard = VirtualTime(), Quorum(), []
        member = self.member = ControllerMember.__new__(ControllerMember)
        member._node_id, member._quorum, member._random = node_id, self.quorum, None
        member._voters = [SimpleNamespace(node_id=id_, host=f"h{id_}") for id_ in (1, 2, 3)]
        member._settings = settings(**{"quorum.etcd.endpoints": "a:1"})
        member._logs = SimpleNamespace(paths=["/data"], disks=SimpleNamespace(
            usable=lambda: [(0, "/data")]))
        member._member = member._standing = None
        member.store = SimpleNamespace(save=self._did("store"))
        member._identity = SimpleNamespace(cluster_id=CLUSTER)
        member.controllers = SimpleNamespace(learned=self._did("learned"))
        member.tail = self.tail(Image())
        member.election = SimpleNamespace(catch_up=self._catch_up, wake=self._did("wake"))
        self.lost_on_the_way, self.is_rebuildable = 0, True
        self.log(0)

    def _did(self, name, result=None):
        return lambda *given: self.heard.append((name, *given)) or result

    def tail(self, image):
        return SimpleNamespace(newest=image, in_transaction=False, push=self._did("push"),
                               replace=self._did("replace"), fold=lambda batch: batch)

    def log(self, end, snapshot=False, founds=True, compared=PREFIX):
        """The node's own log. compared: its relation to the quorum's."""
        def start_over(keep):
            self.heard.append(("start_over", keep))
            self.member._log.end_offset = 0

        self.member._log = SimpleNamespace(
            compared_to=lambda end: compared, start_over=start_over,
            is_rebuildable=lambda: self.is_rebuildable,
            end_offset=end, last_epoch=3, snapshot_end=77,
            load_snapshot=self._did("load_snapshot", snapshot),
            read_committed=lambda offset: iter([f"snapshot at {offset}"]),
            save_own_snapshot=self._did("save_own_snapshot"),
            found_quorum=self._did("found_quorum", founds),
            snapshot_is_due=lambda offset: offset > 5, shorten=self._did("shorten"))

    async def _catch_up(self, end):
        if self.lost_on_the_way:
            self.lost_on_the_way -= 1
            raise QuorumLost("on the way")
        self.heard.append(("catch_up", end))

    def run(self, coroutine):
        """Return (the result, the seconds that it took)."""
        begin_s = self.time.now_s
        found = self.time.run(coroutine)
        return found, round(self.time.now_s - begin_s, 3)


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


# Retries.

def test_quorum_without_a_majority_is_awaited_and_logged_once(world, caplog):
    world.quorum.losses = 3
    found, took_s = world.run(world.member._patiently(world.quorum.cluster_id, "id"))
    assert (found, took_s) == ("id", 0.6) and world.quorum.asked == [("cluster_id", "id")] * 4
    line, = caplog.records
    assert line.message == "waiting for the majority of etcd"
    assert (line.members, line.reason) == ("a:1,b:2", "two of three are away")


def test_etcds_of_the_controllers_themselves_are_called_so(world, caplog):
    world.member._settings = settings()
    world.quorum.losses = 1
    world.run(world.member._patiently(world.quorum.known_cluster_id))
    assert caplog.records[0].message == "waiting for the majority of the controllers' etcds"


# Cluster identity.

@pytest.mark.parametrize(("known_id", "fits"), [(None, True), (CLUSTER, True), ("other", False)])
def test_a_node_with_data_of_another_cluster_does_not_join(known_id, fits):
    if fits:
        ControllerMember._check_cluster("/data", known_id, CLUSTER)
        return
    with pytest.raises(StartError, match="/data belongs to cluster other, the quorum to ccc"):
        ControllerMember._check_cluster("/data", known_id, CLUSTER)


def test_the_first_controller_names_a_new_cluster_at_once(monkeypatch):
    world = World(monkeypatch, FIRST)
    monkeypatch.setattr(controller_service, "random_id", lambda source: bytes(16))
    found, took_s = world.run(world.member._unnamed_cluster(None))
    assert (found, took_s) == ("A" * 22, 0)
    assert world.quorum.asked == [("known",), ("cluster_id", "A" * 22)]


def test_nodes_wait_for_the_first_to_choose_the_cluster_id(world):
    world.quorum.names = [None, None, None, "named"]
    found, took_s = world.run(world.member._unnamed_cluster(None))
    assert (found, took_s) == ("named", 0.6) and world.quorum.asked == [("known",)] * 4


def test_another_node_chooses_the_cluster_id_if_the_first_is_missing(world, monkeypatch):
    monkeypatch.setattr(controller_service, "random_id", lambda source: bytes(16))
    found, took_s = world.run(world.member._unnamed_cluster(None))
    assert found == "A" * 22 and took_s == pytest.approx(FIRST_S, abs=0.3)
    assert world.quorum.asked[-1] == ("cluster_id", "A" * 22)


def test_a_node_with_data_names_the_cluster_as_its_data_does(world):
    found, took_s = world.run(world.member._unnamed_cluster(CLUSTER))
    assert (found, took_s, world.quorum.asked) == (CLUSTER, 0, [])


# Catching up.

def test_currently_committed_records_are_caught_up(world):
    world.quorum.end = 9
    world.log(9)
    world.run(world.member._reach_the_end())
    assert world.heard == [("catch_up", 9)] and world.quorum.asked == [("look",)]


@pytest.mark.parametrize("compared", [PREFIX, UNKNOWN])
def test_log_longer_than_the_quorums_stops_the_start(world, compared):
    world.quorum.end = 8
    world.log(9, compared=compared)
    with pytest.raises(StartError, match="in /data has 9 records, the quorum's only 8: etcd has"):
        world.run(world.member._reach_the_end())
    assert world.heard == []


@pytest.mark.parametrize(("compared", "end", "keeps"), [
    (DIVERGED, 8, True), (DIVERGED, 12, True), (UNKNOWN, 12, False)])
def test_unverified_log_is_read_again(world, compared, end, keeps):
    world.quorum.end = end
    world.log(9, compared=compared)
    before = world.member.tail
    world.run(world.member._reach_the_end())
    assert [call[0] for call in world.heard] == ["start_over", "store", "catch_up"]
    assert world.heard[0] == ("start_over", keeps) and world.heard[-1] == ("catch_up", end)
    assert world.member.tail is not before and world.member.tail.newest.offset == -1


@pytest.mark.parametrize("compared", [DIVERGED, UNKNOWN])
def test_log_that_the_quorum_cannot_restore_is_kept(world, compared):
    world.quorum.end, world.is_rebuildable = 12, False
    world.log(9, compared=compared)
    with pytest.raises(StartError, match="has neither the whole metadata log nor a snapshot"):
        world.run(world.member._reach_the_end())
    assert world.heard == []


@pytest.mark.parametrize("call", ["found", "name"])
def test_former_quorum_member_does_not_start_an_empty_quorum(world, tmp_path, call):
    world.member._logs.disks = SimpleNamespace(usable=lambda: [(0, str(tmp_path))])
    known = meta_properties.Membership(CLUSTER, US, "1@a:1,2@b:1,3@c:1", 7)
    meta_properties.write_membership(str(tmp_path), known)
    world.quorum.epochs = [0]
    world.log(5)
    begin = world.member._reach_the_end if call == "found" \
        else lambda: world.member._unnamed_cluster(CLUSTER)
    with pytest.raises(StartError, match=f"belongs to cluster {CLUSTER} .epoch 7., and etcd at "
                                         "a:1, b:2 has none of its keys.*restore-quorum"):
        world.run(begin())
    assert world.heard == []
    assert meta_properties.permit_founding([str(tmp_path)]) == CLUSTER
    world.quorum.end = 5
    world.run(begin())
    if call == "found":
        assert ("found_quorum", CLUSTER) in world.heard


@pytest.mark.parametrize(("behind", "asks"), [(FEW_RECORDS, False), (FEW_RECORDS + 1, True)])
def test_long_catch_up_uses_a_snapshot(world, behind, asks):
    world.quorum.end = 4 + behind
    world.log(4)
    before = world.member.tail
    world.run(world.member._reach_the_end())
    assert (("load_snapshot",) in world.heard) == asks
    assert world.heard[-1] == ("catch_up", 4 + behind)
    # There was no snapshot to load: it continues batch by batch.
    assert world.member.tail is before


def test_quorum_lost_during_joining_is_retried(world):
    world.lost_on_the_way = 2
    _, took_s = world.run(world.member._reach_the_end())
    assert took_s == 0.4 and world.heard == [("catch_up", 0)]


@pytest.mark.parametrize(("node_id", "learned"), [(US, 0), (3, 1)])
def test_the_active_controller_is_learned_unless_it_is_this_node(world, node_id, learned):
    world.quorum.holder = Holder(node_id, 7, "host", 90)
    world.run(world.member._reach_the_end())
    assert world.heard == [("learned", 3, 7, [(3, "host", 90)])] * learned + [("catch_up", 0)]


# A former single controller.

def test_first_controller_writes_its_records_before_anything_else(monkeypatch, caplog):
    world = World(monkeypatch, FIRST)
    world.quorum.epochs = [0]
    world.quorum.end = 5
    world.log(5)
    with caplog.at_level("INFO"):
        _, took_s = world.run(world.member._reach_the_end())
    assert took_s == 0
    assert [call[0] for call in world.heard] == ["save_own_snapshot", "found_quorum", "catch_up"]
    assert world.heard[0][2:] == (-1, world.member.tail.newest.epoch)
    assert world.heard[1] == ("found_quorum", CLUSTER)
    assert "the cluster continues from this node's metadata" in caplog.text


def test_slower_first_controller_does_not_claim_to_continue(
        monkeypatch, caplog):
    world = World(monkeypatch, FIRST)
    world.quorum.epochs = [0]
    world.quorum.end = 5
    world.log(5, founds=False)
    with caplog.at_level("INFO"):
        world.run(world.member._reach_the_end())
    assert caplog.text == "" and world.heard[-1] == ("catch_up", 5)


def test_other_controllers_wait_for_the_firsts_records(world):
    world.quorum.epochs = [0, 0, 0, 1]
    world.quorum.end = 5
    world.log(5)
    _, took_s = world.run(world.member._reach_the_end())
    assert took_s == 0.4 and world.heard == [("catch_up", 5)]


def test_another_node_imports_its_log_if_the_first_is_missing(world):
    world.quorum.epochs = [0]
    world.quorum.end = 5
    world.log(5)
    _, took_s = world.run(world.member._reach_the_end())
    assert took_s == pytest.approx(FIRST_S, abs=0.3)
    assert [call[0] for call in world.heard] == ["save_own_snapshot", "found_quorum", "catch_up"]


@pytest.mark.parametrize(("own", "epoch"), [(0, 0), (5, 1)])
def test_records_are_written_only_to_an_empty_log_by_a_node_with_data(world, own, epoch):
    world.quorum.epochs, world.quorum.end = [epoch], 5
    world.log(own)
    _, took_s = world.run(world.member._reach_the_end())
    assert took_s == 0 and world.heard == [("catch_up", 5)]


# Standby.

def test_decisions_of_other_controllers_are_replicated_and_trimmed(
        world, monkeypatch):
    monkeypatch.setattr(controller_service, "together", lambda batches: batches)
    for offset, in_transaction, shortened in ((5, False, 0), (6, True, 0), (6, False, 1)):
        world.heard.clear()
        world.member.tail = world.tail(SimpleNamespace(offset=offset))
        world.member.tail.in_transaction = in_transaction
        world.run(world.member.follow(["a", "b"]))
        assert world.heard == [("push", "a"), ("push", "b")] + [
            ("shorten", world.member.tail.newest)] * shortened


def test_snapshot_replaces_the_tails_records(world):
    world.run(world.member.reload_snapshot())
    assert world.heard == [("replace", "snapshot at 0")]


# Active.

def test_a_node_decides_from_its_appointment_to_its_dismissal(world, monkeypatch):
    failed = object()

    class Active:
        append_failed = failed

        def __init__(self, *given):
            assert given[-1] == CLUSTER

        async def begin(self, epoch, first, heard):
            # It may decide while it begins.
            assert world.member.controller is self
            world.heard.append(("begin", epoch, first, heard))

        def resign(self):
            assert world.member.controller is None
            world.heard.append(("resign",))

        async def resigned(self):
            await asyncio.sleep(3)
            world.heard.append(("resigned",))

    monkeypatch.setattr(controller_service, "ActiveController", Active)
    world.member._first, world.member.controller = ["record"], None
    assert world.run(world.member.become_active(8, "heard")) == (failed, 0)
    assert world.run(world.member.step_down()) == (None, 3)
    assert world.heard == [("begin", 8, ["record"], "heard"), ("resign",), ("resigned",)]
    assert world.run(world.member.step_down()) == (None, 0) and len(world.heard) == 3


def test_leaving_node_ends_its_standby_before_quorum_and_etcd_stop(world):
    async def stop():
        world.heard.append(("stopped", world.quorum.closed))

    async def office():
        try:
            await asyncio.sleep(1000)
        finally:
            world.heard.append(("office", world.quorum.closed))

    async def work():
        world.member.election.run = office
        task = world.member.start_election()
        await asyncio.sleep(1)
        world.member.wake()
        await world.member.leave()
        assert task.cancelled()

    world.member._member = SimpleNamespace(stop=stop, failed=asyncio.Event(), failure=None)
    world.run(work())
    assert world.heard == [("wake",), ("office", 0), ("stopped", 1)]


def test_a_node_that_never_stood_by_can_leave(world):
    world.member.election = None
    world.member.wake()
    world.run(world.member.leave())
    assert world.quorum.closed == 1


# Composition.

def test_nearest_etcd_is_tried_first(world):
    assert world.member._etcd_addresses == ["h2:2379", "h1:2379", "h3:2379"]


@pytest.mark.parametrize(("given", "login"), [
    ({}, None), ({"password": "p"}, None), ({"username": "u", "password": "p"}, ("u", "p")),
    ({"username": "u"}, ConfigError)])
def test_a_login_to_etcd_has_a_name_and_a_password(given, login):
    given = settings(**{f"quorum.etcd.{name}": value for name, value in given.items()})
    if login is ConfigError:
        with pytest.raises(ConfigError, match="password is not"):
            controller_service._login(given)
    else:
        assert controller_service._login(given) == login


@pytest.mark.parametrize("outer", [True, False])
def test_etcd_runs_here_unless_the_quorum_is_external(world, monkeypatch, outer):
    monkeypatch.setattr(controller_service, "Member", lambda *given: given)
    monkeypatch.setattr(controller_service.etcd_tls, "write_files", lambda settings: "files")
    if not outer:
        world.member._settings = settings(**{"log.dirs": "/data"})
    world.member._etcd_context = "context"
    made = world.member._new_member()
    if outer:
        assert made is None
        return
    _, path, node_id, hosts, token, written, context, policy = made
    assert (path, node_id, token) == ("/data/etcd", US, TOKEN) and len(hosts) == 3
    assert (written, context) == ("files", "context")
    assert (policy.cluster_id(), policy.prefix, policy.absent_s) == (None, "/pylog/", 10)


def test_failed_member_start_stops_the_start(world):
    failure = StartError("the port is in use")
    world.member._member = SimpleNamespace(failure=failure)
    with pytest.raises(StartError, match="the port is in use"):
        world.run(world.member._patiently(world.quorum.read_view))
    assert world.quorum.asked == []


def test_a_start_without_a_quorum_ends_after_the_configured_time(world):
    world.quorum.losses = 1000
    world.member._give_up_s = world.time.now_s + 60
    with pytest.raises(StartError, match="no quorum of etcd was formed within 60 s at a:1, b:2"):
        world.run(world.member._patiently(world.quorum.read_view))


def test_failed_member_restart_stops_the_node(world):
    failed = asyncio.Event()
    world.member._member = SimpleNamespace(failed=failed, failure=None)

    async def office():
        await asyncio.sleep(1000)

    async def work():
        world.member.election.run = office
        task = world.member.start_election()
        await asyncio.sleep(1)
        world.member._member.failure = StartError("it was removed")
        failed.set()
        with pytest.raises(StartError, match="it was removed"):
            await task

    world.run(work())


# Features of the other controllers.

def test_only_other_controllers_that_are_no_brokers_are_queried_for_features(
        world, monkeypatch, caplog):
    """2 is this node; 3 is a broker, whose registration has its features; 4 does not respond."""
    class Peer:
        async def connect(host, port, client_id, credentials):
            assert (port, client_id, credentials) == (1, "controller-2", "login")
            if host == "d":
                raise PeerError("d:1: no connection within 5.0 s")
            world.heard.append(host)
            return Peer()

        async def features(self):
            return {"group.version": (0, 1)}

        def close(self):
            world.heard.append("closed")

    monkeypatch.setattr(controller_service, "Peer", Peer)
    world.member.controllers = Controllers(voters_of(["1@a:1", "2@b:1", "3@c:1", "4@d:1"]))
    world.member.credentials = "login"
    world.member.tail = SimpleNamespace(published=SimpleNamespace(brokers={2: None, 3: None}))
    found, _ = world.run(world.member.standby_features())
    assert found == [(1, {"group.version": (0, 1)})]
    assert world.heard == ["a", "closed"]
    [line] = [line for line in caplog.records if "which features" in line.message]
    assert line.controller == 4
