from typing import final

from pylog._native.log.log import Log
from pylog._native.server.rate_limit import Throttle

REFUSED: int
DIVERGED: int
OUT_OF_RANGE: int
FAILED: int
LOST: int
FETCHING: int
BACKING_OFF: int
WAITING: int
LEFT: int
THREADS_MAX: int
VERSION_MIN: int
VERSION_MAX: int

@final
class Notice:
    kind: int
    token: int
    code: int
    epoch: int
    end_offset: int
    leader_id: int
    leader_epoch: int

@final
class Followed:
    def figures(self) -> tuple[int, int, int]: ...

@final
class Fetchers:
    threads: int
    def __init__(self, *, threads: int, replica_id: int, wait_ms_max: int, bytes_min: int,
                 bytes_max: int, partition_bytes_max: int, backoff_ms_max: int,
                 answer_ms_max: int, flush_first: bool = False,
                 throttle: Throttle | None = None) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def set_broker_epoch(self, broker_epoch: int) -> None: ...
    def thread_of(self, topic_id: bytes, partition: int) -> int: ...
    def follow(self, log: Log, topic_id: bytes, partition: int, leader_id: int,
               leader_epoch: int, token: int) -> Followed: ...
    def unfollow(self, followed: Followed) -> None: ...
    def resume(self, followed: Followed) -> None: ...
    def attach(self, thread: int, leader_id: int, fd: int, version: int,
               serial: int, tls: object = None) -> None: ...
    def detach(self, thread: int, leader_id: int) -> None: ...
    def fileno(self) -> int: ...
    def take(self) -> list[Notice]: ...
    def stats(self) -> dict[str, int]: ...
