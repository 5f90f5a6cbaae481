"""Metadata that a broker stores at a stop and periodically, and its own registration: parts of the
service, without a log.
"""

from types import SimpleNamespace

import pytest

from pylog._native.log.log import LogError
from pylog.config import Settings
from pylog.config.sealing import PasswordEncoder
from pylog.log.errors import StartError
from pylog.log.partition_logs import Role
from pylog.metadata.controller import broker_registration
from pylog.metadata.image.image import ACCESS_RULE, RESOURCE_BROKER, Image, Partition
from pylog.metadata.image.state_store import StoreError
from pylog.metadata.log.local_log import LocalLog
from pylog.metadata.service import RECORDS_BETWEEN_IMAGES, MetadataService, local_roles
from pylog.protocol.errors import ErrorCode

US = 1
MARKS = {0: ("mark",)}


def failure():
    return LogError(5, ErrorCode.KAFKA_STORAGE_ERROR, "planted")


class World:
    """A service whose log, store and directories record their calls. fails: name of a call -> its
    exception.
    """

    def __init__(self, **settings):
        self.heard, self.fails = [], {}
        service = self.service = MetadataService.__new__(MetadataService)
        service._settings = Settings(settings)
        service._node_id, service._stored_offset, service._left_out = US, -1, {}
        service._opened = True
        self.image = Image(offset=7)
        service.tail = SimpleNamespace(published=self.image, newest=self.image,
                                       published_in_transaction=False, begin=self._does("begin"))
        service.store = self.store = SimpleNamespace(
            save=self._does("save"), close=self._does("close"),
            load_image=self._does("load_image", Image(offset=5, epoch=2)))
        service._log = SimpleNamespace(close=self._does("log closed", "checkpoint"),
                                       holds=lambda offset, epoch: (offset, epoch) == (5, 2))
        self.logs = service._logs = SimpleNamespace(
            stopped=frozenset((0, 1)), paths=["/a", "/b"], holds_partitions=lambda: True,
            close_partitions=self._does("partitions closed", [("key", "row")]),
            open_partitions=self._does("open_partitions"),
            disks=SimpleNamespace(write_clean_marks=self._does("marked", MARKS)))

    def _does(self, name, result=None):
        def call(*given, **more):
            self.heard.append((name, *given, *more.items()))
            if name in self.fails:
                raise self.fails[name]
            return result.copy() if isinstance(result, list) else result
        return call

    def stop(self):
        """Return the calls in order, except those for partitions."""
        self.service.close()
        return [call for call in self.heard if call[0] != "partitions closed"]


@pytest.fixture
def world():
    return World()


ROWS = [("key", "row"), (LocalLog.KEY, "checkpoint")]


# Stops.

def test_clean_stop_stores_image_and_checkpoints_with_its_mark(world):
    assert world.stop() == [
        ("log closed",), ("marked", frozenset((0, 1)), -1),
        ("save", world.image, ROWS, ("mark", MARKS)), ("close", True)]
    assert world.service.store is None
    world.heard.clear()
    world.service.close()
    assert world.heard == []


def test_the_mark_has_the_brokers_epoch(world):
    world.image.brokers[US] = SimpleNamespace(epoch=44)
    assert ("marked", frozenset((0, 1)), 44) in world.stop()


def test_start_that_opened_no_partition_leaves_files_unchanged(world):
    service, found = world.service, {"key": "before", LocalLog.KEY: "before"}
    service._opened, service._last_stop = False, (frozenset((0,)), found)
    service.previous_epoch, world.image.brokers[US] = 9, SimpleNamespace(epoch=44)
    world.service.close()
    assert world.heard == [
        ("log closed",), ("marked", frozenset((0,)), 9),
        ("save", None, [*found.items(), (LocalLog.KEY, "checkpoint")], ("mark", MARKS)),
        ("close", True)]


@pytest.mark.parametrize("where", ["after an unclean stop", "unreadable", "amid opening"])
def test_failed_start_leaves_no_clean_stop_mark(world, where):
    service = world.service
    service._opened = False
    if where == "unreadable":
        service._last_stop = frozenset((0,)), {}
        service._unreadable(failure())
    elif where == "amid opening":
        service._last_stop, world.fails = (frozenset((0,)), {}), {"open_partitions": failure()}
        with pytest.raises(LogError):
            service._open_partitions(world.store, frozenset((0,)), {})
        world.heard.clear()
    service.close()
    assert world.heard == [("close", False)]


@pytest.mark.parametrize(("registered", "marked"), [(43, 9), (44, 44)])
def test_the_mark_of_a_member_has_an_epoch_of_this_run_or_the_mark_before(
        world, registered, marked):
    world.service.previous_epoch, world.service._last_epoch = 9, 43
    world.image.brokers[US] = SimpleNamespace(epoch=registered)
    assert ("marked", frozenset((0, 1)), marked) in world.stop()


def test_image_within_a_transaction_is_not_stored(world):
    world.service.tail.published_in_transaction = True
    assert ("save", None, ROWS, ("mark", MARKS)) in world.stop()


