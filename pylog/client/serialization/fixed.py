"""Values of one fixed width: 4 or 8-byte integers and floats, one by one or a column at a time.

Owns: nothing.
Invariants: (1) a value of another length is a SerializationError or ValueError, never truncated.
Source: Kafka's Integer, Long, Float and Double serializers (big-endian).
"""

from __future__ import annotations

from typing import Any

from pylog._native.columns import fixed_width


def array_of(offsets: Any, data: Any, validity: Any, count: int, dtype: Any, start: int = 0) -> Any:
    """A binary column, given by its Arrow buffers, as a NumPy array of `dtype`; nulls are zero.

    Raises ValueError when a value has another length than the dtype.
    """
    import numpy as np

    dtype = np.dtype(dtype)
    if dtype.kind not in "iufb" or dtype.itemsize not in (1, 2, 4, 8):
        raise ValueError(f"no fixed-width number: {dtype}")
    native = dtype.newbyteorder("=")
    out: Any = fixed_width(
        offsets, data, validity, count, dtype.itemsize, dtype != native, start)
    return np.frombuffer(out, dtype=native)


def numbers(column: Any, dtype: Any) -> Any:
    """A pyarrow binary Array as a NumPy array of `dtype` (">i8", "<f4", ...); nulls are zero."""
    validity, offsets, data = column.buffers()
    return array_of(offsets, b"" if data is None else data, validity, len(column), dtype,
                    column.offset)
