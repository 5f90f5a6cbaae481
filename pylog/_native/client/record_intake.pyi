import collections
from collections.abc import Callable, Generator
from typing import Any

from pylog._native.client.batch_builder import Batch, BatchBuilder

FIRST_BYTES: int
RECORD_OVERHEAD_BYTES: int

class Mutex:
    def acquire(self) -> None: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...

class PartitionQueue:
    builder: BatchBuilder
    open: Any
    reserved: int
    ready: collections.deque[Any]
    in_flight: list[Any]
    def __init__(self, builder: BatchBuilder, *rest: Any) -> None: ...

class RecordBuffer:
    lock: Mutex
    incomplete: dict[float, Any]
    active: dict[Any, Any]
    batch_bytes: int
    bytes_max: int
    bytes_used: int
    codec: int
    level: int | None
    linger_s: float
    def __init__(
        self,
        *,
        batch_bytes: int,
        bytes_max: int,
        linger_s: float,
        codec: int,
        level: int | None,
        wake: Callable[[], Any],
    ) -> None: ...
    def append(
        self,
        queue: PartitionQueue,
        key: Any,
        value: Any,
        timestamp: int,
        headers: Any,
        callback: Callable[..., Any] | None,
        size: int,
    ) -> tuple[Any, int] | None: ...
    def add_closed(self, queue: PartitionQueue, batch: Batch, fresh: Any) -> bool: ...
    def close(self, queue: PartitionQueue) -> None: ...
    def close_after_linger(
        self, queue: PartitionQueue, now_s: float, hurried: bool
    ) -> float | None: ...
    def drop_if_idle(self, queue: PartitionQueue) -> None: ...
    def add_part(self, part: Any) -> None: ...
    def release(self, pending: Any) -> None: ...
    def may_sleep(self, until_s: float) -> bool: ...
    def notify(self) -> None: ...

def add_waiter(pending: Any, function: Callable[[], Any]) -> bool: ...

class Delivery:
    pending: Any
    timestamp: int
    index: int
    def __init__(self, pending: Any, index: int, timestamp: int) -> None: ...
    def done(self) -> bool: ...
    def result(self, timeout: float | None = None, *, timeout_s: float | None = None) -> Any: ...
    def exception(
        self, timeout: float | None = None, *, timeout_s: float | None = None
    ) -> BaseException | None: ...
    def add_done_callback(self, function: Callable[[Delivery], Any]) -> None: ...
    def __await__(self) -> Generator[Any, None, Any]: ...

class Route:
    partitions: list[int]
    available: list[int]
    def __init__(
        self,
        buffer: RecordBuffer,
        partitions: list[int],
        available: list[int],
        hashes: bool,
        record_bytes_max: int,
    ) -> None: ...
    def set_queue(self, partition: int, queue: PartitionQueue) -> None: ...
    def set_sticky(self, partition: int, bytes_max: int) -> None: ...
    def take_sticky_bytes(self) -> int: ...
    def append(
        self,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: Any = None,
        on_delivery: Callable[..., Any] | None = None,
    ) -> Delivery | None: ...

class FastSend:
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
