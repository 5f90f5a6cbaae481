"""The content of every record of a load, as a function of seed, generator and sequence.

Owns: nothing; the filler of a seed is generated once per process.
Invariants: the same Content, generator and sequence give the same bytes on any machine; a value's
  last four bytes are the CRC-32C of the preceding ones, so that corruption is detected without the
  seed; nothing here loops over records in Python.
Source: splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators).

A value: u32 magic, u32 tag of the content, u32 generator, u64 sequence, filler, u32 CRC-32C; all
little-endian. A key: "key-" and eight digits. The header "pylog": u32 generator, u64 sequence.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from . import crc

MAGIC = 0x314C5950
HEAD = np.dtype([("magic", "<u4"), ("tag", "<u4"), ("generator", "<u4"), ("sequence", "<u8")])
HEADER_VALUE = np.dtype([("generator", "<u4"), ("sequence", "<u8")])
HEADER_KEY = "pylog"
SIZE_MIN = HEAD.itemsize + 4
SIZE_MAX = 1 << 20
POOL_BYTES = 1 << 21
CHUNK_BYTES = 4 << 20
KEY_BYTES = 12
KEYS_MAX = 99_999_999
_SIZE, _KEY, _PLACE = 1, 2, 3  # The purposes of a record's random numbers.


class ContentError(ValueError):
    """The description of the content is invalid. The message is one line."""


@dataclass(frozen=True)
class Content:
    """The content of a load's records. sizes: "100", "uniform:100:1000" or "normal:500:100", bytes
    of a value. keys: 0 for records without one. skew: Zipf's exponent of the keys, 0 for a uniform
    distribution.
    """

    seed: int = 0
    sizes: str = "100"
    keys: int = 0
    skew: float = 0.0
    headers: bool = False

    def __post_init__(self) -> None:
        _shape(self.sizes)
        if not 0 <= self.keys <= KEYS_MAX:
            raise ContentError(f"keys={self.keys}: 0 to {KEYS_MAX} are possible")
        if not 0 <= self.skew <= 10:
            raise ContentError(f"skew={self.skew}: 0 to 10 are possible")

    @property
    def tag(self) -> int:
        """Return a tag that is stored in each value and depends on the whole description."""
        return _tag(self)


@functools.lru_cache(maxsize=16)
def _tag(content: Content) -> int:
    text = repr(sorted(asdict(content).items())).encode()
    state = np.full(1, 0xFFFFFFFF, np.uint32)
    words = np.frombuffer(text + bytes(-len(text) % 4), "<u4")[None, :]
    return int(crc.extended(state, words)[0])


class Made(NamedTuple):
    """Values in Arrow's layout, keys likewise or None, and the generator's sequences."""

    data: np.ndarray
    offsets: np.ndarray
    key_data: np.ndarray | None
    sequences: np.ndarray


class Found(NamedTuple):
    """Per record, the generator and sequence in its value and the result of the check. Sequences
    are valid only for good records.

    corrupted: the checksum fails. foreign: the checksum is valid, but the load has no such record.
    """

    good: np.ndarray
    corrupted: np.ndarray
    foreign: np.ndarray
    generators: np.ndarray
    sequences: np.ndarray


def mixed(content: Content, what: int, generators: Any, sequences: np.ndarray) -> np.ndarray:
    """Return one random uint64 per record and purpose."""
    with np.errstate(over="ignore"):
        state = (np.asarray(sequences, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
                 + np.asarray(generators, np.uint64) * np.uint64(0xD1B54A32D192ED03)
                 + np.uint64((content.seed * 4 + what) * 0x8CB92BA72F3D8DD7 & 2**64 - 1))
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))


def sizes(content: Content, generators: Any, sequences: np.ndarray) -> np.ndarray:
    """Return int64: the size of each value in bytes."""
    kind, low, high = _shape(content.sizes)
    if kind == "fixed":
        return np.full(len(sequences), low, np.int64)
    number = mixed(content, _SIZE, generators, sequences)
    if kind == "uniform":
        return low + (number % np.uint64(high - low + 1)).astype(np.int64)
    # The sum of four uniform 16-bit numbers is nearly normal and an integer on every machine.
    total = sum(((number >> np.uint64(16 * part)) & np.uint64(0xFFFF)).astype(np.int64)
                for part in range(4))
    made = low + (total - 2 * 65535) * high // 37837
    return np.clip(made, SIZE_MIN, SIZE_MAX)


@functools.cache
def _shape(text: str) -> tuple[str, int, int]:
    kind, *numbers = text.split(":") if ":" in text else ["fixed", text, text]
    known = {"fixed": 2, "uniform": 2, "normal": 2}
    if kind not in known or len(numbers) != 2 or not all(part.isdigit() for part in numbers):
        raise ContentError(f"sizes={text!r}: N, uniform:LOW:HIGH or normal:MEAN:DEVIATION")
    low, high = map(int, numbers)
    if not SIZE_MIN <= low <= SIZE_MAX or kind == "uniform" and not low <= high <= SIZE_MAX:
        raise ContentError(f"sizes={text!r}: values have {SIZE_MIN} to {SIZE_MAX} bytes")
    return kind, low, high


def keys(content: Content, generators: Any, sequences: np.ndarray) -> np.ndarray:
    """Return int64: the key number of each record."""
    number = mixed(content, _KEY, generators, sequences) >> np.uint64(11)
    if not content.skew:
        return (number % np.uint64(content.keys)).astype(np.int64)
    bounds = _zipf(content.keys, content.skew)
    return np.searchsorted(bounds, number.astype(np.float64) / 2**53, side="right")


@functools.lru_cache(maxsize=4)
def _zipf(count: int, skew: float) -> np.ndarray:
    weights = np.arange(1, count + 1, dtype=np.float64) ** -skew
    bounds = np.cumsum(weights)[:-1] / weights.sum()
    # Coarse enough that rounding differences of power functions between machines do not matter.
    return np.round(bounds * 2**40) / 2**40


def key_bytes(numbers: np.ndarray) -> np.ndarray:
    """Return uint8[n, KEY_BYTES]."""
    out = np.empty((len(numbers), KEY_BYTES), np.uint8)
    out[:, :4] = np.frombuffer(b"key-", np.uint8)
    left = numbers.copy()
    for place in range(KEY_BYTES - 1, 3, -1):
        left, digit = np.divmod(left, 10)
        out[:, place] = 48 + digit
    return out


@functools.lru_cache(maxsize=2)
def _pool(seed: int) -> np.ndarray:
    """Return the bytes that all fillers are slices of. Half of them are random, so they compress by
    half.
    """
    side = int(POOL_BYTES ** 0.5)
    words = mixed(Content(seed), 0, 0, np.arange(side * side // 8 + 1))
    pool = words.view(np.uint8)[:side * side].copy()
    pool[pool & 1 == 1] = 46
    return pool


@functools.lru_cache(maxsize=2)
def _pool_behind_a_head(seed: int) -> np.ndarray:
    return np.concatenate([np.zeros(HEAD.itemsize, np.uint8), _pool(seed)])


@functools.lru_cache(maxsize=2)
def _pool_states(seed: int) -> np.ndarray:
    return crc.prefixes(_pool(seed))


def _places(content: Content, generators: Any, sequences: np.ndarray) -> np.ndarray:
    room = len(_pool(content.seed)) - SIZE_MAX
    return (mixed(content, _PLACE, generators, sequences) % np.uint64(room)).astype(np.int64)


def made(content: Content, generator: int, start: int, count: int) -> Made:
    """Return the records [start, start + count) of a generator. A value column holds 2 GiB at most.
    """
    sequences = np.arange(start, start + count, dtype=np.int64)
    lengths = sizes(content, generator, sequences)
    offsets = np.zeros(count + 1, np.int32)
    ends = np.cumsum(lengths)
    assert not count or ends[-1] < 2**31, f"{ends[-1]} bytes in one column"
    offsets[1:] = ends
    pieces = []
    for rows in _chunks(lengths):
        block = values(content, generator, sequences[rows], lengths[rows])
        mask = _mask(lengths[rows])
        pieces.append(block.reshape(-1) if mask is None else block[mask])
    data = pieces[0] if len(pieces) == 1 else np.concatenate([np.empty(0, np.uint8), *pieces])
    numbers = keys(content, generator, sequences) if content.keys else None
    key_data = None if numbers is None else key_bytes(numbers).reshape(-1)
    return Made(data, offsets, key_data, sequences)


def _windows(data: np.ndarray, length: int) -> np.ndarray:
    """Return every window of `length` bytes, by start, without a copy."""
    if len(data) < length:
        return np.empty((0, length), np.uint8)
    return np.lib.stride_tricks.as_strided(
        data, (len(data) - length + 1, length), (1, 1), writeable=data.flags.writeable)


def _chunks(lengths: np.ndarray):
    """Yield slices of rows that together are not too large; each slice is as wide as its longest
    row.
    """
    if len(lengths):
        count = max(1, CHUNK_BYTES // max(1, int(lengths.max())))
        for start in range(0, len(lengths), count):
            yield slice(start, min(start + count, len(lengths)))


def _mask(lengths: np.ndarray) -> np.ndarray | None:
    """Return bool[n, longest]: the valid bytes of each row; None if all are valid."""
    if (lengths == lengths[0]).all():
        return None
    longest = int(lengths.max())
    # Comparing narrow integers is faster.
    kind: type[np.signedinteger[Any]] = np.int16 if longest < 1 << 15 else np.int32
    return np.arange(longest, dtype=kind) < lengths.astype(kind)[:, None]


def values(content: Content, generators: Any, sequences: np.ndarray, lengths: np.ndarray
           ) -> np.ndarray:
    """Return uint8[n, longest]: the values of records; bytes after a shorter one are undefined."""
    count, longest = len(sequences), int(lengths.max())
    head = np.empty(count, HEAD)
    head["magic"], head["tag"] = MAGIC, content.tag
    head["generator"], head["sequence"] = generators, sequences
    places = _places(content, generators, sequences)
    # The pool is preceded by room for a head, so that one gather creates whole rows.
    out = _windows(_pool_behind_a_head(content.seed), longest)[places]
    out[:, :HEAD.itemsize] = head.view(np.uint8).reshape(-1, HEAD.itemsize)
    fillers = lengths - SIZE_MIN
    state = np.full(count, 0xFFFFFFFF, np.uint32)
    state = crc.extended(state, head.view("<u4").reshape(-1, HEAD.itemsize // 4))
    states = _pool_states(content.seed)
    state = crc.shifted(state ^ states[places], fillers) ^ states[places + fillers] ^ crc.ONES
    ends = state.astype("<u4").view(np.uint8).reshape(-1, 4)
    if (lengths == longest).all():
        out[:, -4:] = ends
    else:
        out[np.arange(count)[:, None], lengths[:, None] - 4 + np.arange(4)] = ends
    return out


def checked(content: Content, counts: dict[int, int], data: np.ndarray,
            offsets: np.ndarray) -> Found:
    """Check each value against its generator and sequence.

    counts: records of each generator; further ones are foreign. data, offsets: uint8 and int32 or
    int64, as in Arrow. A null is an empty value.
    """
    count = len(offsets) - 1
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    good = np.zeros(count, bool)
    generators, sequences = np.zeros(count, np.int64), np.zeros(count, np.int64)
    limits = np.zeros(max(counts, default=0) + 2, np.uint64)
    for generator, limit in counts.items():
        limits[generator] = limit
    tag = content.tag
    long_enough = np.flatnonzero(lengths >= SIZE_MIN)
    for chunk in _chunks(lengths[long_enough]):
        rows = long_enough[chunk]
        block = _block(data, starts[rows], lengths[rows])
        head = np.ascontiguousarray(block[:, :HEAD.itemsize]).view(HEAD).reshape(-1)
        known = np.minimum(head["generator"], len(limits) - 1)
        fits = ((head["magic"] == MAGIC) & (head["tag"] == tag)
                & (head["sequence"] < limits[known]))
        generators[rows], sequences[rows] = known, np.where(fits, head["sequence"], 0)
        fits &= sizes(content, known, sequences[rows]) == lengths[rows]
        good[rows] = fits & _same(content, known, sequences[rows], lengths[rows], block)
    corrupted = np.zeros(count, bool)
    for row in np.flatnonzero(~good):  # None if all rows are valid.
        corrupted[row] = not _sound(data[offsets[row]:offsets[row + 1]])
    return Found(good, corrupted, ~good & ~corrupted, generators, sequences)


def _block(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return uint8[n, longest]: one value per row; bytes after a shorter one are undefined."""
    first, end, longest = int(starts[0]), int(starts[-1] + lengths[-1]), int(lengths.max())
    if end - first == longest * len(starts) and (lengths == longest).all():
        return data[first:end].reshape(-1, longest)
    room = np.zeros(end - first + longest, np.uint8)
    room[:end - first] = data[first:end]
    return _windows(room, longest)[starts - first]