def test_clean_stop_mark_requires_the_first_directory(world):
    world.logs.stopped = frozenset((1,))
    assert world.stop() == [("log closed",), ("close", False)]


def test_unwritten_clean_stop_mark_is_not_stored(world):
    world.logs.disks.write_clean_marks = lambda *_: {0: ()}
    assert world.stop() == [("log closed",), ("close", False)]


@pytest.mark.parametrize(("name", "error"), [
    ("log closed", failure()), ("save", StoreError("planted")), ("marked", OSError("planted"))])
def test_failed_stop_is_logged_and_closes_the_store_as_unclean(world, caplog, name, error):
    world.fails = {name: error}
    assert world.stop()[-1] == ("close", False)
    assert [line.message for line in caplog.records] == [
        "the shutdown is not clean; the next start runs recovery"]
    assert world.service.store is None


def test_store_without_a_checksum_is_logged(world, caplog):
    world.fails = {"close": OSError("planted")}
    world.service.close()
    assert [line.message for line in caplog.records] == ["state.lmdb has no checksum"]
    assert world.service.store is None


# Periodic images.

@pytest.mark.parametrize(("behind", "amid", "due"), [
    (RECORDS_BETWEEN_IMAGES - 1, False, False), (RECORDS_BETWEEN_IMAGES, False, True),
    (RECORDS_BETWEEN_IMAGES, True, False)])
def test_image_save_is_due_after_many_records_but_not_during_a_transaction(
        world, behind, amid, due):
    world.service._stored_offset = 7 - behind
    world.service.tail.published_in_transaction = amid
    assert world.service.is_image_due is due


@pytest.mark.parametrize("fails", [False, True])
def test_image_is_not_due_again_after_a_failed_save(world, caplog, fails):
    world.service._stored_offset = 7 - RECORDS_BETWEEN_IMAGES
    if fails:
        world.fails = {"save": StoreError("planted")}
    world.service.save_image()
    assert world.heard == [("save", world.image, [])] and not world.service.is_image_due
    assert ("the image could not be stored" in caplog.text) == fails


@pytest.mark.parametrize("offset", [5, 6])
def test_stored_image_is_used_only_with_its_own_log(world, caplog, offset):
    world.store.load_image = lambda: Image(offset=offset, epoch=2)
    found = world.service._stored_image(world.store)
    assert found.offset == (5 if offset == 5 else -1) and world.service._stored_offset == offset
    assert ("reading the log in full" in caplog.text) == (offset != 5)


# Starts.

@pytest.mark.parametrize(("offset", "holds", "starts"), [
    (-1, True, False), (-1, False, True), (0, True, True)])
def test_partitions_without_metadata_stop_the_start(
        world, offset, holds, starts):
    world.service.tail.newest = Image(offset=offset)
    world.logs.holds_partitions = lambda: holds
    if starts:
        world.service._open_partitions(world.store, frozenset((0,)), {"rows": 1})
        assert world.heard == [
            ("open_partitions", [], {"rows": 1}, frozenset((0,)), world.store)]
    else:
        with pytest.raises(StartError, match="/a holds partitions but its metadata log is empty"):
            world.service._open_partitions(world.store, frozenset(), {})
        assert world.heard == []


def test_store_failure_while_opening_partitions_stops_the_start(world):
    world.fails = {"open_partitions": StoreError("planted")}
    with pytest.raises(StartError, match="/a/state.lmdb cannot be used: planted"):
        world.service._open_partitions(world.store, frozenset(), {})


@pytest.mark.parametrize("fails", [False, True])
def test_registered_broker_follows_and_a_failed_registration_stops_the_start(world, fails):
    world.service._identity = SimpleNamespace(directories={"/a": "id"})
    if fails:
        world.fails = {"register": failure()}
    world.service.controller = SimpleNamespace(register=world._does("register"))
    if fails:
        with pytest.raises(StartError, match="the metadata log cannot be written"):
            world.service.register([("PLAINTEXT", "h", 9)])
        assert len(world.heard) == 1
    else:
        world.service.register([("PLAINTEXT", "h", 9)], ["first"])
        assert world.heard == [
            ("register", [("PLAINTEXT", "h", 9, 0)], ["id"], [], ["first"]), ("begin",)]


@pytest.mark.parametrize(("kind", "authorizer", "told"), [
    (ACCESS_RULE, "", True), (ACCESS_RULE, "org.apache.kafka.metadata.authorizer."
                              "StandardAuthorizer", False), ("other", "", False)])
def test_unused_acls_are_logged(world, caplog, kind, authorizer, told):
    world.service._settings = type("Given", (dict,), {
        "set_dynamic": lambda self, *_: None, "usable_dynamic": lambda self, *_: {}})(
        {"authorizer.class.name": authorizer})
    world.image.security[kind, "x"] = object()
    world.service._take_newest()
    assert ("every client may do everything" in caplog.text) == told


