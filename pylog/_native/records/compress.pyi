from typing_extensions import Buffer

NONE: int
GZIP: int
SNAPPY: int
LZ4: int
ZSTD: int

class CompressError(ValueError):
    error: int
    def __init__(self, error: int) -> None: ...

class Inflater: ...

def compress(codec: int, data: Buffer, level: int | None = None) -> bytes: ...
def decompress(codec: int, data: Buffer, max_bytes: int) -> bytes: ...
