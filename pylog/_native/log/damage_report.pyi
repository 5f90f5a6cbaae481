from typing import NamedTuple

from pylog._native.log.log import LogDir

class Damage(NamedTuple):
    partition: str
    segment: int
    offset: int
    position: int
    bytes: int
    kind: str
    reason: str

def take(directory: LogDir) -> list[Damage]: ...
def figures(directory: LogDir) -> dict[str, int]: ...
def stop_recovery(directory: LogDir) -> None: ...