# Dynamic settings.

def test_only_settings_of_this_broker_and_cluster_defaults_apply(world, caplog):
    name = "log.cleaner.threads"
    before = world.service._settings[name]
    for broker, value in (("2", 9), ("", 3)):
        world.image.configs[RESOURCE_BROKER, broker] = {name: str(value)}
    world.service.take_broker_configs(world.image)
    assert world.service._settings[name] == 3 != before
    world.image.configs[RESOURCE_BROKER, "1"] = {name: "4", "log.cleaner.backoff.ms": "x"}
    world.image.configs[RESOURCE_BROKER, ""]["log.retention.ms"] = "y"
    world.service.take_broker_configs(world.image)
    assert world.service._settings[name] == 4
    assert [(line.message, line.setting, line.broker) for line in caplog.records] == [
        ("a dynamic setting cannot be used", "log.retention.ms", ""),
        ("a dynamic setting cannot be used", "log.cleaner.backoff.ms", "1")]


def test_unusable_setting_is_logged_once_with_the_reason(world, caplog):
    kept = world.image.configs[RESOURCE_BROKER, "1"] = {"log.retention.ms": "y"}
    for text in ("y", "y", "z", "1", "z"):
        kept["log.retention.ms"] = text
        world.service.take_broker_configs(world.image)
    assert [line.reason.partition(" for ")[0] for line in caplog.records] == [
        "Invalid value y", "Invalid value z", "Invalid value z"]


def test_setting_sealed_by_another_secret_is_logged(world, caplog):
    name = "listener.name.in.ssl.key.password"
    world.image.configs[RESOURCE_BROKER,
                        "1"] = {name: PasswordEncoder("first", None).sealed(name, "x")}
    world.service.take_broker_configs(world.image)
    assert [(line.setting, line.reason) for line in caplog.records] == [
        (name, f"{name} is encrypted, and password.encoder.secret is not set")]


# Registration.

@pytest.mark.parametrize(("told", "known", "cordons", "expected"), [
    (["x"], True, True, True), ([], True, True, False), (None, True, True, False),
    (["x", "y"], True, True, False), (None, False, True, True), (None, True, False, True)])
def test_cordons_are_reported_after_the_image_has_or_rejects_them(
        world, monkeypatch, told, known, cordons, expected):
    monkeypatch.setattr(broker_registration, "has_cordons", lambda image: cordons)
    world.service._identity = SimpleNamespace(directories={"/a": "x", "/b": "y"})
    world.service._settings = SimpleNamespace(cordoned_log_dirs=frozenset(("/a",)))
    assert world.service.cordoned == ["x"] and world.service.directories == ["x", "y"]
    if known:
        world.image.brokers[US] = SimpleNamespace(cordoned=told)
    assert world.service.reports_cordons() is expected


def test_advertised_addresses_take_precedence_over_bound_ones():
    given = {"listeners": "PLAINTEXT://:0,OTHER://:0",
             "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT"}
    bound = [("PLAINTEXT", "b", 1), ("OTHER", "b", 2)]
    assert World(**given).service.endpoints(bound) == [(*row, 0) for row in bound]
    advertised = World(**given, **{"advertised.listeners": "PLAINTEXT://h:7,OTHER://i:8"})
    assert advertised.service.endpoints(bound) == [("PLAINTEXT", "h", 7, 0), ("OTHER", "i", 8, 0)]


def partition(replicas, leader, isr, **others):
    made = {"replicas": tuple(replicas), "isr": tuple(isr), "leader": leader, "leader_epoch": 6,
            **others}
    return Partition(**{name: made.get(name, ()) for name in Partition._fields})


@pytest.mark.parametrize(("state", "replicates", "may_lead", "role"), [
    (partition([1], 1, [1]), False, True, Role(True, 6, 1, False)),
    (partition([1, 2], 1, [1, 2]), True, True, Role(True, 6, 2, True)),
    (partition([1, 2], 1, [1, 2]), False, True, Role(True, 6, 2, False)),
    (partition([1], 1, [1]), True, True, Role(True, 6, 1, False)),
    (partition([2, 1], 2, [2]), True, True, Role(False, 6, 1, True, False)),
    (partition([1], -1, [], last_known_elr=(1,)), True, True, Role(False, 6, 0, False, True)),
    (partition([2, 1], -1, [], last_known_elr=(2,)), True, True, Role(False, 6, 0, True, False)),
    (partition([2, 1], 2, [2], eligible_leader_replicas=(1,)), True, True,
     Role(False, 6, 1, True, True)),
    (partition([1, 2], 1, [1]), True, False, Role(False, 6, 1, True)),
    (partition([2, 3], 2, [2]), True, True, None)])
def test_nodes_role_depends_on_replicas_leader_and_effective_image(
        state, replicates, may_lead, role):
    topic = SimpleNamespace(partitions=[state, partition([3], 3, [3]), state])
    assert local_roles(topic, US, replicates, may_lead) == [role, None, role]
