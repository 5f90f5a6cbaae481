"""A log of every kind of batch, with the same bytes on every broker."""

from tests.wire.raw import batch, record

# A fixed day, so that both sides have the same bytes; retention in the tests is unlimited.
BASE_MS = 1_760_000_000_000


def _rows(count: int, value_bytes: int, step_ms: int = 10) -> list[bytes]:
    rows = []
    for number in range(count):
        key = None if number % 4 == 3 else b"key-%d" % number
        value = None if number % 7 == 6 else bytes([65 + number % 26]) * value_bytes
        headers = [(b"h", None), (b"h", b""), (b"\xc3\xa9", b"\0\xff")] if number % 5 == 0 else ()
        rows.append(record(key, value, headers, number, number * step_ms))
    return rows


def mixed_batches(producer_id: int = 4711) -> list[bytes]:
    """Return batches of many sizes and codecs, with timestamps that have gaps and are out of order.

    Every third is from an idempotent producer, so that a log accepts them once per id.
    """
    out = []
    sequence = 0
    sizes = [(1, 0), (1, 10), (3, 100), (10, 20), (40, 50), (2, 5000), (1, 40000), (25, 300)]
    for turn, (count, value_bytes) in enumerate(sizes * 5):
        base_ms = BASE_MS + [0, 5000, 2000, 9000, 9000][turn % 5] + turn * 700
        producer = {}
        if turn % 3 == 0:
            producer = {"producer_id": producer_id, "producer_epoch": 2, "base_sequence": sequence}
            sequence += count
        out.append(batch(_rows(count, value_bytes), codec=turn % 5, base_timestamp=base_ms,
                         max_timestamp=base_ms + (count - 1) * 10, **producer))
    return out


def timestamps_of(batches: list[bytes]) -> list[int]:
    """Return the first and max timestamps of the batches' headers, sorted, each once."""
    found = set()
    for data in batches:
        found.add(int.from_bytes(data[27:35], "big"))
        found.add(int.from_bytes(data[35:43], "big"))
    return sorted(found)
