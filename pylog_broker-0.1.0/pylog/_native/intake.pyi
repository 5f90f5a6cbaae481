from collections.abc import Callable, Generator
from typing import Any

from pylog._native.builder import BatchBuilder

class Mutex:
    def __enter__(self) -> Mutex: ...
    def __exit__(self, *exception: object) -> None: ...

class Lane:
    builder: BatchBuilder
    open: Any
    reserved: int
    lock: Mutex
    def __init__(self, lock: Mutex, builder: BatchBuilder, *rest: Any) -> None: ...

class Delivery:
    pending: Any
    timestamp: int
    index: int
    def __init__(self, pending: Any, index: int, timestamp: int) -> None: ...
    def done(self) -> bool: ...
    def result(self, timeout_s: float | None = None) -> Any: ...
    def exception(self, timeout_s: float | None = None) -> BaseException | None: ...
    def add_done_callback(self, function: Callable[[Delivery], Any]) -> None: ...
    def __await__(self) -> Generator[Any, None, Any]: ...

class Route:
    partitions: list[int]
    available: list[int]
    def __init__(
        self,
        lock: Mutex,
        partitions: list[int],
        available: list[int],
        hashes: bool,
        record_bytes_max: int,
    ) -> None: ...
    def add_lane(self, partition: int, lane: Lane) -> None: ...
    def stick(self, partition: int, bytes_max: int) -> None: ...
    def stuck_bytes(self) -> int: ...
    def append(
        self,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Any = None,
        on_delivery: Callable[..., Any] | None = None,
    ) -> Delivery | None: ...

class Intake:
    def __init__(self, routes: dict[str, Route]) -> None: ...
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Any = None,
        on_delivery: Callable[..., Any] | None = None,
    ) -> Delivery: ...
