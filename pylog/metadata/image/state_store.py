"""`state.lmdb`: data derived from the logs, saved so that a start need not read them.

Owns: the LMDB environment; no other code opens it.
Invariants: every entry contains the log offset up to which it is valid; losing the file loses no
  data; the clean mark is removed, on disk, before the first append; a damaged file is detected
  before it is used: after a clean stop by its checksum file, else by a child process that reads
  every page and may crash; the image and the checkpoints have their own checksums; the file is
  removed only if it is proven to be damaged, and lacking resources at a start is no proof.
Source: none; the logs are authoritative, LMDB is an index.

Keys: `format`, `clean` (the mark), `image` (offset, epoch, JSON), `log/` + topic id + partition (a
Checkpoint).
"""

import contextlib
import errno
import json
import logging
import os
import re
import signal
import struct
import sys
import threading

import lmdb

from pylog._native.records.batch import crc32c
from pylog.log.checkpoint_files import sync_directory, write_whole
from pylog.log.partition_logs import Checkpoint
from pylog.metadata.image.image import Broker, Endpoint, Image, Partition, Topic, security_key
from pylog.metadata.image.snapshot import encoded
from pylog.protocol import records

FILE = "state.lmdb"
SUM = f"{FILE}.sum"
StoreError = lmdb.Error
FORMAT = b"2"
PROBE_SECONDS_MAX = 60
MAP_BYTES_MAX = 8 << 30  # address space, not disk: the file grows with its content
METADATA_LOG_ID = bytes(15) + b"\x01"

log = logging.getLogger("pylog.metadata.store")

_LOG_PREFIX = b"log/"
_LOG_KEY = struct.Struct(">4s16si")
_CHECKPOINT = struct.Struct(">qqqqi")
_IMAGE_HEAD = struct.Struct(">qi")
_CRC = struct.Struct(">I")
# LMDB's errors about the file's content only. Some versions lack some of them.
_DAMAGES = ("CorruptedError", "InvalidError", "PageNotFoundError", "VersionMismatchError",
            "BadChecksumError", "CursorFullError", "PageFullError", "ProblemError")
_DAMAGED = tuple(getattr(lmdb, name) for name in _DAMAGES if hasattr(lmdb, name))
_LACKS = tuple(map(os.strerror, (
    errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT, errno.EIO,
    errno.EACCES, errno.EPERM, errno.EROFS)))
_META_PAGE_BYTES, _META_LAST_PAGE = struct.Struct("=I"), struct.Struct("=Q")
_SUM_TEXT = re.compile(r"[0-9a-f]{8} \d+\n")
_SUM_READ_BYTES = 1 << 20
# LMDB trusts its pages: invalid ones crash the process that follows them, so a child process reads
# them first. It writes nothing. A signal counts as damage only while the child reads pages, and not
# if another process sent it.
_PROBE_DAMAGED, _PROBE_RAISED, _PROBE_LOOKS = 3, 4, b"looks\n"
_PROBE_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
_PROBE = """
import lmdb, sys
def damaged(what):
    print(what, file=sys.stderr)
    sys.exit(3)
def look():
    env = lmdb.open(sys.argv[1], subdir=False, lock=False, create=False, map_size=int(sys.argv[2]))
    before, count = b"", 0
    with env.begin() as txn:
        for key, value in txn.cursor():
            if key <= before:
                damaged("keys do not rise")
            before, count = key, count + 1
    if count != env.stat()["entries"]:
        damaged("entries are missing")
    txn = env.begin(write=True)
    try:
        txn.put(before + b"0", bytes(20000))
    except lmdb.MapFullError:
        pass
    txn.abort()
with open(sys.argv[1], "rb") as file:
    while file.read(1 << 20):
        pass
print("looks", flush=True)
try:
    look()
except lmdb.Error as error:
    print(type(error).__name__, error, file=sys.stderr)
    sys.exit(4)
"""


class _Lacking(lmdb.Error):
    """The start lacks the resources to check the file."""


