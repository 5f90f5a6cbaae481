"""Conditions under which an etcd without data may join: the members are real processes, the node is
simulated.
"""

import asyncio
import contextlib
import shutil
import threading
import time
from types import SimpleNamespace

import pytest

from pylog.log.errors import StartError
from pylog.metadata.quorum import etcd_bootstrap, etcd_wal
from pylog.metadata.quorum.etcd import Etcd
from pylog.metadata.quorum.etcd_bootstrap import EXISTING, NEW, Joining, NotReady, Policy
from pylog.metadata.quorum.etcd_probe import (
    ABSENT, MEMBERS, OTHER, PROBE_S, RETURNING, WAITING, Listener, Seen, probe,
)
from pylog.metadata.quorum.etcd_process import Host
from pylog.metadata.quorum.key_value import Unknown, Unreachable
from pylog.testing.ports import free_port
from tests.fixtures.clusters import until
from tests.fixtures.etcds import Etcds

CLUSTER = "c" * 22


@pytest.fixture
def etcds(tmp_path):
    found = Etcds(tmp_path)
    try:
        yield found
    finally:
        found.close()


def named(etcds) -> None:
    """Store the cluster's id."""
    client = Etcd(etcds.addresses, timeout_s=5)
    client.change("kv/put", {"key": "L3B5bG9nL2NsdXN0ZXIuaWQ=", "value": "Y2Nj" * 7 + "Yw=="})
    assert client.get("/pylog/cluster.id").value == CLUSTER.encode()
    client.close()


def is_named(client) -> bool:
    """Return True if the member serves clients and its quorum has the cluster's id."""
    try:
        return client.get("/pylog/cluster.id").value == CLUSTER.encode()
    except (Unknown, Unreachable):
        return False


def joining(etcds, node_id, cluster_id=None, absent_s=1.0, wait_s=60.0, bind=None) -> Joining:
    return Joining(node_id, etcds.hosts, Policy(lambda: cluster_id, "/pylog/", absent_s, wait_s),
                   bind=bind)


def lose(etcds, node_id) -> None:
    etcds.kill(node_id)
    shutil.rmtree(etcds.root / f"etcd-{node_id}")


def ids(etcds) -> set:
    client = Etcd(etcds.addresses, timeout_s=5)
    try:
        return {row["ID"] for row in client.read("cluster/member/list", {})["members"]}
    finally:
        client.close()


def test_probe_distinguishes_members_waiting_nodes_and_strangers(etcds):
    etcds.start_member(1)
    etcds.start_member(2)
    etcds.await_leader()
    host, port = "127.0.0.1", free_port()
    assert probe(host, etcds.hosts[0].peer_port).kind == MEMBERS
    assert probe(host, port).kind == ABSENT

    async def work():
        loop = asyncio.get_running_loop()
        async with Listener(host, port) as listener:
            seen = await loop.run_in_executor(None, probe, host, port)
            assert (seen.kind, seen.nonce) == (WAITING, listener.nonce)
        async with Listener(host, port, has_data=True) as listener:
            seen = await loop.run_in_executor(None, probe, host, port)
            assert (seen.kind, seen.nonce) == (RETURNING, listener.nonce)
        silent = await asyncio.start_server(lambda *_: None, host, port)
        assert (await loop.run_in_executor(None, probe, host, port)).kind == OTHER
        silent.close()
    asyncio.run(work())


def test_a_member_that_hangs_counts_as_alive(etcds):
    etcds.start()
    # A leader may be elected before the third member listens.
    until(lambda: probe("127.0.0.1", etcds.hosts[2].peer_port).kind == MEMBERS)
    etcds.pause(3)
    assert probe("127.0.0.1", etcds.hosts[2].peer_port).kind == OTHER
    etcds.resume(3)


def test_two_of_three_empty_nodes_form_a_cluster_but_one_does_not(etcds):
    async def work():
        first = asyncio.ensure_future(joining(etcds, 1).state())
        await asyncio.sleep(2)
        assert not first.done()
        second = asyncio.ensure_future(joining(etcds, 2).state())
        # The second one detects the etcd that the first one starts.
        done, left = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [NEW] * len(done)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    asyncio.run(work())


def test_empty_node_does_not_form_a_cluster_without_a_majority(etcds):
    with pytest.raises(StartError, match="no majority of the controllers runs: 127.0.0.1:"):
        asyncio.run(joining(etcds, 1, wait_s=1).state())


