"""The Avro kernel rejects input that would leave a column shorter than declared."""

import pyarrow as pa
import pytest

from pylog._native.client.avro import (
    BYTES, ENUM, FIXED, INT, LONG, NO_UNION, AvroError, Decoder, Program,
)
from tests.native.client.test_batch_builder import column

HEAD = b"\0\0\0\0\7"


def field(kind, place, size=0, symbols=(), null_branch=NO_UNION):
    return kind, null_branch, place, size, symbols


def test_decoding_stops_where_the_schema_changes():
    values = column([None, HEAD + b"\x02", b"\0\0\0\0\x08" + b"\x04", None])
    decoder = Decoder([(LONG, 0)], 4)
    assert decoder.schema_id(values) == 7
    assert decoder.decode(values, Program([field(INT, 0)]), 7) == 2
    assert decoder.schema_id(values) == 8
    assert decoder.decode(values, Program([field(LONG, 0)]), 8) == 4
    assert decoder.schema_id(values) is None
    [(validity, offsets, data, nulls)] = decoder.finish()
    assert (bytes(validity)[0] & 15, offsets, nulls) == (0b0110, None, 2)
    assert memoryview(data).cast("B").cast("q").tolist() == [0, 1, 2, 0]
    with pytest.raises(ValueError, match="taken"):
        decoder.finish()


@pytest.mark.parametrize("fields", [
    [field(INT, 1)], [field(BYTES, 0)], [field(LONG, 0), field(INT, 3)], [field(FIXED, 2, 5)],
    [field(INT, 0)],
])
def test_program_that_does_not_match_the_columns_is_rejected(fields):
    decoder = Decoder([(INT, 0), (BYTES, 0), (FIXED, 4)], 1)
    with pytest.raises(ValueError, match="program"):
        decoder.decode(column([HEAD]), Program(fields), 7)


def test_unknown_symbols_and_too_wide_numbers_are_rejected():
    for program, value in ((field(ENUM, 0, 0, ("A", "BC")), b"\x04"),
                           (field(ENUM, 0, 0, ()), b"\x00"),
                           (field(INT, 0), b"\x80\x80\x80\x80\x10"),
                           (field(BYTES, 0), b"\x01"), (field(BYTES, 0), b"\xfe\xff\xff\xff\x0f")):
        decoder = Decoder([program[:1] + (0,)], 1)
        with pytest.raises(AvroError) as caught:
            decoder.decode(column([HEAD + value]), Program([program]), 7)
        assert caught.value.row == 0


def test_no_rows_and_only_nulls_need_no_program():
    for rows in ([], [None, None]):
        decoder = Decoder([(ENUM, 0), (FIXED, 3)], len(rows))
        assert decoder.decode(column(pa.array(rows, pa.binary())), None, 7) == len(rows)
        assert [made[3] for made in decoder.finish()] == [len(rows)] * 2
    with pytest.raises(ValueError, match="rows"):
        Decoder([], 3).decode(column([b"x"]), None, -1)
