"""What goes over simulated connections instead of bytes, and pylog's parts that see the difference.

Owns: what is replaced in pylog while a simulation runs.
Called by: tests.sim.world, tests.sim.nodes.
Invariants: (1) what is replaced is native, blocks, or turns messages into bytes and back; nothing
  that decides; (2) a seed brings the same in every process.
Source: none.
"""

from collections import namedtuple
from contextlib import contextmanager
from unittest import mock

from pylog.log import partitions
from pylog.metadata import image, snapshots
from pylog.peer.connection import Peer
from pylog.replication import fetching
from tests.sim import fetchers
from tests.sim.logs import MetadataCopy

Asked = namedtuple("Asked", ("number", "message", "version"))
Produce = namedtuple("Produce", ("topic_id", "index", "payload", "acks", "wait_s"))
Consume = namedtuple("Consume", ("topic_id", "index", "offset"))


class Replied(bytes):
    """An answer; to Peer its bytes are the correlation id."""

    message: object

    def __new__(cls, number, message):
        made = super().__new__(cls, number.to_bytes(4, "big"))
        made.message = message
        return made


async def _call(self, message, version, timeout_s=30.0):
    number = self._take_id()
    return (await self._exchange(Asked(number, message, version), number, timeout_s)).message


async def _newest(self, key, version):
    return version


def _open_log(directory, *_):
    return MetadataCopy(directory.disk.metadata, directory.watcher.metadata)


_decoded: dict = {}
_real_decoded = snapshots.decoded


def _decoded_once(data, header):
    """Records are never changed: each node may have the same ones."""
    key = bytes(memoryview(data)[:12 + header.batch_length])
    found = _decoded.get(key)
    if found is None:
        if len(_decoded) > 10_000:
            _decoded.clear()
        found = _decoded[key] = _real_decoded(data, header)
    return found


def _in_order(items=()):
    """A set's order is another in each process; a seed has to bring the same one (2)."""
    return tuple(sorted(items))


@contextmanager
def replaced():
    """Keeps (1)."""
    with mock.patch.multiple(Peer, call=_call, newest=_newest,
                             data_received=lambda self, answer: self._answered(answer)), \
            mock.patch.object(partitions, "open_log", _open_log), \
            mock.patch.object(snapshots, "decoded", _decoded_once), \
            mock.patch.object(snapshots, "newest", lambda folder: None), \
            mock.patch.object(fetching, "fetcher", fetchers), \
            mock.patch.object(image, "frozenset", _in_order, create=True):
        yield
