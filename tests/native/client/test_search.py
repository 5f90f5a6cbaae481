"""Native searches, compared with a model in Python on random batches of every codec."""

import json
import operator
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pylog._native.client.columns import ColumnReader, Fetched, RecordsError
from pylog._native.client.search import Search, Test
from pylog._native.records.batch import CONTROL, TRANSACTIONAL, build
from tests.native.client.test_columns import column_rows, joined
from tests.native.records.test_batch import CODECS, NOW, patched

ORDERS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
          ">": operator.gt, ">=": operator.ge}
MISSING = object()
setattr(Test, "__test__", False)  # noqa: B010 -- pytest must not collect it

_text = st.text("abé\"\\\n😀/", max_size=5)
_number = st.one_of(st.integers(-3, 3), st.integers(-2**64, 2**64),
                    st.decimals(allow_nan=False, allow_infinity=False, places=3))
_scalar = st.one_of(_text, _number, st.booleans(), st.none())
_names = st.sampled_from(["a", "b", "é\"", ""])
_document = st.recursive(
    _scalar, lambda inner: st.one_of(st.lists(inner, max_size=3),
                                     st.dictionaries(_names, inner, max_size=3)), max_leaves=12)
# No JSON: only the native scanner accepts documents that are damaged behind the wanted value.
_bytes = st.one_of(st.none(), st.lists(st.sampled_from(b"ab\x80\xff"), max_size=6).map(bytes))
_path = st.lists(st.one_of(_names.map(str.encode), st.integers(0, 2)), max_size=3).map(tuple)


