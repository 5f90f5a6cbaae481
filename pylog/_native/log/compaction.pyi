from typing import final

from pylog._native.log.log import Log

SLOT_BYTES: int

class Interrupted(Exception): ...

@final
class OffsetMap:
    def __init__(self, size: int, load_factor: float = 0.9) -> None: ...
    def clear(self) -> None: ...
    @property
    def size(self) -> int: ...
    def __len__(self) -> int: ...

def look(
    log: Log, *, now_ms: int, first_dirty: int, min_compaction_lag_ms: int = 0
) -> tuple[int, int, int, int, int]: ...
@final
class CleaningPass:
    def __init__(
        self,
        log: Log,
        offset_map: OffsetMap,
        *,
        now_ms: int,
        first_dirty: int,
        delete_retention_ms: int,
        segment_bytes: int,
        min_compaction_lag_ms: int = 0,
        inflated_bytes_max: int = ...,
    ) -> None: ...
    def step(self, bytes_max: int) -> bool: ...
    def figures(self) -> dict[str, int] | None: ...
    def close(self) -> None: ...
