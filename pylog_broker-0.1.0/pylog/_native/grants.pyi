from typing import final

from pylog._native.log import Log

READ: int
WRITE: int
FOLLOW: int

@final
class Grants:
    def __init__(self, topics_max: int = 2_000_000) -> None: ...
    def install(
        self, name: str, topic_id: bytes, logs: list[Log | None], internal: bool = False,
        disk_failed: bool = False, *, leaders: list[tuple[int, int]] | None = None,
    ) -> None: ...
    def set_nodes(
        self, listeners: list[tuple[int, list[tuple[int, str, int, str | None]]]]
    ) -> None: ...
    def remove(self, name: str) -> None: ...
    def allow(self, principal: int, topic_id: bytes, rights: int) -> bool: ...
    def void(self) -> None: ...
