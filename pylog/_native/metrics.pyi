from collections.abc import Sequence
from typing import Any, final

from pylog._native.log import Log, LogDir
from pylog._native.reactor import Reactors

BUCKETS: int
NS_FIRST: int
BYTES_FIRST: int
API_KEYS_MAX: int
FIGURES: tuple[str, ...]
KINDS: tuple[str, ...]
NO_TIME: int

Histogram = tuple[int, list[int]]

def requests(reactors: Reactors) -> dict[int, tuple[dict[str, Histogram], dict[int, int]]]: ...
def rounds(reactors: Reactors) -> Histogram: ...
def flushes(directory: LogDir) -> Histogram: ...
@final
class Figures:
    count: int
    def __init__(self, logs: list[Log]) -> None: ...
    def row(self, i: int) -> dict[str, int]: ...
    def columns(self, *names: str) -> list[list[int]]: ...
    def sums(self, ends: list[int]) -> Figures: ...

@final
class Rows:
    count: int
    def __init__(self, labels: list[bytes]) -> None: ...

@final
class Exposition:
    def put(self, part: bytes) -> None: ...
    def figure(self, name: bytes, rows: Rows, figures: Figures, column: str) -> None: ...
    def integers(
        self, name: bytes, rows: Rows, values: Any, thousandths: bool = False
    ) -> None: ...
    def value(self) -> bytes: ...

def times(
    logs: Sequence[Log], offsets: Any, out: Any, budget_ns: int
) -> int: ...