def test_two_empty_nodes_do_not_begin_a_cluster_while_the_third_starts_with_data(
        etcds, monkeypatch):
    returning, probed = joining(etcds, 3), threading.Event()

    def probe_late(host):
        assert probed.wait(60)
        return probe(host.host, host.peer_port)
    monkeypatch.setattr(returning, "_seen", probe_late)

    async def work():
        start = asyncio.ensure_future(returning.check_address(str(etcds.root)))
        await asyncio.sleep(0.5)
        try:
            ended = await asyncio.gather(*[joining(etcds, number, wait_s=2).state()
                                           for number in (1, 2)], return_exceptions=True)
        finally:
            probed.set()
        await start
        assert [type(failure) for failure in ended] == [StartError, StartError]
        # On a loaded machine, node 3 or the other empty node may not answer in time.
        assert all("has data and has not started" in str(failure)
                   or "does not answer, and may have data" in str(failure) for failure in ended)
    asyncio.run(work())


def test_two_empty_nodes_do_not_begin_a_cluster_while_the_third_hangs(etcds):
    etcds.start_member(3)
    until(lambda: probe("127.0.0.1", etcds.hosts[2].peer_port).kind == MEMBERS)
    etcds.pause(3)

    async def work():
        ended = await asyncio.gather(*[joining(etcds, number, wait_s=3).state()
                                       for number in (1, 2)], return_exceptions=True)
        assert [type(failure) for failure in ended] == [StartError, StartError]
        assert "does not answer, and may have data" in str(ended[0])
    asyncio.run(work())
    etcds.resume(3)


def test_node_joins_a_new_cluster(etcds):
    etcds.start_member(1)
    assert asyncio.run(joining(etcds, 2).state()) == NEW
    etcds.start_member(2)
    etcds.await_leader()
    assert asyncio.run(joining(etcds, 3).state()) == NEW


@pytest.mark.slow
def test_member_without_data_is_replaced_once_proven_gone(etcds):
    etcds.start()
    named(etcds)
    before = ids(etcds)
    lose(etcds, 2)
    assert asyncio.run(joining(etcds, 2, CLUSTER).state()) == EXISTING
    assert len(ids(etcds) & before) == 2 and len(ids(etcds)) == 3
    etcds.start_member(2, "existing")
    etcds.kill(1)  # The third member by itself would have no majority.
    client = Etcd([etcds.addresses[1]], timeout_s=20)
    until(lambda: is_named(client))
    client.close()


@pytest.mark.parametrize("hangs", [False, True])
def test_running_member_is_not_replaced_from_another_machine(etcds, hangs):
    etcds.start()
    named(etcds)
    before = ids(etcds)
    if hangs:
        etcds.pause(2)
    # The port is free on this machine, and its name resolves to the other one.
    with pytest.raises(StartError, match=f"of cluster {CLUSTER} at http://127.0.0.1:.* is not "
                                         "proven gone.*pylog cluster replace 2 --force"):
        asyncio.run(joining(etcds, 2, bind="127.0.0.9").state())
    if hangs:
        etcds.resume(2)
    assert ids(etcds) == before


def test_a_member_is_not_replaced_by_a_node_that_its_address_does_not_lead_to(etcds):
    etcds.start()
    named(etcds)
    before = ids(etcds)
    lose(etcds, 2)
    with pytest.raises(StartError, match="does not lead to this process"):
        asyncio.run(joining(etcds, 2, bind="127.0.0.9", wait_s=3).state())
    assert ids(etcds) == before


@pytest.mark.slow
def test_a_member_with_a_new_address_rejoins_with_its_data(etcds):
    etcds.start()
    named(etcds)
    before = ids(etcds)
    etcds.kill(2)
    directory = etcds.move(2)
    etcds.start_member(2)
    asyncio.run(asyncio.wait_for(joining(etcds, 2, CLUSTER).publish_address(directory), 30))
    assert ids(etcds) == before
    etcds.kill(1)  # The third member by itself would have no majority.
    client = Etcd([etcds.addresses[1]], timeout_s=20)
    until(lambda: is_named(client))
    urls = {row["name"]: row["peerURLs"]
            for row in client.read("cluster/member/list", {})["members"]}
    assert urls["node-2"] == [f"http://127.0.0.1:{etcds.hosts[1].peer_port}"]
    client.close()


@pytest.mark.slow
def test_responding_member_keeps_its_address(etcds, caplog):
    etcds.start()
    named(etcds)
    directory = etcds.move(2)
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(joining(etcds, 2, CLUSTER).publish_address(directory), 3))
    assert "keeps its old address" in caplog.text
    client = Etcd([etcds.addresses[0]], timeout_s=20)
    urls = [url for row in client.read("cluster/member/list", {})["members"]
            for url in row["peerURLs"]]
    assert f"http://127.0.0.1:{etcds.hosts[1].peer_port}" not in urls
    client.close()


