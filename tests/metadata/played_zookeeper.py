"""A ZooKeeper in memory, and the part of its kazoo client that pylog.metadata.quorum.zookeeper
uses.

Owns: nothing.
Source: ZooKeeper's multi: the first failed operation ends it, and earlier ones are rolled back.
"""

import itertools
import threading
from types import SimpleNamespace

from kazoo.exceptions import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import KeeperState

from pylog.metadata.quorum import zookeeper
from pylog.metadata.quorum.zookeeper import ZooKeeper


def pending(result):
    """A pending call: get() raises its result if that is an exception."""
    def get(timeout):
        if isinstance(result, Exception):
            raise result
        return result
    return SimpleNamespace(get=get)


class Server:
    """nodes: path -> (value, version, session of an ephemeral node or 0)."""

    def __init__(self):
        self.nodes: dict = {}
        self.sessions = itertools.count(1)

    def clients(self, monkeypatch, count):
        """Return ZooKeepers, each with a separate session, whose client is `kazoo`."""
        found = []
        for _ in range(count):
            kazoo = Kazoo(self)
            monkeypatch.setattr(zookeeper, "KazooClient", lambda *_, made=kazoo, **__: made)
            found.append(ZooKeeper(["z:1"], 10))
            found[-1].kazoo = kazoo
        return found

    def end_session(self, session):
        self.nodes = {path: node for path, node in self.nodes.items() if node[2] != session}

    def children(self, path):
        return {node[len(path) + 1:].partition("/")[0] for node in self.nodes
                if node.startswith(f"{path}/")}

    def _create(self, session, path, value=b"", acl=None, ephemeral=False):
        parent = path.rpartition("/")[0]
        if parent and parent not in self.nodes:
            raise NoNodeError
        if path in self.nodes:
            raise NodeExistsError
        self.nodes[path] = value, 0, session if ephemeral else 0

    def _node(self, path, version):
        if path not in self.nodes:
            raise NoNodeError
        if version not in (-1, self.nodes[path][1]):
            raise BadVersionError
        return self.nodes[path]

    def _set_data(self, session, path, value, version=-1):
        _, before, owner = self._node(path, version)
        self.nodes[path] = value, before + 1, owner

    def _delete(self, session, path, version=-1):
        self._node(path, version)
        if self.children(path):
            raise NotEmptyError
        del self.nodes[path]

    def _check(self, session, path, version):
        self._node(path, version)

    def multi(self, session, operations):
        before, results = dict(self.nodes), []
        for kind, *arguments in operations:
            try:
                getattr(self, f"_{kind}")(session, *arguments)
                results.append(True)
            except Exception as error:
                self.nodes = before
                return [RolledBackError()] * len(results) + [error] + [
                    RuntimeInconsistency()] * (len(operations) - len(results) - 1)
        return results


class Kazoo:
    """asked: requests to the server, in order, except the content of transactions. committed: their
    operations. meanwhile: called before the next transaction is executed. failures: name of a call
    -> the exception of its next call.
    """

    client_state = KeeperState.CONNECTED

    def __init__(self, server):
        self.server, self.client_id = server, (next(server.sessions), b"")
        self.asked, self.committed, self.failures = [], [], {}
        self.meanwhile = None
        self.connected = threading.Event()
        self.connected.set()

    def start_async(self):
        return self.connected

    def _pending(self, what, path, result):
        self.asked.append((what, path))
        return pending(self.failures.pop(what, result))

    def sync_async(self, path):
        return self._pending("sync", path, path)

    def get_async(self, path):
        node = self.server.nodes.get(path)
        return self._pending("get", path, NoNodeError() if node is None else (
            node[0], SimpleNamespace(version=node[1])))

    def get_children_async(self, path, watch=None):
        found = self.server.children(path)
        return self._pending("children", path, list(found) if found else NoNodeError())

    def ensure_path_async(self, path):
        names = path.split("/")[1:]
        for count in range(1, len(names) + 1):
            self.server.nodes.setdefault("/" + "/".join(names[:count]), (b"", 0, 0))
        return self._pending("ensure", path, True)

    def transaction(self):
        operations = []

        def add(kind):
            return lambda *arguments: operations.append((kind, *arguments))

        def commit():
            self.committed.append(operations)
            if self.meanwhile is not None:
                work, self.meanwhile = self.meanwhile, None
                work()
            if "commit" in self.failures:
                return pending(self.failures.pop("commit"))
            return pending(self.server.multi(self.client_id[0], operations))

        return SimpleNamespace(commit_async=commit, **{
            kind: add(kind) for kind in ("check", "create", "delete", "set_data")})
