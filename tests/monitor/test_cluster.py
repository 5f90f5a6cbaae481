"""Cluster metrics: from simulated images, led partitions and a quorum."""

from types import SimpleNamespace

from pylog.config import Settings
from pylog.metadata.image.image import Image, apply
from pylog.metadata.quorum.key_value import MemberState
from pylog.monitor import metrics, overview
from pylog.monitor.cluster import ClusterView
from pylog.protocol import messages

SECOND_NS = 10**9
TOPIC_ID = b"t" * 16


def image(*partitions):
    """Return an image with topic `t` on the brokers 1 to 3, of which the third is fenced;
    partitions: (leader, replicas, ISR).
    """
    records = [messages.RegisterBrokerRecord(
        broker_id=number, incarnation_id=bytes(16), broker_epoch=number, fenced=number == 3)
        for number in (1, 2, 3)]
    records.append(messages.TopicRecord(name="t", topic_id=TOPIC_ID))
    records += [messages.PartitionRecord(
        partition_id=index, topic_id=TOPIC_ID, leader=leader, replicas=replicas, isr=isr,
        adding_replicas=[], removing_replicas=[])
        for index, (leader, replicas, isr) in enumerate(partitions)]
    return apply(Image(), records, len(records) - 1, 7)


def samples(metadata, led=(), now_ns=0) -> dict:
    """Return family -> {label values: number}."""
    settings = Settings({"min.insync.replicas": "2"})
    found = dict(ClusterView(metadata, settings, lambda: list(led), lambda: now_ns).samples())
    assert found.keys() <= metrics.TABLE.keys()
    return {family: dict(rows) for family, rows in found.items()}


def test_partitions_and_brokers_are_counted_as_the_image_has_them():
    found = samples(SimpleNamespace(image=image(
        (1, [1, 2], [1, 2]), (2, [1, 2], [2]), (-1, [3], [3]))))
    assert found["pylog_cluster_partitions"] == {(): 3}
    assert found["pylog_cluster_partitions_offline"] == {(): 1}
    assert found["pylog_cluster_non_preferred_leaders"] == {(): 1}
    assert found["pylog_cluster_brokers"] == {("active",): 2, ("fenced",): 1, ("stopping",): 0}
    assert found["pylog_controller_epoch"] == {(): 7}
    assert found["pylog_controller_active"] == {(): 0}
    assert found["pylog_quorum_full"] == {}


def led(isr, end, followers):
    """Return a partition led by this broker; followers: (id, end, time when it was at the end)."""
    return SimpleNamespace(
        name="t", isr=SimpleNamespace(committed=isr, replicas=(1, 2, 3)), log=SimpleNamespace(
            end_offset=end, followers=lambda: [
                (id_, 1, at, 0, 0, caught_up_ns) for id_, at, caught_up_ns in followers]))


def test_follower_lag_is_the_maximum_over_partitions():
    metadata = SimpleNamespace(image=image((1, [1, 2, 3], [1, 2, 3])))
    found = samples(metadata, [
        led((1, 2, 3), 100, [(2, 100, 4 * SECOND_NS), (3, 90, 3 * SECOND_NS)]),
        led((1, 2), 50, [(2, 45, 4 * SECOND_NS), (3, -1, 0)]),
        led((1,), 10, [])], 5 * SECOND_NS)
    assert found["pylog_replica_follower_lag_records"] == {(2,): 5, (3,): 50}
    assert found["pylog_replica_follower_lag_seconds"] == {(2,): 1.0, (3,): 2.0}
    assert found["pylog_replica_partitions_led"] == {(): 3}
    assert found["pylog_replica_partitions_at_min_isr"] == {(): 1}
    assert found["pylog_replica_partitions_under_min_isr"] == {(): 1}


def test_controller_reports_elections_and_quorum():
    quorum = SimpleNamespace(is_responding=True, is_full=True, failures=2, appends=10,
                             append_seconds=0.5, members=members)
    found = samples(SimpleNamespace(image=image(), quorum=quorum, controller=SimpleNamespace(
        is_active=True, elections={"clean": 3, "unclean": 1})))
    assert found["pylog_controller_active"] == {(): 1}
    assert found["pylog_controller_elections"] == {("clean",): 3, ("unclean",): 1}
    assert (found["pylog_quorum_full"], found["pylog_quorum_appends"]) == ({(): 1}, {(): 10})
    assert found["pylog_quorum_member_up"] == {("e1:1",): 1, ("e2:1",): 0}
    assert found["pylog_quorum_member_leader"] == {("e1:1",): 1, ("e2:1",): 0}
    assert found["pylog_quorum_member_stored_bytes"] == {("e1:1",): 4096}
    assert found["pylog_quorum_member_response_seconds"] == {("e1:1",): 0.25, ("e2:1",): 0.5}


def members():
    return [MemberState("e1:1", True, True, "3.5", 4096, "", 0.25),
            MemberState("e2:1", False, False, "", -1, "<gone>", 0.5)]


def view(seen, **changed):
    """Return the metrics of node 1."""
    metadata = SimpleNamespace(image=seen, cluster_id="c", **changed)
    return ClusterView(metadata, Settings({"min.insync.replicas": "2", "node.id": "1"}),
                       list, lambda: 0).view()


def test_page_names_problems_that_need_action():
    found = view(image((1, [1, 2], [1, 2]), (2, [1, 2], [2]), (-1, [3], [3])),
                 controllers=SimpleNamespace(active_id=2),
                 quorum=SimpleNamespace(members=members))
    assert (found["controller"], found["told_by"], found["partitions"]) == (2, 1, 3)
    assert found["offline"] == {"count": 1, "names": ["t-2"]}
    assert found["under_replicated"] == found["under_min_isr"] == {"count": 1, "names": ["t-1"]}
    assert found["led_elsewhere"]["names"] == ["t-1"]
    assert [(row["broker"], row["state"], row["leaders"], row["replicas"])
            for row in found["brokers"]] == [
                (1, "active", 1, 2), (2, "active", 1, 2), (3, "fenced", 0, 1)]
    assert found["troubles"] == [
        "e2:1 of the quorum cannot be used: <gone>",
        "the quorum has no majority: metadata cannot change and no leader can be elected",
        "1 partition has no leader", "1 partition refuses acks=all",
        "1 partition is under-replicated",
        "broker 3 is fenced: it has replicas of 1 partition"]


def test_a_page_names_so_many_partitions_and_counts_all():
    found = view(image(*[(-1, [3], [3])] * (overview.NAMES_MAX + 7)), controller=SimpleNamespace(
        is_active=True))
    assert found["offline"]["count"] == overview.NAMES_MAX + 7
    assert len(found["offline"]["names"]) == overview.NAMES_MAX
    assert "and 7 more" in overview.html(found)


def test_html_page_escapes_names():
    page = overview.html(view(
        image((1, [1, 2], [1, 2])), controllers=SimpleNamespace(active_id=-1),
        quorum=SimpleNamespace(members=members)))
    assert "&lt;gone&gt;" in page and "<gone>" not in page
    assert "there is no active controller" in page and "controller none" in page


def test_a_sound_cluster_is_well_on_its_page():
    found = view(image((1, [1, 2], [1, 2])), controller=SimpleNamespace(is_active=True))
    assert found["troubles"] == [] and found["quorum"] is None and found["controller"] == 1
    assert "No problems found." in overview.html(found)
