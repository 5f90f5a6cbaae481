from pylog._native.protocol.codec import Program
from pylog._native.protocol.message import Struct

KEEP: int
ONCE: int
TWICE: int

class Pieces:
    leaves: int
    repeated: int
    def __init__(
        self, program: Program, body: bytes, path: tuple[tuple[str, tuple[str, ...]], ...],
        repeats: int, elements_max: int, budget: int, inner_max: int,
    ) -> None: ...
    def survey(self) -> bool: ...
    def next(self, count: int) -> Struct | None: ...
