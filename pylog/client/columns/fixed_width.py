"""Fixed-width values: integers and floats of 4 or 8 bytes, as single values or columns.

Owns: nothing.
Invariants: a value of another length raises SerializationError or ValueError and is never
  truncated.
Source: Kafka's Integer, Long, Float and Double serializers (big-endian).
"""

from __future__ import annotations

from typing import Any

from pylog._native.client.columns import fixed_width
from pylog.client.extras import require


def array_of(offsets: Any, data: Any, validity: Any, count: int, dtype: Any, start: int = 0) -> Any:
    """Convert a binary column, given as Arrow buffers, to a NumPy array of `dtype`; nulls are zero.

    Raises ValueError if a value's length differs from the dtype's.
    """
    import numpy as np

    dtype = np.dtype(dtype)
    if dtype.kind not in "iufb" or dtype.itemsize not in (1, 2, 4, 8):
        raise ValueError(f"not a fixed-width number type: {dtype}")
    native = dtype.newbyteorder("=")
    out: Any = fixed_width(
        offsets, data, validity, count, dtype.itemsize, dtype != native, start)
    return np.frombuffer(out, dtype=native)


def numbers(column: Any, dtype: Any) -> Any:
    """Convert a pyarrow binary Array to a NumPy array of `dtype` (">i8", "<f4", ...); nulls are
    zero.
    """
    require("numbers", "numpy")
    validity, offsets, data = column.buffers()
    return array_of(offsets, b"" if data is None else data, validity, len(column), dtype,
                    column.offset)
