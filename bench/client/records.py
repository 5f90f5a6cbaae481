"""The records that all clients of the benchmark read and write.

Owns: nothing.
Invariants: the same generator state gives the same records.
"""

from __future__ import annotations

import random

BATCH_BYTES = 131_072
COUNTRIES = ("de", "fr", "us", "jp")
WORDS = ("alpha ", "beta ", "gamma ", "delta ")


def values(count: int, size: int, rng: random.Random) -> list[bytes]:
    """Return lines like a web shop's log; they compress to about a third."""
    made = []
    for _ in range(count):
        text = (f'{{"user":{rng.randrange(10**6)},"item":"{rng.getrandbits(32):08x}",'
                f'"price":{rng.random() * 500:.2f},"country":"{rng.choice(COUNTRIES)}",'
                f'"ts":{1_700_000_000_000 + rng.randrange(10**9)},"note":"')
        while len(text) < size - 2:
            text += rng.choice((*WORDS, f"{rng.getrandbits(24):x} "))
        made.append((text[:size - 2] + '"}').encode())
    return made
