"""Order of startup steps, for a broker that is its own controller and for one of several
controllers; the steps are simulated.
"""

import asyncio
from types import SimpleNamespace

import pytest

from pylog._native.log.log import LogError
from pylog.log.errors import StartError
from pylog.metadata import controller_service, service
from pylog.metadata.image.image import Image, MetadataError
from pylog.metadata.log.local_log import LocalLog
from pylog.metadata.quorum.key_value import Unreachable
from pylog.metadata.quorum.quorum_log import QuorumLog
from pylog.protocol.errors import ErrorCode
from tests.metadata.test_controller_service_joining import CLUSTER, World, settings

KNOWN = "known"


def failure():
    return LogError(5, ErrorCode.KAFKA_STORAGE_ERROR, "planted")


class Log:
    """Replaces a LocalLog or a QuorumLog. made: the arguments of each instance."""

    made: list = []

    def __init__(self, directory, checkpoint, now_ms, *rest, **limits):
        self.read_from = []
        Log.made.append((directory, checkpoint))

    def read(self, offset):
        self.read_from.append(offset)
        return ["batch"]

    read_committed = read


class Tail:
    """Records replayed batches, and returns a given image as the newest."""

    def __init__(self, image):
        self.newest, self.replayed = image, []

    def replay(self, batches):
        self.replayed += batches

    def begin(self):
        """Effects from here on."""


@pytest.fixture
def parts(monkeypatch):
    Log.made = []
    monkeypatch.setattr(service, "LocalLog", Log)
    monkeypatch.setattr(controller_service, "QuorumLog", Log)
    monkeypatch.setattr(Log, "KEY", LocalLog.KEY, raising=False)
    for module in (service, controller_service):
        monkeypatch.setattr(module, "Tail", Tail)
    return monkeypatch


def noting(heard, target, **results):
    """Replace methods of the target by ones that record their names; an exception among results is
    raised.
    """
    def method(name, result):
        def call(*given):
            heard.append(name)
            if isinstance(result, Exception):
                raise result
            return result
        return call

    for name, result in results.items():
        setattr(target, name, method(name, result))


# Single controller.

class Alone:
    """A broker that is its own controller."""

    def __init__(self, clean=(0,), **results):
        self.heard = []
        made = self.service = service.MetadataService.__new__(service.MetadataService)
        made._settings, made._now_ms, made._random, made._node_id = settings(), None, None, 1
        made._identity = SimpleNamespace(cluster_id=CLUSTER)
        made._logs = SimpleNamespace(
            directories=["first", "second"], paths=["/a", "/b"], take_failed=lambda: ["lost"],
            disks=SimpleNamespace(usable=lambda: [(0, "/a"), (1, "/b")]))
        made.controller = SimpleNamespace()
        noting(self.heard, made, **{
            "_open_directories": ("store", frozenset(clean), {LocalLog.KEY: KNOWN, "row": 1}),
            "_follow_log": None, "take_broker_configs": None, "_open_partitions": None, **results})
        made.tail = SimpleNamespace(newest=Image(), begin=lambda: self.heard.append("begin"))
        made.controller.become_active = lambda *given: self.heard.append(("become_active", *given))
        made.controller.leave_offline_now = lambda failed: self.heard.append(("offline", failed))


@pytest.mark.parametrize(("clean", "checkpoint", "all_clean"), [
    ((0, 1), KNOWN, True), ((0,), KNOWN, False), ((1,), None, False), ((), None, False)])
def test_a_log_is_trusted_if_its_directory_was_stopped_cleanly_and_terms_if_all_were(
        parts, clean, checkpoint, all_clean):
    alone = Alone(clean)
    alone.service.open(["first"])
    assert Log.made == [("first", checkpoint)]
    assert alone.heard == [
        "_open_directories", "_follow_log", ("become_active", all_clean, ["first"]),
        "take_broker_configs", "_open_partitions", ("offline", ["lost"]), "begin"]


@pytest.mark.parametrize("error", [MetadataError("planted"), failure(), ValueError("planted")])
def test_unreadable_log_stops_the_start(parts, error):
    alone = Alone(_follow_log=error)
    with pytest.raises(StartError, match="the metadata log in /a cannot be read: .*planted"):
        alone.service.open()
    assert "begin" not in alone.heard


def test_unwritable_log_stops_the_start(parts):
    alone = Alone(_open_partitions=failure())
    with pytest.raises(StartError, match="the metadata log cannot be written"):
        alone.service.open()
    assert "begin" not in alone.heard


def test_start_continues_after_the_stored_image(parts):
    alone = Alone(_stored_image=Image(offset=41), _take_newest=None)
    del alone.service._follow_log
    alone.service._log = log = Log(None, None, None)
    parts.setattr(service, "ActiveController", lambda *given: given)
    alone.service._follow_log("store")
    assert log.read_from == [42] and alone.service.tail.replayed == ["batch"]
    assert alone.heard == ["_stored_image", "_take_newest"]
    assert alone.service.controller[-1] == CLUSTER


# One of several controllers.

class Several(World):
    """Adds the calls of join() to World."""

    def __init__(self, monkeypatch, clean=(0,), known_id=None, **results):
        super().__init__(monkeypatch)
        monkeypatch.setattr(
            controller_service.meta_properties, "cluster_of", lambda paths: known_id)
        member = self.member
        member._logs = SimpleNamespace(paths=["/a"], directories=["first"], disks=SimpleNamespace(
            usable=lambda: [(0, "/a")]))
        member.tail = SimpleNamespace(newest=Image(), begin=lambda: self.heard.append("begin"))
        self.known = {QuorumLog.KEY: KNOWN, "row": 1}
        noting(self.heard, member, **{
            "_open_directories": ("store", frozenset(clean), self.known), "_take_newest": None,
            "_open_partitions": None, **results})
        member._open_log = lambda store, checkpoint: self.heard.append(("log", checkpoint))

        async def reach_the_end():
            self.heard.append("reach")
            if isinstance(results.get("reach"), Exception):
                raise results["reach"]

        async def claim_node():
            self.heard.append("claim")

        async def note_membership(epoch):
            self.heard.append("membership")

        member._reach_the_end = reach_the_end
        member._claim_node, member._note_membership = claim_node, note_membership