def test_copy_of_a_running_members_data_does_not_start(etcds, tmp_path):
    etcds.start()
    first = etcds.hosts[1]
    copy = str(shutil.copytree(etcds.move(2), tmp_path / "copy"))
    with pytest.raises(StartError, match=f"has the data of a member at http://127.0.0.1:"
                                         f"{first.peer_port}, where a process answers"):
        asyncio.run(joining(etcds, 2, wait_s=2).check_address(copy))
    etcds.kill(2)
    # The member has moved here: its old address is silent.
    asyncio.run(joining(etcds, 2).check_address(copy))


def test_member_starts_under_another_name_of_its_address(etcds):
    etcds.start()
    directory = str(etcds.root / "etcd-2")
    etcds.kill(2)
    etcds.hosts[1] = etcds.hosts[1]._replace(host="localhost")
    asyncio.run(joining(etcds, 2, wait_s=5).check_address(directory))


def test_a_directory_names_its_member_and_cluster(etcds):
    etcds.start()
    found = etcd_wal.identity(str(etcds.root / "etcd-1"))
    assert str(found.member_id) in ids(etcds)
    client = Etcd(etcds.addresses, timeout_s=5)
    header = client.read("cluster/member/list", {})["header"]
    assert int(header["cluster_id"]) == found.cluster_id
    client.close()


@pytest.mark.parametrize("head", [b"", b"\xff" * 64, bytes(64), b"\x04" + bytes(7) + b"\x1a\xff"])
def test_a_damaged_directory_has_no_identity(tmp_path, head):
    folder = tmp_path / "member" / "wal"
    folder.mkdir(parents=True)
    (folder / "0-0.wal").write_bytes(head)
    with pytest.raises(etcd_wal.WalError):
        etcd_wal.identity(str(tmp_path))


def test_node_of_another_cluster_is_rejected(etcds):
    etcds.start()
    named(etcds)
    before = ids(etcds)
    lose(etcds, 2)
    with pytest.raises(StartError, match=f"belongs to cluster other, and cluster {CLUSTER} runs"):
        asyncio.run(joining(etcds, 2, "other").state())
    assert ids(etcds) == before


def test_a_node_with_other_voters_is_rejected(etcds):
    etcds.start()
    named(etcds)
    lose(etcds, 2)
    own = joining(etcds, 2)
    own._others[0] = own._others[0]._replace(peer_port=free_port())
    own._hosts = [own._own, *own._others]
    with pytest.raises(StartError, match="that controller.quorum.voters does not name"):
        asyncio.run(own.state())


def test_member_is_not_replaced_without_a_remaining_majority(etcds):
    etcds.start()
    named(etcds)
    lose(etcds, 2)
    etcds.kill(3)
    with pytest.raises(StartError, match="did not join within 6 s: the running members cannot"):
        asyncio.run(joining(etcds, 2, wait_s=6).state())


def test_member_waits_during_another_replacement(etcds):
    etcds.start()
    named(etcds)
    before = ids(etcds)
    lose(etcds, 2)
    etcds.await_leader()
    client = Etcd([etcds.addresses[0], etcds.addresses[2]], timeout_s=10)
    members = client.read("cluster/member/list", {})["members"]
    with etcd_bootstrap.member_lock(client, "/pylog/", members, "node-9"):
        with pytest.raises(StartError, match="another member is being replaced"):
            asyncio.run(joining(etcds, 2, wait_s=12).state())
    client.close()
    assert ids(etcds) == before


def test_member_list_is_read_again_under_the_lock(etcds):
    etcds.start()
    client = Etcd(etcds.addresses, timeout_s=10)

    def locked_with(members) -> bool:
        try:
            with etcd_bootstrap.member_lock(client, "/pylog/", members, "node-2"):
                return True
        except etcd_bootstrap.NotReady as error:
            assert "changed the member list" in str(error)
            return False

    before = client.read("cluster/member/list", {})["members"]
    assert locked_with(before)
    client.change("cluster/member/update", {"ID": before[0]["ID"], "peerURLs": ["http://a:1"]})
    assert not locked_with(before)
    # The lock of the rejected change is free again.
    assert locked_with(client.read("cluster/member/list", {})["members"])
    client.close()


