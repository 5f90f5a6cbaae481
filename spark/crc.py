"""CRC-32C of many short byte rows at once, in NumPy.

Owns: the tables, built on first use.
Invariants: `extended(crc, rows)` is the CRC-32C of each row's bytes appended to the bytes of `crc`;
  everything is linear over GF(2): appending n zero bytes multiplies the state by a matrix.
Source: RFC 3720 appendix B.4 (polynomial 0x1EDC6F41, reflected 0x82F63B78); zlib's crc32_combine.
"""

from __future__ import annotations

import functools

import numpy as np

POLYNOMIAL = 0x82F63B78
ONES = np.uint32(0xFFFFFFFF)


@functools.cache
def byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


@functools.cache
def _word_tables() -> np.ndarray:
    """uint32[4, 256]: tables for four bytes per step."""
    tables = np.empty((4, 256), np.uint32)
    tables[3] = byte_table()
    for row in (2, 1, 0):
        tables[row] = (tables[row + 1] >> 8) ^ tables[3][tables[row + 1] & 255]
    return tables


def extended(state: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return the states (uint32[n], not inverted) after the little-endian words uint32[n, k]."""
    tables = _word_tables()
    for column in range(words.shape[1]):
        state = _by_bytes(state ^ words[:, column], tables)
    return state


@functools.cache
def _shift_tables(power: int) -> np.ndarray:
    """uint32[4, 256]: the state after 2**power zero bytes, by each byte of the previous state."""
    if power == 0:
        bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
        after = (bits >> 8) ^ byte_table()[bits & 255]
    else:
        half = _shift_tables(power - 1)
        after = np.uint32(1) << np.arange(32, dtype=np.uint32)
        for _ in range(2):
            after = _by_bytes(after, half)
    return _tables_of(after)


def _tables_of(after: np.ndarray) -> np.ndarray:
    """Return by bytes what `after`, uint32[32], contains by bits."""
    tables = np.zeros((4, 256), np.uint32)
    for bit in range(32):
        tables[bit // 8, (np.arange(256) >> bit % 8) & 1 == 1] ^= after[bit]
    return tables


def _by_bytes(state: np.ndarray, tables: np.ndarray) -> np.ndarray:
    return (tables[0][state & 255] ^ tables[1][(state >> 8) & 255]
            ^ tables[2][(state >> 16) & 255] ^ tables[3][state >> 24])


@functools.lru_cache(maxsize=4096)
def _length_tables(length: int) -> np.ndarray:
    """Like _shift_tables, for any number of zero bytes."""
    after = np.uint32(1) << np.arange(32, dtype=np.uint32)
    power = 0
    while length >> power:
        if length >> power & 1:
            after = _by_bytes(after, _shift_tables(power))
        power += 1
    return _tables_of(after)


def shifted(state: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the states, each advanced by its number of zero bytes (linear over GF(2))."""
    if not len(lengths) or (lengths == lengths[0]).all():
        return _by_bytes(state, _length_tables(int(lengths[0]) if len(lengths) else 0))
    state = state.copy()
    for power in range(int(lengths.max()).bit_length()):
        rows = np.flatnonzero(lengths >> power & 1)
        state[rows] = _by_bytes(state[rows], _shift_tables(power))
    return state


def prefixes(data: np.ndarray) -> np.ndarray:
    """Return uint32[len + 1]: the state (from zero) after each prefix of the bytes; len is a square
    number.

    Processes the rows of the square in parallel, then joins them by linearity.
    """
    side = int(len(data) ** 0.5)
    assert side * side == len(data), len(data)
    table = byte_table()
    square = data.reshape(side, side)
    out = np.empty((side, side + 1), np.uint32)
    out[:, 0] = 0
    for column in range(side):
        state = out[:, column]
        out[:, column + 1] = (state >> 8) ^ table[(state ^ square[:, column]) & 255]
    whole = np.empty(len(data) + 1, np.uint32)
    carry = np.zeros(1, np.uint32)
    for row in range(side):
        whole[row * side:(row + 1) * side + 1] = out[row] ^ _carried(carry, side)
        carry = whole[(row + 1) * side:(row + 1) * side + 1]
    return whole


def _carried(carry: np.ndarray, length: int) -> np.ndarray:
    """Return the state `carry` after 0 .. length zero bytes."""
    state = carry
    out = np.empty(length + 1, np.uint32)
    out[0] = state[0]
    filled = 1
    while filled <= length:
        part = out[:min(filled, length + 1 - filled)]
        out[filled:filled + len(part)] = _by_bytes(part, _length_tables(filled))
        filled += len(part)
    return out