class Store:
    """The environment of one log directory; any thread may save."""

    def __init__(self, directory: str):
        self.directory = directory
        self._path = os.path.join(directory, FILE)
        # LMDB's own lock is off: the log directory's lock excludes other processes, this lock other
        # threads.
        self._lock = threading.Lock()
        try:
            self._check()
            self._env = self._open()
        except lmdb.Error as error:
            lacks = isinstance(error, _Lacking) or any(text in str(error) for text in _LACKS)
            if lacks and not isinstance(error, _DAMAGED):
                raise
            self._give_up(error)
            self._env = self._open()
        except OSError as error:
            raise StoreError(error.strerror or str(error)) from error
        with self._env.begin(write=True) as txn:
            if txn.get(b"format") != FORMAT:
                txn.drop(self._env.open_db(), delete=False)
                txn.put(b"format", FORMAT)

    def _give_up(self, error) -> None:
        """Remove a file that is proven to be damaged, or rename an unusable one, so that it is
        rebuilt.
        """
        if isinstance(error, _DAMAGED):
            log.warning("state.lmdb is unreadable and is rebuilt", extra={"reason": str(error)})
            os.unlink(self._path)
            sync_directory(os.path.dirname(self._path))
            return
        aside = f"{self._path}.aside"
        log.error("state.lmdb cannot be used and is rebuilt", extra={
            "reason": str(error), "kept": aside})
        os.replace(self._path, aside)
        # After a power loss, the old file must not reappear under the new one's name.
        sync_directory(os.path.dirname(self._path))

    def _open(self):
        try:
            env = lmdb.open(self._path, subdir=False, lock=False, map_size=MAP_BYTES_MAX,
                            readahead=False, max_readers=1)
        except lmdb.MemoryError:
            if _claims_more(self._path):
                raise lmdb.CorruptedError("it claims more pages than it has") from None
            raise
        # LMDB reads through a memory map: a page beyond the end of the file would kill the process.
        bytes_used = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        if os.path.getsize(self._path) < bytes_used:
            env.close()
            raise lmdb.CorruptedError(f"{bytes_used} bytes are needed")
        return env

    def _check(self) -> None:
        """Check the file for damage before using it. Raises lmdb.Error."""
        if not os.path.exists(self._path) or not os.path.getsize(self._path):
            return
        beside = os.path.join(os.path.dirname(self._path), SUM)
        try:
            with open(beside, encoding="ascii", errors="replace") as file:
                noted = file.read()
            # The checksum is valid until the first write.
            os.unlink(beside)
        except FileNotFoundError:
            noted = ""
        if not _SUM_TEXT.fullmatch(noted):
            self._probe()
        elif noted != _sum(self._path):
            raise lmdb.CorruptedError("its checksum differs")

    def _probe(self) -> None:
        # Imported here: a clean start does not need it.
        import subprocess

        try:
            ended = subprocess.run(
                [sys.executable, "-c", _PROBE, self._path, str(MAP_BYTES_MAX)], check=False,
                stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            raise StoreError(f"it was not checked within {PROBE_SECONDS_MAX} s") from error
        if ended.returncode == 0:
            return
        lines = ended.stderr.decode("utf-8", "replace").strip().splitlines()
        last = lines[-1] if lines else ""
        reason = f"reading it ended with {ended.returncode}: {last}"
        if ended.returncode == _PROBE_DAMAGED or (
                ended.returncode == _PROBE_RAISED and last.split(" ")[0] in _DAMAGES) or (
                ended.stdout == _PROBE_LOOKS and -ended.returncode in _PROBE_SIGNALS) or (
                _claims_more(self._path)):
            raise lmdb.CorruptedError(reason)
        raise (StoreError if ended.returncode == _PROBE_RAISED else _Lacking)(reason)

    def close(self, clean: bool = False) -> None:
        """Close the environment. clean: write a checksum, so that the next start can check the
        file.
        """
        self._env.close()
        if clean:
            write_whole(os.path.join(os.path.dirname(self._path), SUM), _sum(self._path))

    def metrics(self) -> dict:
        """Return size and use of the map for metrics, {} after close()."""
        try:
            info, stat = self._env.info(), self._env.stat()
        except lmdb.Error:
            return {}
        return {"map_bytes": info["map_size"],
                "used_bytes": (info["last_pgno"] + 1) * stat["psize"],
                "entries": stat["entries"], "readers": info["num_readers"]}

    @contextlib.contextmanager
    def transaction(self, write: bool = False):
        """A transaction for the module that owns a prefix of the keys; one at a time."""
        with self._lock, self._env.begin(write=write) as txn:
            yield txn

    def take_clean_mark(self) -> list:
        """Remove and return the clean mark of the last stop; [] after an unclean stop."""
        with self._env.begin(write=True) as txn:
            mark = _checked(txn.pop(b"clean"))
        return json.loads(mark) if mark else []

    def load_image(self) -> Image:
        """Return the stored image, an empty one if it cannot be read."""
        with self._env.begin() as txn:
            blob = _checked(txn.get(b"image"))
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
        """Return {(topic id, partition): Checkpoint}."""
        found = {}
        with self._env.begin() as txn:
            for key, value in _under(txn, _LOG_PREFIX):
                _, topic_id, partition = _LOG_KEY.unpack(key)
                checkpoint = _checkpoint_in(value)
                # A log without a checkpoint is scanned.
                if checkpoint is not None:
                    found[(topic_id, partition)] = checkpoint
        return found

    def save(self, image: Image | None, checkpoints, gone=(), mark: list | None = None) -> None:
        """Write the image (None: unchanged), checkpoints and the clean mark, in one transaction.

        checkpoints: [((topic id, partition), Checkpoint)]. gone: keys of removed partitions. mark:
        of a clean stop; checkpoints that it did not write lose the part that is valid only for a
        stopped log.
        """
        with self._lock, self._env.begin(write=True) as txn:
            if image is not None:
                txn.put(b"image", _summed(
                    _IMAGE_HEAD.pack(image.offset, image.epoch) + _blob(image)))
            for key in gone:
                txn.delete(_LOG_KEY.pack(_LOG_PREFIX, *key))
            for key, entry in checkpoints:
                txn.put(_LOG_KEY.pack(_LOG_PREFIX, *key),
                        _summed(_CHECKPOINT.pack(*entry[:-1]) + entry.segments))
            if mark is not None:
                written = {_LOG_KEY.pack(_LOG_PREFIX, *key) for key, _ in checkpoints}
                for key, value in list(_under(txn, _LOG_PREFIX)):
                    if key not in written:
                        _put_unrested(txn, key, value)
                txn.put(b"clean", _summed(json.dumps(mark).encode()))


def _under(txn, prefix: bytes):
    """Yield (key, value) of the keys with that prefix."""
    cursor = txn.cursor()
    if cursor.set_range(prefix):
        for key, value in cursor:
            if not key.startswith(prefix):
                return
            yield key, value


def _checkpoint_in(entry: bytes) -> Checkpoint | None:
    value = _checked(entry)
    if value is None:
        return None
    return Checkpoint._make((*_CHECKPOINT.unpack_from(value), value[_CHECKPOINT.size:]))


def _put_unrested(txn, key: bytes, value: bytes) -> None:
    """Keep the part of an earlier stop's checkpoint that stays valid for a log that was appended
    to.
    """
    checkpoint = _checkpoint_in(value)
    if checkpoint is not None and checkpoint.log_end_offset >= 0:
        left = checkpoint._replace(log_end_offset=-1, last_epoch=-1)
        txn.put(key, _summed(_CHECKPOINT.pack(*left[:-1])))


def _sum(path: str) -> str:
    """Return the content of the SUM file for `path`: checksum and size. Raises OSError."""
    crc, size = 0, 0
    with open(path, "rb") as file:
        while data := file.read(_SUM_READ_BYTES):
            crc, size = crc32c(data, crc), size + len(data)
    return f"{crc:08x} {size}\n"


def _claims_more(path: str) -> bool:
    """Return True if one of LMDB's two meta pages claims more pages than the file has. Mapping it
    could need more memory than the machine has.
    """
    with open(path, "rb") as file:
        first = file.read(4096)
        if len(first) < 4096:
            return True
        page_bytes, = _META_PAGE_BYTES.unpack_from(first, 40)
        file.seek(page_bytes)
        last, = _META_LAST_PAGE.unpack_from(first, 136)
        other = file.read(144)
        if len(other) == 144:
            last = max(last, *_META_LAST_PAGE.unpack_from(other, 136))
        return (last + 1) * page_bytes > os.path.getsize(path)


def _summed(value: bytes) -> bytes:
    """Return the value with its checksum in front."""
    return _CRC.pack(crc32c(value)) + value


def _checked(value: bytes | None) -> bytes | None:
    """Return the value without its checksum, None if it is missing or does not match."""
    if value is None or len(value) < _CRC.size:
        return None
    if _CRC.unpack_from(value)[0] != crc32c(value[_CRC.size:]):
        log.warning("a damaged entry of state.lmdb is skipped")
        return None
    return value[_CRC.size:]


def _blob(image: Image) -> bytes:
    """Return an image as JSON; equal partition states are written once and numbered."""
    numbers: dict[Partition, int] = {}
    states: list[list] = []
    topics = []
    for topic in image.topics.values():
        indexes = []
        for state in topic.partitions:
            number = numbers.get(state)
            if number is None:
                number = numbers[state] = len(states)
                states.append([*state[:-1], [directory.hex() for directory in state.directories]])
            indexes.append(number)
        topics.append([topic.name, topic.id.hex(), indexes])
    return json.dumps({
        "states": states, "topics": topics,
        "configs": [[*key, values] for key, values in image.configs.items()],
        "brokers": [_broker_fields(broker) for broker in image.brokers.values()],
        "features": image.features, "next_producer_id": image.next_producer_id,
        "client_quotas": list(image.client_quotas.items()),
        "security": [encoded(record).hex() for record in image.security.values()],
    }, separators=(",", ":")).encode()


def _broker_fields(broker: Broker) -> dict:
    return {**broker._asdict(), "incarnation_id": broker.incarnation_id.hex(),
            "directories": [directory.hex() for directory in broker.directories],
            "cordoned": broker.cordoned and [directory.hex() for directory in broker.cordoned]}


def _image(fields: dict, offset: int, epoch: int) -> Image:
    states = [
        Partition._make((*[tuple(value) if isinstance(value, list) else value
                           for value in row[:-1]],
                         tuple(bytes.fromhex(text) for text in row[-1])))
        for row in fields["states"]]
    topics = {}
    for name, id_, indexes in fields["topics"]:
        topics[name] = Topic(name, bytes.fromhex(id_), tuple([states[index] for index in indexes]))
    brokers = {}
    for row in fields["brokers"]:
        row["incarnation_id"] = bytes.fromhex(row["incarnation_id"])
        row["directories"] = tuple(bytes.fromhex(text) for text in row["directories"])
        if row.get("cordoned") is not None:
            row["cordoned"] = tuple(bytes.fromhex(text) for text in row["cordoned"])
        row["endpoints"] = tuple(Endpoint(*endpoint) for endpoint in row["endpoints"])
        row["features"] = tuple(tuple(feature) for feature in row["features"])
        brokers[row["id"]] = Broker(**row)
    security = [records.decode_record(bytes.fromhex(text))[1]
                for text in fields.get("security", ())]
    return Image(
        topics, {topic.id: topic for topic in topics.values()},
        {(kind, name): values for kind, name, values in fields["configs"]}, brokers,
        fields["features"], fields["next_producer_id"], offset, epoch,
        {state: state for state in states},
        {tuple(tuple(part) for part in entity): values
         for entity, values in fields.get("client_quotas", ())},
        {security_key(record): record for record in security})
