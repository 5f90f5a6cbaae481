"""Counters of native code, read for a scrape, and the text of a scrape.

Owns: the text's buffer; a reference to each log while it is read.
Invariants: work that grows with the number of partitions runs without the GIL; reading counters
  blocks no thread.
Source: csrc/os/meter.h, csrc/os/prometheus_text.h, csrc/log/log.h (figures).
"""

from array import array

import cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc

from pylog._native.log.log cimport Log
from pylog._native.log.log_dir cimport LogDir
from pylog._native.server.reactor cimport Reactors
from pylog._native.server cimport csrc as c

BUCKETS = c.METER_BUCKETS
NS_FIRST = c.METER_NS_FIRST
BYTES_FIRST = c.METER_BYTES_FIRST
API_KEYS_MAX = c.FRAMES_API_KEYS_MAX
# The members of csrc/log/log.h's log_stats, in order.
FIGURES = (
    "start_offset", "end_offset", "high_watermark", "last_stable_offset", "size_bytes", "segments",
    "produce_requests", "produce_failures", "batches_in", "records_in", "bytes_in",
    "fetch_requests", "fetch_failures", "bytes_out", "cold_reads", "offline")
cdef enum:
    FIGURE_COUNT = 16
KINDS = ("request_bytes", "response_bytes", "total", "queue", "local", "remote", "send")
NO_TIME = -1

assert sizeof(c.log_stats) == FIGURE_COUNT * sizeof(int64_t)
assert len(KINDS) == c.METER_KINDS


cdef tuple _histogram(const c.meter_stats *figures):
    """Return (sum, counts per bucket); the counts are not cumulative."""
    return figures.sum, [figures.counts[i] for i in range(c.METER_BUCKETS)]


def requests(Reactors reactors not None) -> dict:
    """Return api key -> ({kind: (sum, counts)}, {error code: count}) for keys received so far."""
    cdef c.meter_api_stats figures
    cdef int key, kind
    cdef dict out = {}
    for key in range(c.FRAMES_API_KEYS_MAX):
        with nogil:
            c.reactors_meter(reactors.ptr, key, &figures)
        histograms = {name: _histogram(&figures.histograms[kind])
                      for kind, name in enumerate(KINDS)}
        errors = {code - 1: figures.errors[code] for code in range(c.METER_ERRORS)
                  if figures.errors[code] != 0}
        if errors or any(histograms["total"][1]):
            out[key] = histograms, errors
    return out


def rounds(Reactors reactors not None) -> tuple:
    """Return (sum, counts) of the reactors' loop durations between two sleeps, in ns."""
    cdef c.meter_stats figures
    c.reactors_rounds(reactors.ptr, &figures)
    return _histogram(&figures)


def flushes(LogDir directory not None) -> tuple:
    """Return (sum, counts) of a log directory's flush durations, in ns."""
    cdef c.meter_stats figures
    for i in range(c.METER_BUCKETS):
        figures.counts[i] = 0
    figures.sum = 0
    c.log_dir_flush_times(directory.dir, &figures)
    return _histogram(&figures)


@cython.final
cdef class Figures:
    """A snapshot of the figures of many logs: row i is for log i."""

    cdef c.log_stats *rows
    cdef readonly Py_ssize_t count

    def __cinit__(self, list logs not None):
        cdef Py_ssize_t i, count = len(logs)
        cdef c.log_t **ptrs = <c.log_t **>malloc((count + 1) * sizeof(c.log_t *))
        cdef Log log
        self.rows = <c.log_stats *>calloc(count + 1, sizeof(c.log_stats))
        if self.rows == NULL or ptrs == NULL:
            free(ptrs)
            raise MemoryError("figures")
        self.count = count
        for i in range(count):
            log = logs[i]
            ptrs[i] = NULL if log.closed else log.ptr
            if ptrs[i] != NULL:
                c.log_retain(ptrs[i])
        with nogil:
            for i in range(count):
                if ptrs[i] != NULL:
                    c.log_read_stats(ptrs[i], &self.rows[i])
                    c.log_release(ptrs[i])
        free(ptrs)

    def __dealloc__(self):
        free(self.rows)

    def row(self, Py_ssize_t i) -> dict:
        """Return the figures of one log by name."""
        assert 0 <= i < self.count, i
        cdef const int64_t *values = <const int64_t *>&self.rows[i]
        return {name: values[at] for at, name in enumerate(FIGURES)}

    def columns(self, *names) -> list:
        """Return one list per name, in the order of the logs."""
        cdef Py_ssize_t i, at
        cdef const int64_t *values = <const int64_t *>self.rows
        out = []
        for name in names:
            at = FIGURES.index(name)
            out.append([values[i * FIGURE_COUNT + at] for i in range(self.count)])
        return out

    def lags(self, const int64_t[::1] committed not None) -> tuple:
        """Return (records between a committed offset and the high watermark, offset of the first),
        each as an array with one value per log. Offsets below the log's start count as committed.
        """
        cdef Py_ssize_t i
        assert committed.shape[0] == self.count, (committed.shape[0], self.count)
        records, first = array("q", bytes(8 * self.count)), array("q", bytes(8 * self.count))
        cdef int64_t[::1] counts = records if self.count else None
        cdef int64_t[::1] offsets = first if self.count else None
        for i in range(self.count):
            offsets[i] = max(committed[i], self.rows[i].start_offset)
            counts[i] = max(0, self.rows[i].high_watermark - offsets[i])
        return records, first

    def sums(self, list ends not None):
        """Return sums over ranges of rows: range k ends before ends[k]."""
        cdef Py_ssize_t i = 0, k, at, end
        cdef Figures out = Figures.__new__(Figures, [])
        cdef c.log_stats *rows = <c.log_stats *>calloc(len(ends) + 1, sizeof(c.log_stats))
        cdef int64_t *total
        cdef const int64_t *values
        if rows == NULL:
            raise MemoryError("figures")
        free(out.rows)
        out.rows = rows
        out.count = len(ends)
        for k in range(out.count):
            end = ends[k]
            assert i <= end <= self.count, (i, end)
            total = <int64_t *>&rows[k]
            with nogil:
                while i < end:
                    values = <const int64_t *>&self.rows[i]
                    for at in range(FIGURE_COUNT):
                        total[at] += values[at]
                    i += 1
        return out


