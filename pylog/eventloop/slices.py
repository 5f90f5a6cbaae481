"""Long decisions on the event loop, a slice in each of its turns.

Owns: nothing.
Invariants: (1) between two slices the loop does whatever else is due; (2) a decision that is short
  costs no turn of the loop.
Source: none.
"""

import asyncio

TYPE_CHECKING = False  # The real one costs the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import TypeVar

    Decided = TypeVar("Decided")

# A step is a topic, a partition or a resource: 10 to 20 µs, so that a slice takes a few ms.
STEPS_PER_SLICE = 200


async def in_slices(steps: "Generator[None, None, Decided]") -> "Decided":
    """What the decision returns. steps: yields after each step."""
    while True:
        for _ in range(STEPS_PER_SLICE):
            try:
                next(steps)
            except StopIteration as end:
                return end.value
        await asyncio.sleep(0)       # Keeps (1).
