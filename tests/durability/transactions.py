"""Transactions of a batch timeline, and the records that a read_committed consumer receives.

Model: a producer's first transactional batch opens its transaction, its marker ends it. A decided
outcome stays decided, even if the marker was lost and is written again.
"""

import struct
from collections import namedtuple

from pylog._native.records import batch

ABORT, COMMIT = 0, 1
ENDS = batch.CONTROL | batch.TRANSACTIONAL
Ended = namedtuple("Ended", ("producer", "first", "last", "type"))


def marker(producer: int, type_: int, now_ms: int) -> tuple:
    """Return (record, bytes) of a control batch."""
    record = struct.pack(">hh", 0, type_), struct.pack(">hi", 0, 7), now_ms
    return record, batch.build([(*record, [])], producer_id=producer, producer_epoch=0,
                               attributes=ENDS)


def walk(batches) -> tuple[dict, list]:
    """Return ({producer: first batch} of open transactions, [Ended])."""
    opened, ended = {}, []
    for one in batches:
        if one.attributes & batch.CONTROL:
            first = opened.pop(one.producer, None)
            if first is not None:
                type_ = struct.unpack_from(">hh", one.records[0][0])[1]
                ended.append(Ended(one.producer, first.base, one.base, type_))
        elif one.attributes & batch.TRANSACTIONAL:
            opened.setdefault(one.producer, one)
    return opened, ended


def stable(batches, start: int, end: int) -> int:
    """Return the last stable offset of a log that ends at `end`, with no records above the high
    watermark.
    """
    opened, _ = walk(batches)
    return max(start, min((one.base for one in opened.values()), default=end))


def fates(batches, decided: dict) -> dict:
    """Return {base: ABORT, COMMIT, or None if undecided} of transactional data.

    decided: {(producer, first sequence): type}, for open transactions.
    """
    opened, ended = walk(batches)
    of = {producer: [row for row in ended if row.producer == producer]
          for producer in {row.producer for row in ended}}
    found = {}
    for one in batches:
        if one.attributes & ENDS == batch.TRANSACTIONAL:
            first = opened.get(one.producer)
            if first is not None and one.base >= first.base:
                found[one.base] = decided.get((one.producer, first.sequence))
            else:
                found[one.base] = next(row.type for row in of[one.producer]
                                       if row.first <= one.base < row.last)
    return found


def seen(found, aborted) -> set:
    """Return base offsets of the data batches that a read_committed consumer keeps from a fetch.

    found: [(base offset, header, records)]. aborted: from the fetch response.
    """
    waiting, gone, taken = sorted(aborted, key=lambda row: row[1]), set(), set()
    for base, header, records in found:
        last = header.base_offset + header.last_offset_delta
        while waiting and waiting[0][1] <= last:
            gone.add(waiting.pop(0)[0])
        if header.attributes & batch.CONTROL:
            if records and struct.unpack_from(">hh", records[0][1])[1] == ABORT:
                gone.discard(header.producer_id)
        elif not (header.attributes & batch.TRANSACTIONAL and header.producer_id in gone):
            taken.add(base)
    return taken
