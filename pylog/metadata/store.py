"""`state.lmdb`: what is derived from the logs, kept so that a start need not read them.

Owns: the LMDB environment; no other code opens it.
Called by: metadata.service.
Invariants: (1) every entry says up to which offset of its log it holds; (2) losing the file loses
  nothing; (3) the clean mark is gone, on disk, before anything is appended.
Source: DESIGN: the log is the truth, LMDB is the map.

Keys: `format`, `clean` (the mark), `image` (offset, epoch, JSON), `log/` + topic id + partition (a
Checkpoint).
"""

import contextlib
import json
import logging
import os
import struct
import threading

import lmdb

from pylog.log.partitions import Checkpoint
from pylog.metadata.image import Broker, Endpoint, Image, Partition, Topic

FILE = "state.lmdb"
StoreError = lmdb.Error
FORMAT = b"1"
MAP_BYTES_MAX = 8 << 30   # Address space, not disk: the file grows with what is in it.
METADATA_LOG_ID = bytes(15) + b"\x01"

log = logging.getLogger("pylog.metadata.store")

_LOG_PREFIX = b"log/"
_LOG_KEY = struct.Struct(">4s16si")
_CHECKPOINT = struct.Struct(">qqqqi")
_IMAGE_HEAD = struct.Struct(">qi")


class Store:
    """The environment of one log directory; any thread may save."""

    def __init__(self, directory: str):
        self._path = os.path.join(directory, FILE)
        # LMDB's own lock is off: the log directory's lock keeps other processes out, this one
        # threads.
        self._lock = threading.Lock()
        try:
            self._env = self._open()
        except lmdb.Error as error:
            # Keeps (2): what cannot be read is made anew.
            log.warning("state.lmdb is unreadable and is rebuilt", extra={"reason": str(error)})
            os.unlink(self._path)
            self._env = self._open()
        with self._env.begin(write=True) as txn:
            if txn.get(b"format") != FORMAT:
                txn.drop(self._env.open_db(), delete=False)
                txn.put(b"format", FORMAT)

    def _open(self):
        env = lmdb.open(self._path, subdir=False, lock=False, map_size=MAP_BYTES_MAX,
                        readahead=False, max_readers=1)
        # LMDB reads through a map: a page that the file does not have would kill the process.
        bytes_used = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        if os.path.getsize(self._path) < bytes_used:
            env.close()
            raise lmdb.CorruptedError(f"{bytes_used} bytes are needed")
        return env

    def close(self) -> None:
        self._env.close()

    def figures(self) -> dict:
        """Size and use of the map, for metrics; {} once it is closed."""
        try:
            told, stat = self._env.info(), self._env.stat()
        except lmdb.Error:
            return {}
        return {"map_bytes": told["map_size"],
                "used_bytes": (told["last_pgno"] + 1) * stat["psize"],
                "entries": stat["entries"], "readers": told["num_readers"]}

    @contextlib.contextmanager
    def transaction(self, write: bool = False):
        """A transaction for whoever owns a prefix of the keys; no other one beside it."""
        with self._lock, self._env.begin(write=write) as txn:
            yield txn

    def take_clean_mark(self) -> list:
        """The mark that the last stop left, removed (3); [] after an unclean stop."""
        with self._env.begin(write=True) as txn:
            mark = txn.pop(b"clean")
        return json.loads(mark) if mark else []

    def load_image(self) -> Image:
        """The stored image; an empty one when there is none that can be read."""
        with self._env.begin() as txn:
            blob = txn.get(b"image")
        if blob is None:
            return Image()
        try:
            offset, epoch = _IMAGE_HEAD.unpack_from(blob)
            return _image(json.loads(blob[_IMAGE_HEAD.size:]), offset, epoch)
        except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
            log.warning("the stored image is unreadable and is rebuilt",
                        extra={"reason": str(error)})
            return Image()

    def load_checkpoints(self) -> dict:
        """(topic id, partition) -> Checkpoint."""
        found = {}
        with self._env.begin() as txn:
            cursor = txn.cursor()
            if cursor.set_range(_LOG_PREFIX):
                for key, value in cursor:
                    if not key.startswith(_LOG_PREFIX):
                        break
                    _, topic_id, partition = _LOG_KEY.unpack(key)
                    found[(topic_id, partition)] = Checkpoint(
                        *_CHECKPOINT.unpack_from(value), value[_CHECKPOINT.size:])
        return found

    def save(self, image: Image | None, checkpoints, gone=(), mark: list | None = None) -> None:
        """Writes, in one transaction, the image (None: leave it), checkpoints and the clean mark.

        checkpoints: [((topic id, partition), Checkpoint)]. gone: keys of partitions that are no
        more.
        """
        with self._lock, self._env.begin(write=True) as txn:
            if image is not None:
                txn.put(b"image", _IMAGE_HEAD.pack(image.offset, image.epoch) + _blob(image))
            for key in gone:
                txn.delete(_LOG_KEY.pack(_LOG_PREFIX, *key))
            for key, entry in checkpoints:
                txn.put(_LOG_KEY.pack(_LOG_PREFIX, *key),
                        _CHECKPOINT.pack(*entry[:-1]) + entry.segments)
            if mark is not None:
                txn.put(b"clean", json.dumps(mark).encode())


def _blob(image: Image) -> bytes:
    """An image as JSON; equal partition states are written once and numbered."""
    numbers, states = {}, []
    topics = []
    for topic in image.topics.values():
        places = []
        for state in topic.partitions:
            number = numbers.get(state)
            if number is None:
                number = numbers[state] = len(states)
                states.append([*state[:-1], [directory.hex() for directory in state.directories]])
            places.append(number)
        topics.append([topic.name, topic.id.hex(), places])
    return json.dumps({
        "states": states, "topics": topics,
        "configs": [[*key, values] for key, values in image.configs.items()],
        "brokers": [_broker_fields(broker) for broker in image.brokers.values()],
        "features": image.features, "next_producer_id": image.next_producer_id,
        "client_quotas": list(image.client_quotas.items()),
    }, separators=(",", ":")).encode()


def _broker_fields(broker: Broker) -> dict:
    return {**broker._asdict(), "incarnation_id": broker.incarnation_id.hex(),
            "directories": [directory.hex() for directory in broker.directories]}


def _image(fields: dict, offset: int, epoch: int) -> Image:
    states = [
        Partition(*[tuple(value) if isinstance(value, list) else value for value in row[:-1]],
                  tuple(bytes.fromhex(text) for text in row[-1]))
        for row in fields["states"]]
    topics = {}
    for name, id_, places in fields["topics"]:
        topics[name] = Topic(name, bytes.fromhex(id_), tuple([states[place] for place in places]))
    brokers = {}
    for row in fields["brokers"]:
        row["incarnation_id"] = bytes.fromhex(row["incarnation_id"])
        row["directories"] = tuple(bytes.fromhex(text) for text in row["directories"])
        row["endpoints"] = tuple(Endpoint(*endpoint) for endpoint in row["endpoints"])
        row["features"] = tuple(tuple(feature) for feature in row["features"])
        brokers[row["id"]] = Broker(**row)
    return Image(
        topics, {topic.id: topic for topic in topics.values()},
        {(kind, name): values for kind, name, values in fields["configs"]}, brokers,
        fields["features"], fields["next_producer_id"], offset, epoch,
        {state: state for state in states},
        {tuple(tuple(part) for part in entity): values
         for entity, values in fields.get("client_quotas", ())})
