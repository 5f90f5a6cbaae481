"""Two processes with the same node.id, on a quorum in memory and with a virtual clock."""

import asyncio
import errno
import json
import subprocess
import sys

import pytest

from pylog.log.errors import StartError
from pylog.metadata.quorum import controller_lock
from pylog.metadata.quorum.controller_lock import Presence, is_gone, process_identity
from pylog.metadata.quorum.quorum_state import Quorum
from tests.metadata.memory_keys import MemoryKeys, memory_store
from tests.metadata.virtual import run

KEY = "/pylog/nodes/2"


class World:
    """Processes of node 2 that share one quorum."""

    def __init__(self, loop):
        self.store = memory_store(loop.time)
        self.loop = loop

    def process(self) -> Presence:
        quorum = Quorum(MemoryKeys(self.store), "/pylog/", 1.0, self.loop.time)
        return Presence(quorum, 2, "h2", 9093)

    @property
    def key(self) -> str | None:
        self.store.expire()
        entry = self.store.keys.get(KEY)
        return None if entry is None else entry.value.decode()


def in_world(monkeypatch, scenario):
    async def at_once(work, *arguments):
        return work(*arguments)
    monkeypatch.setattr(controller_lock, "in_thread", at_once)
    run(lambda loop: scenario(World(loop)))


def test_the_second_process_of_a_node_refuses_to_start(monkeypatch):
    async def scenario(world):
        first, second = world.process(), world.process()
        await first.claim(60)
        keeping = asyncio.ensure_future(first.keep())
        with pytest.raises(StartError, match="another process uses node.id=2 .* at h2:9093"):
            await second.claim(1000)
        assert world.key == first._text and not keeping.done()
        keeping.cancel()
    in_world(monkeypatch, scenario)


def test_the_next_process_starts_at_once_after_a_clean_stop(monkeypatch):
    async def scenario(world):
        first, second = world.process(), world.process()
        await first.claim(60)
        await first.release()
        began = world.loop.time()
        await second.claim(60)
        assert world.loop.time() == began and world.key == second._text
        await first.release()
        assert world.key == second._text
    in_world(monkeypatch, scenario)


def test_vanished_nodes_lock_is_acquired_after_its_lease(monkeypatch):
    async def scenario(world):
        first, second = world.process(), world.process()
        await first.claim(60)
        began = world.loop.time()
        await second.claim(1000)
        assert controller_lock.TTL_S <= world.loop.time() - began < controller_lock.TTL_S + 1
    in_world(monkeypatch, scenario)


def test_a_process_that_is_proven_dead_is_replaced_at_once(monkeypatch):
    dead = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    text = json.dumps(process_identity() | {"pid": dead.pid,
                                            "started": controller_lock._started(dead.pid)})
    assert not is_gone(text)
    dead.kill()
    dead.wait()
    assert is_gone(text)

    async def scenario(world):
        first, second = world.process(), world.process()
        first._text = text
        await first.claim(60)
        began = world.loop.time()
        await second.claim(60)
        assert world.loop.time() == began and world.key == second._text
        with pytest.raises(StartError, match="at h2:9093"):
            first._lease = 0
            await first.keep()
    in_world(monkeypatch, scenario)


def test_a_shortage_of_descriptors_does_not_prove_that_a_process_ended(monkeypatch):
    text = json.dumps(process_identity() | {"pid": 1 << 30, "started": 1})
    assert is_gone(text)

    def refused(path, *arguments, **settings):
        if path == f"/proc/{1 << 30}/stat":
            raise OSError(errno.EMFILE, "planted")
        return open(path, *arguments, **settings)

    monkeypatch.setattr(controller_lock, "open", refused, raising=False)
    assert not is_gone(text)


def test_expired_lease_is_acquired_again(monkeypatch):
    async def scenario(world):
        first = world.process()
        await first.claim(60)
        keeping = asyncio.ensure_future(first.keep())
        world.store.keys.clear()
        world.store.leases.clear()
        await asyncio.sleep(controller_lock.TTL_S)
        assert world.key == first._text and not keeping.done()
        keeping.cancel()
    in_world(monkeypatch, scenario)


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps(
    process_identity() | {"boot": "another machine", "pid": 1 << 30})],
    ids=["empty", "list", "object", "another machine"])
def test_a_process_elsewhere_is_never_proven_dead(text):
    assert not is_gone(text)
