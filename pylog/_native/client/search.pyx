"""A predicate over records, compiled once and evaluated in native code.

Owns: the memory of the compiled tests and of decoded strings.
Invariants: a record is appended only if every group of tests has a match; a position never passes
  a record that was not compared; invalid bytes from a broker raise RecordsError and never crash.
Source: RFC 8259 (JSON), KIP-82 (headers).
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free

from collections import namedtuple

from pylog._native.client cimport csrc
from pylog._native.client.columns cimport ColumnReader, Fetched, raise_error

TESTS_MAX = 256
STEPS_MAX = 64  # of one JSON path

Test = namedtuple(
    "Test", "group field op text name path kind low high",
    defaults=(b"", b"", (), "string", INT64_MIN, INT64_MAX))

cdef dict FIELDS = {
    "key": csrc.SEARCH_RECORD_KEY, "value": csrc.SEARCH_RECORD_VALUE, "header": csrc.SEARCH_HEADER,
    "key_json": csrc.SEARCH_KEY_JSON, "value_json": csrc.SEARCH_VALUE_JSON,
    "record_bytes": csrc.SEARCH_RECORD_SIZE, "batch_bytes": csrc.SEARCH_BATCH_SIZE,
    "producer_id": csrc.SEARCH_PRODUCER_ID, "timestamp": csrc.SEARCH_TIMESTAMP,
}
cdef dict OPS = {
    "exists": csrc.SEARCH_EXISTS, "is_null": csrc.SEARCH_IS_NULL, "==": csrc.SEARCH_EQUALS,
    "!=": csrc.SEARCH_DIFFERS, "prefix": csrc.SEARCH_PREFIX, "contains": csrc.SEARCH_CONTAINS,
    "<": csrc.SEARCH_LESS, "<=": csrc.SEARCH_AT_MOST, ">": csrc.SEARCH_GREATER,
    ">=": csrc.SEARCH_AT_LEAST, "between": csrc.SEARCH_BETWEEN,
}
cdef dict KINDS = {
    "string": csrc.JSON_STRING, "number": csrc.JSON_NUMBER, "literal": csrc.JSON_LITERAL,
}


@cython.final
cdef class Search:
    """A compiled predicate."""

    def __cinit__(self, tests=()):
        cdef size_t count, steps = 0, step = 0
        cdef Py_ssize_t i
        tests = sorted(tests, key=lambda test: test.group)
        count = len(tests)
        if count > TESTS_MAX:
            raise ValueError(f"a search has at most {TESTS_MAX} tests, not {count}")
        for given in tests:
            if len(given.path) > STEPS_MAX:
                raise ValueError(f"a JSON path has at most {STEPS_MAX} steps")
            steps += len(given.path)
        self.texts = []
        self.tests = <csrc.search_test *>calloc(count + 1, sizeof(csrc.search_test))
        self.steps = <csrc.json_step *>calloc(steps + 1, sizeof(csrc.json_step))
        if self.tests == NULL or self.steps == NULL:
            raise MemoryError
        for i in range(<Py_ssize_t>count):
            self.add(&self.tests[i], tests[i], &step)
        self.state.tests = self.tests
        self.state.test_count = count

    def __dealloc__(self):
        free(self.tests)
        free(self.steps)
        free(self.state.decoded)

    cdef int add(self, csrc.search_test *test, given, size_t *step) except -1:
        cdef bytes text = given.text, name = given.name
        try:
            test.field = FIELDS[given.field]
            test.op = OPS[given.op]
            test.kind = KINDS[given.kind]
        except KeyError as unknown:
            raise ValueError(f"a search has no field, operator or kind {unknown}") from None
        self.texts += [text, name]
        test.group = given.group
        test.text, test.text_len = <const uint8_t *>PyBytes_AS_STRING(text), len(text)
        test.name, test.name_len = <const uint8_t *>PyBytes_AS_STRING(name), len(name)
        test.low, test.high = given.low, given.high
        test.steps, test.step_count = &self.steps[step[0]], len(given.path)
        for part in given.path:
            self.add_step(&self.steps[step[0]], part)
            step[0] += 1
        if not csrc.search_test_is_valid(test):
            raise ValueError(f"{given.field} cannot be compared by {given.op!r}")
        return 0

    cdef int add_step(self, csrc.json_step *step, part) except -1:
        cdef bytes name
        if isinstance(part, int):
            if part < 0:
                raise ValueError("an index in a JSON path is at least 0")
            step.index = part
            return 0
        name = part
        self.texts.append(name)
        step.name = <const uint8_t *>PyBytes_AS_STRING(name)
        step.name_len = <size_t>PyBytes_GET_SIZE(name)
        return 0

    def append(self, Fetched fetched not None, ColumnReader reader not None, *,
               int64_t end_offset=INT64_MAX, int64_t records_max, int64_t bytes_max) -> int:
        """Append matches to the reader's columns; return their number. Fewer than records_max: the
        end, `full`, or bytes_max bytes were compared.
        """
        cdef int64_t count
        if records_max < 1 or bytes_max < 1:
            raise ValueError("records_max and bytes_max are at least 1")
        self.state.end_offset = end_offset
        reader.full = False
        while True:
            with nogil:
                count = csrc.search_append(&self.state, &fetched.state, &reader.state,
                                           fetched.source, records_max, bytes_max)
            if count != csrc.COLUMNS_NEEDS_INFLATER:
                break
            fetched.borrow()
        reader.full = count == csrc.COLUMNS_FULL
        if fetched.state.exhausted:
            fetched.give_back()
        if reader.full:
            return 0
        if count < 0:
            raise_error(<int>count, fetched.state.next_offset)
        return count

    @property
    def records(self) -> int:
        return self.state.records

    @property
    def bytes(self) -> int:
        return self.state.bytes