@cython.final
cdef class Rows:
    """Labels of many samples, formatted as between the braces."""

    cdef bytes labels
    cdef size_t *ends
    cdef readonly Py_ssize_t count

    def __cinit__(self, list labels not None):
        cdef Py_ssize_t i
        cdef size_t end = 0
        self.count = len(labels)
        self.ends = <size_t *>malloc((self.count + 1) * sizeof(size_t))
        if self.ends == NULL:
            raise MemoryError("rows")
        for i in range(self.count):
            end += <size_t>len(<bytes?>labels[i])
            self.ends[i] = end
        self.labels = b"".join(labels)

    def __dealloc__(self):
        free(self.ends)


@cython.final
cdef class Exposition:
    """The text of one scrape."""

    cdef c.exposition text

    def __dealloc__(self):
        c.exposition_clear(&self.text)

    def put(self, bytes part not None) -> None:
        c.exposition_put(&self.text, part, <size_t>len(part))

    def figure(self, bytes name not None, Rows rows not None, Figures figures not None,
               str column not None) -> None:
        """Add a sample `name{labels}` for every row, from one column."""
        cdef Py_ssize_t at = FIGURES.index(column)
        assert rows.count == figures.count, (rows.count, figures.count)
        cdef const int64_t *values = <const int64_t *>figures.rows + at
        self._write(name, rows, values, FIGURE_COUNT, False)

    def integers(self, bytes name not None, Rows rows not None,
                 const int64_t[::1] values not None, bint thousandths=False) -> None:
        """Add a sample for every row. thousandths: milliseconds, exposed in seconds; negative
        values are omitted.
        """
        assert rows.count == values.shape[0], (rows.count, values.shape[0])
        if rows.count:
            self._write(name, rows, &values[0], 1, thousandths)

    cdef void _write(self, bytes name, Rows rows, const int64_t *values, size_t stride,
                     bint thousandths):
        cdef c.exposition_rows all_rows
        cdef const char *text = name
        cdef size_t length = <size_t>len(name)
        all_rows.labels = rows.labels
        all_rows.ends = rows.ends
        all_rows.count = <size_t>rows.count
        with nogil:
            if thousandths:
                c.exposition_thousandths(&self.text, text, length, &all_rows, values, stride)
            else:
                c.exposition_integers(&self.text, text, length, &all_rows, values, stride)

    def value(self) -> bytes:
        """Return the whole text. Raises MemoryError if a part is missing."""
        if self.text.failed:
            raise MemoryError("exposition")
        return PyBytes_FromStringAndSize(self.text.bytes, <Py_ssize_t>self.text.len)


def times(list logs not None, const int64_t[::1] offsets not None, int64_t[::1] out not None,
          int64_t budget_ns) -> int:
    """Write the timestamps in ms of the first records at or above `offsets` to `out`; NO_TIME if
    none.

    logs: one Log per offset. Returns how many were looked up before budget_ns ran out.
    """
    cdef Py_ssize_t i, count = len(logs), done = 0
    cdef c.log_t **ptrs = <c.log_t **>malloc((count + 1) * sizeof(c.log_t *))
    cdef c.inflater *inflater = c.inflater_new()
    cdef int64_t until = c.reactors_now_ns() + budget_ns, timestamp
    cdef Log log
    assert count == offsets.shape[0] == out.shape[0], count
    if ptrs == NULL or inflater == NULL:
        free(ptrs)
        c.inflater_free(inflater)
        raise MemoryError("times")
    for i in range(count):
        log = logs[i]
        ptrs[i] = NULL if log.closed else log.ptr
        if ptrs[i] != NULL:
            c.log_retain(ptrs[i])
    with nogil:
        for i in range(count):
            if done == i and c.reactors_now_ns() < until:
                out[i] = -1
                if ptrs[i] != NULL and c.log_time_of(ptrs[i], offsets[i], inflater,
                                                     &timestamp) == 1:
                    out[i] = timestamp
                done += 1
            if ptrs[i] != NULL:
                c.log_release(ptrs[i])
        c.inflater_free(inflater)
    free(ptrs)
    return done
