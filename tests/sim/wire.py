"""Messages on simulated connections without serialization, and pylog's parts that notice it.

Owns: the replacements in pylog while a simulation runs.
Invariants: replacements: only native code, blocking calls and serialization are replaced, never
  decisions; determinism: a seed has the same result in every process.
Source: none.
"""

import errno
from collections import namedtuple
from contextlib import contextmanager
from unittest import mock

from pylog.coordinator.runtime import journal, local_append, runtime
from pylog.coordinator.transactions import verification
from pylog.log import partition_logs
from pylog.metadata.image import image, snapshot
from pylog.peer.connection import Peer
from pylog.replication import fetching
from tests.sim import coordinators, fetchers
from tests.sim.logs import MetadataCopy

Asked = namedtuple("Asked", ("number", "message", "version"))
Produce = namedtuple("Produce", ("topic_id", "index", "payload", "count", "acks", "wait_s"))
Transactional = namedtuple("Transactional", (
    "topic_id", "index", "data", "transactional_id", "wait_s"))
ENSURE = "the internal topics"
Consume = namedtuple("Consume", ("topic_id", "index", "offset"))


class Replied(bytes):
    """A response. As bytes, for Peer, it is the correlation id."""

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


def _open_log(directory, topic, index, topic_id, config, known, *_):
    disk = directory.disk
    (disk.folder / f"{topic}-{index}").mkdir(exist_ok=True)
    if known.log_start_offset >= 0:
        disk.metadata.begin_at(known.log_start_offset)
    return MetadataCopy(disk.metadata, directory.watcher.metadata, disk.directories[0])


_decoded: dict = {}
_real_decoded, _real_write = snapshot.decoded, snapshot.write


def _decoded_once(data, header):
    """Decode a batch once for all nodes; records are immutable."""
    key = bytes(memoryview(data)[:12 + header.batch_length])
    found = _decoded.get(key)
    if found is None:
        if len(_decoded) > 10_000:
            _decoded.clear()
        found = _decoded[key] = _real_decoded(data, header)
    return found


def _in_order(items=()):
    """Order a set the same in every process. Keeps determinism."""
    return tuple(sorted(items))


@contextmanager
def replaced(is_full):
    """Replace parts of pylog. is_full: (folder) -> True if its disk is full. Keeps replacements."""
    def write(folder, *arguments):
        if is_full(folder):
            raise OSError(errno.ENOSPC, "No space left on device")
        _real_write(folder, *arguments)

    with mock.patch.multiple(Peer, call=_call, newest=_newest,
                             data_received=lambda self, response: self._on_response(response)), \
            mock.patch.object(partition_logs, "open_log", _open_log), \
            mock.patch.object(snapshot, "decoded", _decoded_once), \
            mock.patch.object(snapshot, "write", write), \
            mock.patch.object(fetching, "replica_fetcher", fetchers), \
            mock.patch.object(runtime, "FlushWaits", coordinators.FlushWaits), \
            mock.patch.object(local_append, "FlushWaits", coordinators.FlushWaits), \
            mock.patch.object(local_append, "producer_of", coordinators.producer_of), \
            mock.patch.object(journal, "producer_of", coordinators.producer_of), \
            mock.patch.object(verification, "verify_producer", coordinators.verify_producer), \
            mock.patch.object(image, "frozenset", _in_order, create=True):
        yield
