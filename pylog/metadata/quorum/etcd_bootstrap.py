"""Decides how an etcd without data starts: in a new cluster, or in a running one that it rejoins.

Owns: the seat of this node in the member list, until its etcd has started.
Invariants:
own address: a node joins only if no other process answers at its own peer address.
same cluster: a node joins only the cluster whose id it stores or is configured for, and only if
  every member is one of its configured controllers.
proven absence: a member is removed only after a majority was without a connection to it for
  `absent_s` without interruption, and its peer address did not answer during that time.
quorum kept: one replacement at a time, and a majority of members answers before and after each
  change. A change is sent only while this node holds the lock, and a change with unknown outcome
  keeps the lock until its lease ends.
proven identity: only the node with a member's data changes its address, and only if no process
  answers at the old address.
one process per data: an etcd with data starts only once no process has answered for `absent_s` at
  another address that the other members have for it.
no early vote: a node without data starts a new cluster only with a majority that has no data, and
  only if no other controller is known to have data, or may have it because it does not answer.
Source: etcd's runtime reconfiguration; etcd_network_active_peers of etcd's metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import namedtuple

from pylog.eventloop.threads import in_thread
from pylog.log.errors import StartError
from pylog.metadata.quorum import etcd_health, etcd_probe, etcd_wal
from pylog.metadata.quorum.etcd import Etcd
from pylog.metadata.quorum.etcd_probe import (
    ABSENT, MEMBERS, OTHER, RETURNING, WAITING, Listener, PortInUse, bind_address,
)
from pylog.metadata.quorum.key_value import Absent, Is, KeysError, Put, Unknown, Unreachable

CALL_S = 2.0
POLL_S = 0.2
ADDRESS_POLL_S = 1.0
OWN_PROBES_MAX = 5  # Unanswered probes, before the process at this address counts as another one.
PORT_WAIT_S = 10.0  # The etcd of a killed brokerd needs time to exit.
LOCK_S = 15  # Longer than etcd works on a change (7 s) after the call for it began.
# etcd rejects changes of members with this text until all have been connected for 5 s.
UNHEALTHY = "unhealthy cluster"
LOCK = "replacing"  # lock key below the prefix, for changing the member list
NEW, EXISTING = "new", "existing"

log = logging.getLogger("pylog.etcd")

Policy = namedtuple("Policy", ("cluster_id", "prefix", "absent_s", "wait_s"))
Policy.__doc__ = """How a node without data joins.

