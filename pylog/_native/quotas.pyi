from typing import final

PRODUCE: int
FETCH: int
REQUEST: int
KINDS: int

Limit = tuple[bytes, float] | None

@final
class Quotas:
    def __init__(self, samples: int, window_ms: int) -> None: ...
    def void(self, enabled: bool) -> None: ...
    def install(
        self, principal: int, client_id: bytes, limits: tuple[Limit, Limit, Limit], now_ms: int
    ) -> None: ...
    def charge(
        self, principal: int, client_id: bytes, kind: int, value: float, now_ms: int
    ) -> int | None: ...
    def fetch_max(self, principal: int, client_id: bytes, most: int) -> int | None: ...
    def count(self) -> tuple[int, int]: ...
