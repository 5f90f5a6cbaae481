"""Descriptions of groups of any kind: in parts, and with permitted operations.

Owns: nothing.
Invariants: a part has at most PART_ROWS groups and members, plus the members of one group.
Source: KIP-430 (authorized operations).
"""

from __future__ import annotations

from pylog.protocol.errors import ErrorCode

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pylog.api.handler import Message

PART_ROWS = 500
# Operations of a principal without restrictions on a group (KIP-430).
GROUP_OPERATIONS = sum(1 << bit for bit in (3, 6, 8, 10, 11))


def in_parts(response: Callable[..., Message], groups: Iterable[Message],
             wants_operations: bool) -> Iterator[Message]:
    """Yield responses with some of the groups each, at least one."""
    rows: list[Message] = []
    room = PART_ROWS
    for row in groups:
        if wants_operations and row.error_code == ErrorCode.NONE:
            row.authorized_operations = GROUP_OPERATIONS
        rows.append(row)
        room -= 1 + len(row.members)
        if room <= 0:
            yield response(groups=rows)
            rows, room = [], PART_ROWS
    yield response(groups=rows)