cluster_id(): the id that this node stores or is configured for, or None. prefix: of the cluster's
keys. absent_s: for "proven absence". wait_s: until the start fails.
"""


class NotReady(Exception):
    """The node must wait; the message gives the reason."""


class Locked(NotReady):
    """Another node changes the member list, or an earlier change with unknown outcome may still be
    applied.
    """


class Joining:
    """hosts: etcd_process.Hosts of the configured controllers. files, context: for TLS, or None.
    bind: the address of the peer listener, by default etcd's.
    """

    def __init__(self, node_id: int, hosts: list, policy: Policy, files=None, context=None,
                 bind: str | None = None):
        self._hosts = hosts
        self._own = next(host for host in hosts if host.node_id == node_id)
        self._others = [host for host in hosts if host.node_id != node_id]
        self._policy = policy
        self._files, self._context = files, context
        self._bind = bind or bind_address(self._own.host)
        self._absent_since: float | None = None
        self._reason = ""

    # ---- before every start ---------------------------------------------------------------------

    async def check_address(self, directory: str) -> None:
        """Check, for an etcd with data, that it can listen, that no other process has this node's
        address, and that no process runs with a copy of the data. directory: etcd's, with the
        member's data. Raises StartError.
        """
        async def check() -> None:
            async with Listener(self._bind, self._own.peer_port, self._files,
                                has_data=True) as listener:
                await self._check_own(listener)
                await self._check_copies(listener, await in_thread(_member_in, directory))
        await self._with_ports(check)

    async def _check_copies(self, listener: Listener, member_id: int | None) -> None:
        """Return once no process has answered for `absent_s` at the address that the other members
        have for this member: "one process per data". Raises StartError.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._policy.wait_s
        absent_s: float | None = None
        is_reported = False
        while (url := await self._published(member_id)) is not None:
            seen = await in_thread(etcd_probe.probe, *_split(url), self._context)
            if seen.nonce == listener.nonce:
                return  # Another name of this node's own address.
            if not is_reported:
                is_reported = True
                log.warning("etcd of this node waits: the other members have another address for "
                            "its data", extra={"address": url})
            if seen.kind != ABSENT:
                absent_s = None
                if loop.time() >= until_s:
                    raise StartError(
                        f"etcd of node {self._own.node_id} on {_address(self._own)} has the data "
                        f"of a member at {url}, where a process answers. Stop that process if this "
                        "node has moved here. If these directories are a copy, start with empty "
                        "ones, and a node.id of its own")
            elif absent_s is None:
                absent_s = loop.time()
            if absent_s is not None and loop.time() - absent_s >= self._policy.absent_s:
                return
            await asyncio.sleep(POLL_S)

    async def _published(self, member_id: int | None) -> str | None:
        """Return the address that the other members have for this member, None if it is this
        node's or if no member answers.
        """
        for view in await asyncio.gather(*[in_thread(self._seen, host) for host in self._others]):
            for row in view.members:
                urls = row.get("peerURLs") or []
                if str(row.get("id")) == str(member_id) and urls \
                        and self._url(self._own) not in urls:
                    return urls[0]
        return None

    async def _with_ports(self, work):
        """Return the result of work() once both ports are free. Raises StartError."""
        loop = asyncio.get_running_loop()
        until = loop.time() + min(PORT_WAIT_S, self._policy.wait_s)
        while True:
            try:
                etcd_probe.check_free(self._bind, self._own.client_port)
                return await work()
            except PortInUse as error:
                if loop.time() >= until:
                    seen = await in_thread(self._seen, self._own)
                    if seen.kind == MEMBERS:
                        raise await in_thread(self._occupied, seen) from None
                    raise StartError(
                        f"cannot start etcd of node {self._own.node_id} on {error}: address "
                        "already in use. Stop the process that uses it, or choose free ports on "
                        "every controller: quorum.etcd.client.port and quorum.etcd.peer.port, or "
                        "the controllers' own ports where they share an address") from None
            except OSError as error:
                raise StartError(
                    f"cannot start etcd of node {self._own.node_id} on {self._bind}: "
                    f"{error.strerror or error}. controller.quorum.voters must name an address of "
                    "this machine") from None
            await asyncio.sleep(POLL_S)

    def _seen(self, host) -> etcd_probe.Seen:
        return etcd_probe.probe(host.host, host.peer_port, self._context)

    async def _check_own(self, listener: Listener) -> bool:
        """Return True if this node's peer address leads here. Raises StartError: "own address"."""
        for _ in range(OWN_PROBES_MAX):
            seen = await in_thread(self._seen, self._own)
            if seen.kind == ABSENT:
                return False
            if seen.kind in (WAITING, RETURNING) and seen.nonce == listener.nonce:
                return True
            if seen.kind != OTHER:
                break
            # This node's own listener is silent too while this event loop is busy.
        raise await in_thread(self._occupied, seen)

    # ---- with data ------------------------------------------------------------------------------

    async def publish_address(self, directory: str) -> None:
        """Set the peer address of this node's member to the configured one, once a majority of the
        cluster answers. directory: etcd's, with the member's data.
        """
        reason = ""
        while True:
            try:
                await in_thread(self._publish_now, await in_thread(etcd_wal.identity, directory))
                return
            except NotReady as error:
                if str(error) != reason:
                    reason = str(error)
                    log.warning("the etcd member of this node keeps its old address",
                                extra={"reason": reason})
            except (KeysError, Unknown, Unreachable, etcd_wal.WalError):
                pass  # A cluster that is starting does not answer yet.
            await asyncio.sleep(ADDRESS_POLL_S)

    def _publish_now(self, own: etcd_wal.Identity) -> None:
        """Update the address in the member list. Raises NotReady ("proven identity"), KeysError,
        Unknown, Unreachable.
        """
        client = self._connect([_client(host) for host in self._others])
        try:
            # Read through the quorum first: a single member's list may be outdated.
            client.get(self._policy.prefix + "cluster.id")
            response = client.read("cluster/member/list", {})
            members = response.get("members", [])
            found = next((row for row in members if int(row["ID"]) == own.member_id), None)
            url = self._url(self._own)
            # Another cluster, or a removed member: its etcd ends with an error.
            if int(response["header"]["cluster_id"]) != own.cluster_id or found is None \
                    or found["peerURLs"] == [url]:
                return
            for old in found["peerURLs"]:
                host, port = _split(old)
                if (host, port) != (self._own.host, self._own.peer_port) \
                        and etcd_probe.probe(host, port, self._context).kind != ABSENT:
                    raise NotReady(f"a process still answers at {old}: stop it, and do not start "
                                 "the copied directory on two machines")
            with member_lock(client, self._policy.prefix, members,
                             member_name(self._own.node_id)) as lock:
                lock.change("cluster/member/update", {"ID": found["ID"], "peerURLs": [url]})
            log.warning("the etcd member of this node has a new address",
                        extra={"member": hexadecimal(own.member_id), "address": url,
                               "before": ",".join(found["peerURLs"])})
        finally:
            client.close()

    # ---- without data ---------------------------------------------------------------------------

    async def state(self) -> str:
        """Return etcd's --initial-cluster-state for a node without data: NEW, or EXISTING once the
        running cluster has a free seat for it. Raises StartError.
        """
        return await self._with_ports(self._decided)

    async def _decided(self) -> str:
        async with Listener(self._bind, self._own.peer_port, self._files) as listener:
            loop = asyncio.get_running_loop()
            until = loop.time() + self._policy.wait_s
            while True:
                is_own = await self._check_own(listener)
                try:
                    return await self._decide(is_own)
                except NotReady as error:
                    if str(error) != self._reason:
                        self._reason = str(error)
                        log.info("etcd of this node waits", extra={"reason": self._reason})
                    if loop.time() >= until:
                        raise StartError(
                            f"etcd of node {self._own.node_id} on {_address(self._own)} did not "
                            f"join within {self._policy.wait_s:.0f} s: {error}") from None
                await asyncio.sleep(POLL_S)

    async def _decide(self, is_own: bool) -> str:
        """Return the initial cluster state. Raises NotReady, StartError."""
        seen = await asyncio.gather(*[in_thread(self._seen, host) for host in self._others])
        running = [view for view in seen if view.kind == MEMBERS]
        for view in running:
            self._check_members(view.members)
        if any(row.get("clientURLs") for view in running for row in view.members):
            return await self._rejoin(is_own)
        # Time without a quorum proves nothing about the old member.
        self._absent_since = None
        waiting = 1 + sum(view.kind == WAITING for view in seen)
        for host, view in zip(self._others, seen, strict=True):
            if not running and view.kind in (RETURNING, OTHER):
                why = "has data and has not started" if view.kind == RETURNING \
                    else "does not answer, and may have data"
                raise NotReady(f"the etcd of node {host.node_id} at {_address(host)} {why}")
        # A running member that has published nothing has just started the same new cluster.
        if running or waiting >= _majority(len(self._hosts)):
            return NEW
        silent = ", ".join(_address(host) for host, view in zip(self._others, seen, strict=True)
                           if view.kind not in (WAITING, MEMBERS))
        raise NotReady(f"no majority of the controllers runs: {silent} cannot be reached")

    def _check_members(self, members) -> None:
        """Raise StartError if a member is not a configured controller: "same cluster"."""
        urls = {self._url(host) for host in self._hosts}
        for row in members:
            # This node's own address may have changed.
            if row.get("name") != member_name(self._own.node_id) \
                    and not urls.intersection(row.get("peerURLs", ())):
                raise StartError(
                    f"the etcd cluster at {', '.join(map(_address, self._others))} has a member "
                    f"{row.get('name') or 'without a name'} at "
                    f"{','.join(row.get('peerURLs', ()))} that controller.quorum.voters does not "
                    "name: set the same voters on every node, or use other addresses for this "
                    "cluster")

    async def _rejoin(self, is_own: bool) -> str:
        """Return the initial cluster state beside members that have run. Raises NotReady,
        StartError.
        """
        return await in_thread(self._rejoin_now, is_own, asyncio.get_running_loop().time())

    def _rejoin_now(self, is_own: bool, now_s: float) -> str:
        client = self._connect([_client(host) for host in self._others])
        try:
            # Read through the quorum first: a single member's list may be outdated.
            self._check_cluster(client)
            members = client.read("cluster/member/list", {}).get("members", [])
            self._check_members(members)
            return self._with_seat(client, members, is_own, now_s)
        except (KeysError, Unknown, Unreachable) as error:
            self._absent_since = None
            raise NotReady(f"the running members cannot change: {error}") from None
        finally:
            client.close()

    def _check_cluster(self, client: Etcd) -> None:
        """Raise StartError if it is another cluster ("same cluster"), NotReady if it has no id yet.
        """
        row = client.get(self._policy.prefix + "cluster.id")
        expected = self._policy.cluster_id()
        if expected is None:
            return
        if row is None:
            raise NotReady("the running cluster has no id yet")
        if row.value.decode() != expected:
            raise StartError(
                f"this node belongs to cluster {expected}, and cluster {row.value.decode()} runs "
                f"at {', '.join(map(_address, self._others))}: use other addresses for this "
                "cluster, or empty directories to join that one")

    def _with_seat(self, client: Etcd, members: list, is_own: bool, now_s: float) -> str:
        url, name = self._url(self._own), member_name(self._own.node_id)
        found = next((row for row in members if row.get("name") == name), None) or next(
            (row for row in members if url in row.get("peerURLs", ())), None)
        if found is not None and url in found["peerURLs"] and not found.get("clientURLs"):
            # This member was added but never ran; without a name, by an earlier attempt.
            return NEW if found.get("name") else EXISTING
        if found is not None:
            self._check_absent(client, members, found, is_own, now_s)
        with member_lock(client, self._policy.prefix, members, name) as lock:
            healthy = healthy_count(members, found, self._connect)
            if found is not None:
                check_majority(len(members), healthy)
                check_majority(len(members) - 1, healthy)
            check_majority(len(members) + (found is None), healthy)
            if found is not None:
                log.warning("the etcd member of this node has lost its data and is replaced",
                            extra={"member": hexadecimal(found["ID"]),
                                   "address": _address(self._own)})
                lock.change("cluster/member/remove", {"ID": found["ID"]})
            lock.change("cluster/member/add", {"peerURLs": [url]})
        return EXISTING

    def _connect(self, addresses: list) -> Etcd:
        return Etcd(addresses, timeout_s=CALL_S, ssl_context=self._context)

    def _check_absent(self, client: Etcd, members: list, found, is_own: bool, now_s: float) -> None:
        """Raise NotReady or StartError unless the old member is gone: "proven absence"."""
        if not is_own:
            self._absent_since = None
            raise NotReady(self._refusal(
                found, f"{_address(self._own)} does not lead to this process"))
        for url in found["peerURLs"]:
            if url != self._url(self._own):
                host, port = _split(url)
                if etcd_probe.probe(host, port, self._context).kind != ABSENT:
                    raise StartError(self._refusal(found, f"a process answers at {url}"))
        seeing = []
        unheard = 0
        for row in members:
            if row is found or not row.get("clientURLs"):
                continue
            peers = etcd_health.active_peers(self._connect([_address_of(row)]).connection)
            if peers is None:
                continue
            if peers.get(hexadecimal(found["ID"])):
                seeing.append(row.get("name"))
            else:
                unheard += 1
        if seeing:
            self._absent_since = None
            raise NotReady(self._refusal(found, f"{', '.join(seeing)} has a connection to it"))
        if unheard < _majority(len(members)):
            self._absent_since = None
            raise NotReady("no majority of the members can be asked whether member "
                         f"{hexadecimal(found['ID'])} is gone")
        if self._absent_since is None:
            self._absent_since = now_s
        if now_s - self._absent_since < self._policy.absent_s:
            raise NotReady(f"member {hexadecimal(found['ID'])} is replaced after it was gone for "
                         f"{self._policy.absent_s:g} s")

    # ---- errors ---------------------------------------------------------------------------------

    def _occupied(self, seen: etcd_probe.Seen) -> StartError:
        """Return the error for an address that another process has. Blocks."""
        members = seen.members or next(
            (view.members for view in map(self._seen, self._others) if view.members), ())
        found = next((row for row in members if self._url(self._own)
                      in row.get("peerURLs", ())), None)
        if found is None:
            return StartError(
                f"another process answers at {_address(self._own)}, the address of node "
                f"{self._own.node_id}: stop it, or start this node on the machine that "
                "controller.quorum.voters names")
        return StartError(self._refusal(
            found, "a process answers there", self._cluster_of(members)))

    def _cluster_of(self, members) -> str | None:
        """Return the cluster id of these members, None if they do not answer. Blocks for at most
        CALL_S per member.
        """
        addresses = [_address_of(row) for row in members if row.get("clientURLs")]
        if not addresses:
            return None
        client = self._connect(addresses)
        try:
            row = client.get(self._policy.prefix + "cluster.id")
        except (KeysError, Unknown, Unreachable):
            return None
        finally:
            client.close()
        return None if row is None else row.value.decode()

    def _refusal(self, found, why: str, cluster_id: str | None = None) -> str:
        number = self._own.node_id
        identity = found.get("ID") or found.get("id")
        of = f" of cluster {cluster_id or self._policy.cluster_id() or '(unknown id)'}"
        return (f"this node has no etcd data, and etcd member {hexadecimal(identity)}{of} at "
                f"{','.join(found.get('peerURLs', ()))} is not proven gone: {why}. If this is the "
                "wrong machine or another cluster, use other addresses. If that member is "
                f"permanently lost, run: pylog cluster replace {number} --force")

    def _url(self, host) -> str:
        return f"{'http' if self._context is None else 'https'}://{_address(host)}"