def _same(content: Content, generators: np.ndarray, sequences: np.ndarray, lengths: np.ndarray,
          block: np.ndarray) -> np.ndarray:
    expected, mask = values(content, generators, sequences, lengths), _mask(lengths)
    if mask is None and block.flags.c_contiguous and _equal(expected, block):
        return np.ones(len(block), bool)
    differ = expected != block
    if mask is not None:
        differ &= mask
    return ~differ.any(axis=1) if differ.any() else np.ones(len(block), bool)


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Return True if all rows are equal. Compares words: this common case must be fast."""
    one, other = one.reshape(-1), other.reshape(-1)
    whole = len(one) // 8 * 8
    return (np.array_equal(one[:whole].view("<u8"), other[:whole].view("<u8"))
            and np.array_equal(one[whole:], other[whole:]))


def _sound(value: np.ndarray) -> bool:
    """Return the checksum result of each value, independent of its content."""
    if len(value) < SIZE_MIN:
        return False
    state, body = np.full(1, 0xFFFFFFFF, np.uint32), value[:-4]
    whole = len(body) // 4 * 4
    state = crc.extended(state, np.ascontiguousarray(body[:whole]).view("<u4")[None, :])
    for byte in body[whole:]:
        state = (state >> 8) ^ crc.byte_table()[(state ^ np.uint32(byte)) & 255]
    expected = np.ascontiguousarray(value[-4:]).view("<u4")[0]
    return int(state[0] ^ crc.ONES) == int(expected)


def keys_match(content: Content, found: Found, key_data: np.ndarray,
               key_offsets: np.ndarray) -> np.ndarray:
    """Return, for each good record, True if its key is correct."""
    lengths = np.diff(key_offsets)
    if not content.keys:
        return (lengths == 0) | ~found.good
    right = (lengths == KEY_BYTES) & found.good
    starts = key_offsets[:-1][right].astype(np.int64)
    expected = key_bytes(keys(content, found.generators[right], found.sequences[right]))
    match = ~found.good
    match[right] = (_windows(key_data, KEY_BYTES)[starts] == expected).all(axis=1)
    return match