@pytest.mark.parametrize("successor", [False, True])
def test_the_member_list_is_not_changed_after_the_lock_is_lost(etcds, successor):
    etcds.start()
    before = ids(etcds)
    client = Etcd(etcds.addresses, timeout_s=10)
    members = client.read("cluster/member/list", {})["members"]
    with pytest.raises(NotReady, match="has lost the lock"):
        with etcd_bootstrap.member_lock(client, "/pylog/", members, "node-9") as lock:
            client.change("lease/revoke", {"ID": lock.lease})
            if successor:
                again = etcd_bootstrap.member_lock(client, "/pylog/", members, "node-9")
                again.__enter__()
            lock.change("cluster/member/remove", {"ID": members[0]["ID"]})
    assert ids(etcds) == before
    if successor:
        # It still has the lock.
        with pytest.raises(NotReady, match="another member is being replaced"):
            with etcd_bootstrap.member_lock(client, "/pylog/", members, "node-9"):
                pass
        again.__exit__(None, None, None)
    client.close()


@pytest.mark.parametrize(("answer", "error", "is_kept"), [
    ("timed out", Unknown, True), ("etcdserver: unhealthy cluster", Unreachable, False)])
def test_a_change_with_unknown_outcome_keeps_the_lock(etcds, monkeypatch, answer, error, is_kept):
    etcds.start()
    client = Etcd(etcds.addresses, timeout_s=10)
    members = client.read("cluster/member/list", {})["members"]

    def change(method, body, change=client.change):
        if method.startswith("cluster/"):
            raise Unknown(answer)
        return change(method, body)
    monkeypatch.setattr(client, "change", change)
    with pytest.raises(error):
        with etcd_bootstrap.member_lock(client, "/pylog/", members, "node-9") as lock:
            lock.change("cluster/member/remove", {"ID": members[0]["ID"]})
    with pytest.raises(NotReady, match="another member is being replaced") if is_kept \
            else contextlib.nullcontext():
        with etcd_bootstrap.member_lock(client, "/pylog/", members, "node-8"):
            pass
    client.close()


def test_used_port_stops_the_start(etcds, monkeypatch):
    monkeypatch.setattr(etcd_bootstrap, "PORT_WAIT_S", 0.5)
    port = etcds.hosts[0].client_port

    async def work():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
        try:
            await joining(etcds, 1).check_address(str(etcds.root))
        finally:
            server.close()
    with pytest.raises(StartError, match=f"on 127.0.0.1:{port}: address already in use. Stop the "):
        asyncio.run(work())


def test_busy_event_loop_is_not_mistaken_for_another_process(etcds, monkeypatch):
    node, stalls = joining(etcds, 1), [2 * PROBE_S]

    async def work():
        loop = asyncio.get_running_loop()

        def probe_while_busy(host):
            if stalls:
                loop.call_soon_threadsafe(time.sleep, stalls.pop())
            return probe(host.host, host.peer_port)
        monkeypatch.setattr(node, "_seen", probe_while_busy)
        await node.check_address(str(etcds.root))
    asyncio.run(work())
    assert not stalls


def test_address_of_another_machine_stops_the_start(etcds):
    with pytest.raises(StartError, match="must name an address of this machine"):
        asyncio.run(joining(etcds, 1, bind="192.0.2.1").check_address(
            str(etcds.root)))


def absence(monkeypatch, view, quorum_error=None, is_own=True) -> float | None:
    """Return the time since which the old member counts as absent, after one more round with that
    view.
    """
    hosts = [Host(number, "127.0.0.1", 2379, 2380) for number in (1, 2, 3)]
    one = Joining(2, hosts, Policy(lambda: None, "/pylog/", 1.0, 30.0))
    one._absent_since = 5.0
    monkeypatch.setattr(one, "_seen", lambda host: view)
    row = {"ID": "7", "name": "node-2", "clientURLs": ["u"], "peerURLs": [one._url(one._own)]}

    def read(*_):
        if quorum_error is not None:
            raise quorum_error
        return {"members": [row]}

    monkeypatch.setattr(one, "_connect", lambda addresses: SimpleNamespace(
        read=read, get=lambda key: None, close=lambda: None, connection=None))
    with pytest.raises(NotReady):
        asyncio.run(one._decide(is_own))
    return one._absent_since


@pytest.mark.parametrize(("view", "error", "is_own"), [
    (Seen(ABSENT), None, True),
    (Seen(MEMBERS, members=[{"name": "node-2", "clientURLs": ["u"]}]),
     Unreachable("no quorum"), True),
    (Seen(MEMBERS, members=[{"name": "node-2", "clientURLs": ["u"]}]), None, False)])
def test_time_without_a_quorum_does_not_count_towards_replacing_a_member(
        monkeypatch, view, error, is_own):
    monkeypatch.setattr(etcd_bootstrap, "healthy_count", lambda *_: 3)
    assert absence(monkeypatch, view, error, is_own) is None