def _member_in(directory: str) -> int | None:
    """Return the id of the member whose data is in the directory, None if it is unreadable."""
    try:
        return etcd_wal.identity(directory).member_id
    except etcd_wal.WalError:
        return None


def _majority(count: int) -> int:
    return count // 2 + 1


@contextlib.contextmanager
def member_lock(client: Etcd, prefix: str, members: list, name: str):
    """Let one node at a time change the member list. Raises NotReady.

    members: the list that the caller's decision is based on. Another node may have changed it
    before the lock was taken.
    """
    if any(not row.get("name") for row in members):
        raise Locked("another member is being replaced")
    lock = MemberLock(client, prefix + LOCK, f"{name} {secrets.token_hex(8)}".encode(),
                      client.grant(LOCK_S))
    if not client.transact([Absent(lock.key)], [Put(lock.key, lock.text, lock.lease)]).succeeded:
        raise Locked("another member is being replaced")
    try:
        if _seats(client.read("cluster/member/list", {}).get("members", [])) != _seats(members):
            raise NotReady("another node has changed the member list")
        yield lock
    except Unknown:
        raise  # etcd may still apply the change: the lock must last longer.
    except BaseException:
        lock.release()
        raise
    lock.release()


class MemberLock:
    """The lock of one holder. text: the key's value, different for each holder."""

    def __init__(self, client: Etcd, key: str, text: bytes, lease: int):
        self._client = client
        self.key, self.text, self.lease = key, text, lease

    def change(self, method: str, body: dict) -> None:
        """Change the member list if this holder still has the lock. Raises NotReady, KeysError,
        Unknown, Unreachable.

        etcd has no conditions for changes of members, so the lease is renewed right before: it
        lasts longer than etcd works on a request.
        """
        if self._client.keep_alive(self.lease) <= 0 \
                or not self._client.transact([Is(self.key, self.text)], []).succeeded:
            raise Locked("this node has lost the lock for changes of the member list")
        try:
            self._client.change(method, body)
        except Unknown as error:
            if UNHEALTHY in str(error):
                raise Unreachable(str(error)) from None  # Nothing was changed.
            raise

    def release(self) -> None:
        """Release the lock. If that fails, it ends with its lease."""
        with contextlib.suppress(KeysError, Unknown, Unreachable):
            self._client.change("lease/revoke", {"ID": self.lease})