def as_json(value, ascii_only: bool, space: str) -> str:
    """Encode a document; unlike json.dumps, decimals keep their digits."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dict):
        members = [f"{as_json(name, ascii_only, space)}{space}:{space}"
                   f"{as_json(inner, ascii_only, space)}" for name, inner in value.items()]
        return f"{{{space}{f'{space},{space}'.join(members)}{space}}}"
    if isinstance(value, list):
        return f"[{space}{f'{space},'.join(as_json(x, ascii_only, space) for x in value)}{space}]"
    return json.dumps(value, ensure_ascii=ascii_only)


_json = st.builds(lambda *parts: as_json(*parts).encode(), _document, st.booleans(),
                  st.sampled_from(["", " ", "\n\t "]))
_value = st.one_of(_bytes, _json, _json, _json.map(lambda document: b"\0\0\0\0\7" + document))
_headers = st.lists(st.tuples(st.sampled_from(["h", "é"]), _bytes), max_size=3)
_record = st.tuples(_bytes, _value, st.integers(NOW, NOW + 9), _headers)
_batches = st.lists(
    st.tuples(st.sampled_from(list(CODECS.values())), st.lists(_record, min_size=1, max_size=9)),
    min_size=1, max_size=4)


def operand(value) -> dict:
    if isinstance(value, str):
        return {"text": value.encode(), "kind": "string"}
    if isinstance(value, bool) or value is None:
        return {"text": json.dumps(value).encode(), "kind": "literal"}
    return {"text": as_json(value, False, "").encode(), "kind": "number"}


_test = st.one_of(
    st.builds(Test, st.integers(0, 2), st.sampled_from(["key", "value"]),
              st.sampled_from(["exists", "is_null", "==", "prefix", "contains"]),
              st.text("ab", max_size=2).map(str.encode)),
    st.builds(Test, st.integers(0, 2), st.just("header"),
              st.sampled_from(["exists", "==", "prefix", "contains"]),
              st.text("ab", max_size=1).map(str.encode), st.sampled_from([b"h", "é".encode()])),
    st.builds(lambda group, field, op, path, value: Test(group, field, op, path=path,
                                                         **operand(value)),
              st.integers(0, 2), st.sampled_from(["value_json", "key_json"]),
              st.sampled_from(["exists", "contains", *ORDERS]), _path, _scalar),
    st.builds(lambda group, low, high: Test(group, "timestamp", "between", low=low, high=high),
              st.integers(0, 2), st.integers(NOW, NOW + 9), st.integers(NOW, NOW + 9)),
    st.builds(lambda group, low: Test(group, "record_bytes", "between", low=low),
              st.integers(0, 2), st.integers(0, 20)))


# ---- the model


def matches(tests, key, value, timestamp, headers) -> bool:
    groups: dict = {}
    for test in tests:
        groups.setdefault(test.group, []).append(holds(test, key, value, timestamp, headers))
    return all(map(any, groups.values()))


def holds(test, key, value, timestamp, headers) -> bool:
    if test.field in ("key", "value"):
        return bytes_hold(test, key if test.field == "key" else value)
    if test.field == "header":
        return any(name.encode() == test.name and (test.op == "exists" or bytes_hold(test, given))
                   for name, given in headers)
    if test.field == "timestamp":
        return test.low <= timestamp <= test.high
    if test.field == "record_bytes":
        total = len(key or b"") + len(value or b"")
        for name, given in headers:
            total += 1 + len(name.encode()) + 1 + len(given or b"")
        return test.low <= total <= test.high
    return json_holds(test, key if test.field == "key_json" else value)


def bytes_hold(test, given) -> bool:
    if given is None or test.op == "is_null":
        return given is None and test.op == "is_null"
    return {"exists": True, "==": given == test.text, "prefix": given.startswith(test.text),
            "contains": test.text in given}[test.op]


def json_holds(test, given) -> bool:
    if given is None:
        return False
    if len(given) > 5 and given[0] == 0:
        given = given[5:]
    try:
        found = json.loads(given.decode(), parse_float=Decimal, parse_int=Decimal)
    except ValueError:
        return False
    for step in test.path:
        if isinstance(step, bytes):
            found = found.get(step.decode(), MISSING) if isinstance(found, dict) else MISSING
        else:
            inside = isinstance(found, list) and step < len(found)
            found = found[step] if inside else MISSING
        if found is MISSING:
            return False
    wanted = test.text.decode()
    if test.kind != "string":
        wanted = json.loads(wanted, parse_float=Decimal, parse_int=Decimal)
    if test.op == "exists":
        return True
    if test.op == "contains":
        if isinstance(found, list):
            return any(type(x) is type(wanted) and x == wanted for x in found)
        return isinstance(found, str) and isinstance(wanted, str) and wanted in found
    if type(found) is not type(wanted) or (test.kind == "literal" and found is not wanted):
        return test.op == "!="
    if test.kind == "literal":
        return test.op in ("==", "<=", ">=")
    if test.kind == "string":
        found, wanted = found.encode(), wanted.encode()
    return ORDERS[test.op](found, wanted)


# ---- tests


def search_all(search, data, *, records_max=10, bytes_max=10**6, end_offset=2**62, **more) -> list:
    """Return column_rows() of all matches, read in steps."""
    fetched, rows = Fetched(data, **more), []
    while not fetched.exhausted and fetched.next_offset < end_offset:
        reader = ColumnReader()
        search.append(fetched, reader, records_max=records_max, bytes_max=bytes_max,
                      end_offset=end_offset)
        rows += column_rows(reader.finish())
    return rows


@settings(max_examples=120, deadline=None)
@given(_batches, st.lists(_test, max_size=4), st.integers(1, 5), st.integers(1, 200),
       st.integers(0, 40))
def test_native_result_equals_the_model(batches, tests, records_max, bytes_max, end):
    data, rows = joined(batches)
    wanted = [(offset, row) for offset, row in rows if offset < end and matches(tests, *row)]
    search = Search(tests)
    found = search_all(search, data, records_max=records_max, bytes_max=bytes_max, end_offset=end)
    assert [row[0] for row in found] == [row[0] for row in wanted]
    assert search.records == sum(offset < end for offset, _ in rows)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_record_larger_than_the_decompressed_chunks_is_found(codec):
    data = build([(None, b"x" * 300_000 + b"needle", NOW, [])] * 3, codec=codec)
    found = search_all(Search([Test(0, "value", "contains", b"needle")]), data)
    assert [offset for offset, _ in found] == [0, 1, 2]


def test_no_tests_match_all_records():
    data = build([(None, None, NOW, [])] * 5)
    assert len(search_all(Search(), data)) == 5


def test_batch_fields_are_compared():
    small = build([(b"a", b"", NOW, [])], producer_id=4, producer_epoch=0, base_sequence=0)
    large = build([(b"b", b"x" * 1000, NOW, [])], base_offset=1)
    for test, wanted in ((Test(0, "producer_id", "between", low=4, high=4), [0]),
                         (Test(0, "producer_id", "between", low=-1, high=-1), [1]),
                         (Test(0, "batch_bytes", "between", low=1000), [1]),
                         (Test(0, "batch_bytes", "between", high=100), [0])):
        assert [offset for offset, _ in search_all(Search([test]), small + large)] == wanted, test


def test_control_and_aborted_batches_are_not_searched():
    aborted = build([(b"k", b"v", NOW, [])], producer_id=7, producer_epoch=0, base_sequence=0,
                    attributes=TRANSACTIONAL)
    marker = build([(b"\0\0\0\0", b"\0" * 6, NOW, [])], base_offset=1, producer_id=7,
                   producer_epoch=0, attributes=TRANSACTIONAL | CONTROL)
    data = aborted + marker + build([(b"k", b"v", NOW, [])], base_offset=2)
    committed = search_all(Search(), data, read_committed=True, aborted=[(7, 0)])
    assert [offset for offset, _ in committed] == [2]
    assert [offset for offset, _ in search_all(Search(), data)] == [0, 2]


def test_error_names_the_offset_of_the_damaged_batch():
    data = build([(b"k", b"v", NOW, [])]) + patched(build([(b"k", b"v", NOW, [])], base_offset=1),
                                                    68, b"\xff", mend_crc=False)
    fetched, reader, search = Fetched(data), ColumnReader(), Search()
    assert search.append(fetched, reader, records_max=9, bytes_max=10**6) == 1
    with pytest.raises(RecordsError, match="offset 1") as raised:
        search.append(fetched, reader, records_max=9, bytes_max=10**6)
    assert raised.value.offset == 1


def test_decompressed_bytes_are_limited():
    data = build([(None, b"x" * 10**6, NOW, [])], codec=CODECS["zstd"])
    fetched = Fetched(data, inflated_bytes_max=1000)
    with pytest.raises(RecordsError):
        Search().append(fetched, ColumnReader(), records_max=9, bytes_max=10**6)


def test_full_columns_are_reported_and_the_record_is_kept():
    fetched, reader = Fetched(build([(None, b"12345", NOW, [])] * 3)), ColumnReader(bytes_max=12)
    search, counts = Search(), []
    while not fetched.exhausted:
        counts.append(search.append(fetched, reader, records_max=9, bytes_max=10**6))
        if reader.full:
            reader.finish()
    assert sum(counts) == 3 and search.records == 3


@pytest.mark.parametrize("change", [
    {"op": "<"}, {"field": "nothing"}, {"op": "like"}, {"field": "timestamp"}, {"kind": "date"},
    {"field": "value_json", "path": (-1,)}, {"field": "value_json", "path": (0,) * 65},
])
def test_unknown_comparison_is_rejected(change):
    with pytest.raises(ValueError):
        Search([Test(0, "value", "==")._replace(**change)])
