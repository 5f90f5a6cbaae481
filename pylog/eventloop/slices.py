"""Run long computations on the event loop in slices, one per loop iteration.

Owns: nothing.
Invariants: the loop runs all other ready callbacks between two slices; a short computation costs no
  loop iteration.
Source: none.
"""

import asyncio

TYPE_CHECKING = False  # Importing typing would cost 6 ms at startup.
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import TypeVar

    Decided = TypeVar("Decided")

# A step handles a topic, a partition or a resource in 10 to 20 µs, so a slice takes a few ms.
STEPS_PER_SLICE = 200


async def in_slices(steps: "Generator[None, None, Decided]") -> "Decided":
    """Run a generator in slices and return its result. steps: yields after each step."""
    while True:
        for _ in range(STEPS_PER_SLICE):
            try:
                next(steps)
            except StopIteration as end:
                return end.value
        await asyncio.sleep(0)  # Run other ready callbacks.