def _seats(members: list) -> set:
    return {(int(row["ID"]), row.get("name"), *row.get("peerURLs", ())) for row in members}


def healthy_count(members: list, without, connect) -> int:
    """Return the number of members, except `without`, that answer and have a leader. connect:
    function from a list of addresses to an Etcd.
    """
    return sum(etcd_health.state_of(_address_of(row), connect([_address_of(row)]).connection,
                                    "").answers
               for row in members if row is not without and row.get("clientURLs"))


def check_majority(count: int, healthy: int) -> None:
    """Raise NotReady without a majority: "quorum kept"."""
    if healthy < _majority(count):
        raise NotReady(f"only {healthy} of {count} members answer, and {_majority(count)} must")


def member_name(node_id: int) -> str:
    return f"node-{node_id}"


def hexadecimal(identity) -> str:
    """Return a member's id in etcd's format."""
    return f"{int(identity):x}"


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _address(host) -> str:
    return f"{_shown(host.host)}:{host.peer_port}"


def _client(host) -> str:
    return f"{host.host}:{host.client_port}"


def _address_of(row) -> str:
    """Return host:port of a member's first client URL."""
    return row["clientURLs"][0].partition("://")[2]


def _split(url: str) -> tuple[str, int]:
    host, _, port = url.partition("://")[2].rpartition(":")
    return host.strip("[]"), int(port)