STEPS = ["claim", "_open_directories", ("log", KNOWN), "reach", "membership", "begin",
         "_take_newest", "_open_partitions"]


def test_a_node_joins_the_cluster_that_the_quorum_names(monkeypatch):
    world = Several(monkeypatch)
    world.quorum.names = [CLUSTER]
    world.run(world.member.join())
    assert world.heard == STEPS and world.quorum.asked == [("known",)]


def test_a_log_is_trusted_if_its_directory_was_stopped_cleanly(monkeypatch):
    world = Several(monkeypatch, clean=(1,))
    world.quorum.names = [CLUSTER]
    world.run(world.member.join())
    assert ("log", None) in world.heard and QuorumLog.KEY in world.known


@pytest.mark.parametrize("named", [CLUSTER, "other"])
def test_the_name_that_a_node_brings_is_the_quorums_once_its_records_are(monkeypatch, named):
    world = Several(monkeypatch, known_id=CLUSTER)
    world.quorum.cluster_id = lambda proposed: world.heard.append(("named", proposed)) or named
    if named == CLUSTER:
        world.run(world.member.join())
        assert world.heard == [*STEPS[:4], ("named", CLUSTER), *STEPS[4:]]
    else:
        with pytest.raises(StartError, match="belongs to cluster c"):
            world.run(world.member.join())
        assert "begin" not in world.heard and "membership" not in world.heard


def test_node_of_another_cluster_opens_no_log(monkeypatch):
    world = Several(monkeypatch, known_id="mine")
    world.quorum.names = [CLUSTER]
    with pytest.raises(StartError, match="/a belongs to cluster mine"):
        world.run(world.member.join())
    assert world.heard == []


class OwnEtcd:
    """This node's etcd. fails: number of calls that it does not answer; failed(): after them."""

    def __init__(self, fails, failed=lambda: None):
        self.fails, self.failed = fails, failed
        self.addresses, self.is_closed = None, False

    def connected(self, addresses):
        self.addresses = addresses
        return self

    def get(self, key):
        assert key == "/pylog/at/end"
        if self.fails:
            self.fails -= 1
            if not self.fails:
                self.failed()
            raise Unreachable("not started")

    def close(self):
        self.is_closed = True


def test_local_etcd_is_started_before_the_quorum_is_queried(monkeypatch):
    world = Several(monkeypatch)
    settled = asyncio.Event()
    settled.set()
    world.quorum.names = [CLUSTER]
    world.member._member = SimpleNamespace(
        settled=settled, failure=None,
        start=lambda: world.heard.append(("etcd", list(world.quorum.asked))))
    own_etcd = OwnEtcd(fails=3)
    monkeypatch.setattr(world.member, "_etcd", own_etcd.connected)
    _, took_s = world.run(world.member.join())
    assert world.heard == [("etcd", []), *STEPS]
    # The other members answered at once.
    assert own_etcd.addresses == ["h2:2379"] and took_s == 0.6 and own_etcd.is_closed


def test_node_whose_etcd_was_removed_does_not_join(monkeypatch):
    world = Several(monkeypatch)
    settled = asyncio.Event()
    settled.set()
    world.quorum.names = [CLUSTER]
    world.member._member = own = SimpleNamespace(
        settled=settled, failure=None, start=lambda: None)

    def removed():
        own.failure = StartError("removed")
    monkeypatch.setattr(world.member, "_etcd", OwnEtcd(fails=3, failed=removed).connected)
    with pytest.raises(StartError, match="removed"):
        world.run(world.member.join())
    assert world.heard == []


@pytest.mark.parametrize("name", ["reach", "_take_newest", "_open_partitions"])
@pytest.mark.parametrize("error", [
    MetadataError("planted"), failure(), OSError("planted"), ValueError("planted")])
def test_unreadable_state_ends_a_controllers_start(monkeypatch, name, error):
    world = Several(monkeypatch, **{name: error})
    world.quorum.names = [CLUSTER]
    with pytest.raises(StartError, match="the metadata log in /a cannot be read: .*planted"):
        world.run(world.member.join())


@pytest.mark.parametrize(("timeout_ms", "lease_s"), [(2000, 2), (2600, 3), (100, 1)])
def test_controller_lease_has_the_nodes_address_and_whole_seconds(
        parts, monkeypatch, timeout_ms, lease_s):
    world = Several(monkeypatch)
    made = []
    monkeypatch.setattr(controller_service, "ControllerElection", lambda *given: made.append(given))
    member = world.member
    del member._open_log
    member._settings = settings(**{"controller.quorum.fetch.timeout.ms": str(timeout_ms)})
    member._voters = [SimpleNamespace(node_id=id_, host=f"h{id_}", port=90 + id_)
                      for id_ in (1, 2, 3)]
    member._now_ms, member.credentials = None, "credentials"
    noting(world.heard, member, _stored_image=Image(offset=41))
    member._open_log("store", KNOWN)
    assert Log.made == [("first", KNOWN)] and member._log.read_from == [42]
    assert member.tail.replayed == ["batch"]
    assert made == [(member._log, member, 2, "h2", 92, lease_s, "credentials")]
