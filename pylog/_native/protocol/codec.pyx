"""The protocol codec: one program per struct and version reads and writes message objects.

Owns: the programs (arrays of ops in C).
Invariants: a program outlives every read or write that uses it, and so do the classes, names and
  defaults that it refers to.
Source: Kafka's message schemas; KIP-482.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from pylog._native.protocol.decode cimport Reader, raise_read, read_string, read_struct, skip_tags
from pylog._native.protocol.encode cimport (
    BYTES_MAX, Encoded, Writer, held, put_u32, raise_written, write_struct,
)
from pylog._native.protocol.message cimport (
    BOOL, BYTES, DEFAULT_LIST, FLOAT64, INT8, INT16, INT32, INT64, OK, STRING, STRUCT, UINT16,
    UINT32, UUID, Op, Py_DECREF, PyErr_Clear, Py_XDECREF, _PyBytes_Resize, codec_slot,
    codec_u16, codec_u32, codec_width, raw_bytes, raw_bytes_data,
)

from pylog._native.protocol.message import AnswerTooLong, EncodeError, ProtocolError

KINDS = {
    "bool": BOOL, "int8": INT8, "int16": INT16, "int32": INT32, "int64": INT64, "uint16": UINT16,
    "uint32": UINT32, "float64": FLOAT64, "uuid": UUID, "string": STRING, "bytes": BYTES,
    "records": BYTES,
}

# Memory limit of one decoded message. It rejects a request of 100 MiB of tiny structs.
DECODED_BYTES_MAX = 256 * 1024 * 1024


@cython.final
cdef class Program:
    """Reads and writes one struct in one version."""

    def __cinit__(self, str title, type cls, list ops, bint flexible):
        """ops: one row per field, in the schema's order.

        A row: (name, kind, array, compact, nullable, present, ignorable, tag, default_kind,
        default, program). tag: -1 for an ordinary field. program: for fields that are structs, or
        None.
        """
        cdef Py_ssize_t i, count = len(ops)
        cdef Op *op
        cdef tuple row
        self.title = title
        self.kept = [cls, ops]
        self.plan.type = <PyTypeObject *> cls
        self.plan.flexible = flexible
        self.plan.ops = <Op *> PyMem_Calloc(count + 1, sizeof(Op))
        self.plan.tags = <Op *> PyMem_Calloc(count + 1, sizeof(Op))
        if not self.plan.ops or not self.plan.tags:
            raise MemoryError()
        tagged = sorted([row for row in ops if row[7] >= 0], key=lambda row: row[7])
        assert len(tagged) < 128 and (flexible or not tagged), title
        for i, row in enumerate([row for row in ops if row[7] < 0]):
            self.set_op(&self.plan.ops[i], cls, row)
            self.plan.count += 1
        for i, row in enumerate(tagged):
            self.set_op(&self.plan.tags[i], cls, row)
            self.plan.tag_count += 1
        self.plan.size_min = 1 if flexible else 0
        for i in range(self.plan.count):
            op = &self.plan.ops[i]
            if op.present:
                self.plan.size_min += (1 if op.compact else 4) if op.array else op.size_min
        lists = [row for row in ops if row[8] == DEFAULT_LIST]
        self.plan.cost = cls.__basicsize__ + 32 + 56 * len(lists)
        self.hint = 256

    def __dealloc__(self):
        PyMem_Free(self.plan.ops)
        PyMem_Free(self.plan.tags)

    cdef int set_op(self, Op *op, type cls, tuple row) except -1:
        cdef Program inner
        (name, op.kind, op.array, op.compact, op.nullable, op.present, op.ignorable, tag,
         op.default_kind, default, child) = row
        op.tag = tag if tag >= 0 else 0
        member = cls.__dict__[name]
        op.slot = codec_slot(<PyObject *> member)
        assert op.slot > 0, (cls, name)
        op.name = <PyObject *> name
        op.default = <PyObject *> default
        if op.kind == STRUCT:
            inner = child
            op.plan = &inner.plan
            op.size_min = 1 if op.nullable and not op.array else max(inner.plan.size_min, 1)
        elif op.kind < STRING:
            op.size_min = codec_width(op.kind)
        else:
            op.size_min = 1 if op.compact else 2 if op.kind == STRING else 4
        return 0

    def decode(self, data, Py_ssize_t offset=0, int64_t budget=DECODED_BYTES_MAX,
               int64_t elements=INT64_MAX):
        """Decode the message at `offset` of `data` (bytes-like); ignores trailing bytes.

        budget: memory limit for the objects, in bytes. elements: limit for all arrays together.
        Raises ProtocolError.
        """
        return self.decode_from(data, offset, budget, elements)[0]

    def decode_from(self, data, Py_ssize_t offset=0, int64_t budget=DECODED_BYTES_MAX,
                    int64_t elements=INT64_MAX):
        """Same as decode; return (message, position after it)."""
        cdef Reader r
        cdef Py_buffer view
        cdef PyObject *made
        # A typed memoryview costs as much as decoding a short message.
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if offset < 0 or offset > view.len:
                raise ProtocolError(f"{self.title}: offset {offset} of {view.len} bytes")
            r.data = <const uint8_t *> view.buf
            r.position = offset
            r.end = view.len
            r.budget = budget
            r.elements = elements
            r.failure.code = OK
            r.failure.depth = 0
            made = read_struct(&r, &self.plan)
            if made == NULL:
                raise_read(self.title, &r)
        finally:
            PyBuffer_Release(&view)
        result = <object> made
        Py_DECREF(made)
        return result, r.position

    def encode(self, message, prefix=b""):
        """Return `prefix` (bytes-like) and the encoded message. Raises EncodeError with the field's
        path.
        """
        cdef const uint8_t[::1] head = prefix
        return self.written(
            <PyObject *> message, &head[0] if head.shape[0] else NULL, head.shape[0], False,
            BYTES_MAX)

    def encoded(self, message):
        """Return the struct encoded once, for use in several messages."""
        cdef Encoded made = Encoded.__new__(Encoded)
        made.plan = &self.plan
        made.data = self.encode(message)
        made.count = 1
        made.program = self  # Keeps the program alive.
        return made

    def encoded_all(self, list structs):
        """Return consecutive structs of an array encoded once, as one value that represents all of
        them.
        """
        cdef Encoded made = Encoded.__new__(Encoded)
        cdef Writer w
        self.begin(&w, 0, BYTES_MAX, False)
        for struct in structs:
            if not write_struct(&w, NULL, &self.plan, <PyObject *> struct):
                Py_XDECREF(w.bytes)
                raise_written(self.title, &w)
            made.count += held(struct)
        made.plan = &self.plan
        made.data = cut_off(self.title, &w)
        made.program = self  # Keeps the program alive.
        return made

    def field(self, str name):
        """Return the program of the structs in field `name`. Raises KeyError."""
        for row in self.kept[1]:
            if row[0] == name and row[10] is not None:
                return row[10]
        raise KeyError(f"{self.title}: no structs in {name}")

    def response_frame(
        self, message, int32_t correlation_id, bint header_tags, bint size_prefix=True,
        Py_ssize_t bytes_max=BYTES_MAX
    ):
        """Return a complete response in one buffer: size, header v0 or v1 (`header_tags`), body.

        Raises AnswerTooLong above bytes_max.
        """
        cdef uint8_t head[9]
        cdef Py_ssize_t start = 4 if size_prefix else 0
        put_u32(head + start, <uint32_t> correlation_id)
        head[start + 4] = 0
        return self.written(<PyObject *> message, head, start + 4 + header_tags, size_prefix,
                            bytes_max)

    def request_frame(self, message, prefix):
        """Return a complete request in one buffer: size, `prefix` (the encoded header), body."""
        cdef bytes head = bytes(4) + prefix
        return self.written(
            <PyObject *> message, <const uint8_t *> PyBytes_AS_STRING(head), len(head), True,
            BYTES_MAX)

    def request_slices(self, message, prefix):
        """Same as request_frame, as a list of bytes and of the message's long memoryviews."""
        cdef bytes head = bytes(4) + prefix
        cdef Writer w
        cdef Py_ssize_t done = 0
        cdef int i
        self.begin(&w, len(head), BYTES_MAX, True)
        self.write(&w, <PyObject *> message, <const uint8_t *> PyBytes_AS_STRING(head), len(head),
                   True)
        self.hint = min(w.size, 65536)
        written = cut_off(self.title, &w)
        if not w.piece_count:
            return [written]
        view, out = memoryview(written), []
        for i in range(w.piece_count):
            out.append(view[done:w.pieces[i].position])
            out.append(<object> w.pieces[i].value)
            done = w.pieces[i].position
        if done < len(written):
            out.append(view[done:])
        return out

    cdef object written(
        self, PyObject *message, const uint8_t *head, Py_ssize_t size, bint sized,
        Py_ssize_t bytes_max
    ):
        """head: bytes put in front; `sized`: their first four become the size of the rest."""
        cdef Writer w
        self.begin(&w, size, bytes_max, False)
        self.write(&w, message, head, size, sized)
        # The next message of this kind is probably as long. Rare huge messages are capped.
        self.hint = min(w.size, 65536)
        return cut_off(self.title, &w)

    cdef int begin(
        self, Writer *w, Py_ssize_t size, Py_ssize_t bytes_max, bint in_pieces
    ) except -1:
        w.capacity = self.hint + size + 16
        w.size = 0
        w.size_max = bytes_max
        w.failure.code = OK
        w.failure.depth = 0
        w.failure.op = NULL
        w.failure.got = ""
        w.bytes = raw_bytes(NULL, w.capacity)
        if w.bytes == NULL:
            raise MemoryError(self.title)
        w.data = <uint8_t *> raw_bytes_data(w.bytes)
        w.in_pieces = in_pieces
        w.piece_count = 0
        w.pieces_bytes = 0
        return 0

    cdef int write(
        self, Writer *w, PyObject *message, const uint8_t *head, Py_ssize_t size, bint sized
    ) except -1:
        if size:
            memcpy(w.data, head, size)
        w.size = size
        if not write_struct(w, NULL, &self.plan, message):
            Py_XDECREF(w.bytes)
            raise_written(self.title, w)
        if w.size - 4 > w.size_max:
            Py_DECREF(w.bytes)
            raise AnswerTooLong(f"{self.title}: more than {w.size_max} bytes")
        if w.size + w.pieces_bytes - 4 > 0x7FFFFFFF:
            Py_DECREF(w.bytes)
            raise EncodeError(
                f"{self.title}: {w.size + w.pieces_bytes} bytes do not fit into one frame")
        if sized:
            put_u32(w.data, <uint32_t> (w.size + w.pieces_bytes - 4))
        return 0


cdef bytes cut_off(str title, Writer *w):
    """Return the written bytes, shrunk to their length."""
    if w.size != w.capacity and _PyBytes_Resize(&w.bytes, w.size) < 0:
        PyErr_Clear()
        raise MemoryError(title)
    result = <object> w.bytes
    Py_DECREF(w.bytes)
    return <bytes> result


def request_header(const uint8_t[::1] frame, dict flexible_from):
    """Parse a request header: (api key, version, correlation id, client id or None, body position).

    frame: the bytes after the size. flexible_from: api key -> first version with a flexible header;
    keys that are not in it are unknown. Raises ProtocolError.
    """
    cdef Reader r
    cdef Op client
    cdef PyObject *text
    cdef Py_ssize_t end = frame.shape[0]
    if end < 10:
        raise ProtocolError(f"RequestHeader: {end} bytes are too few")
    r.data = &frame[0]
    r.end = end
    r.budget = DECODED_BYTES_MAX
    r.elements = INT64_MAX
    r.failure.code = OK
    r.failure.depth = 0
    key = <int16_t> codec_u16(r.data)
    version = <int16_t> codec_u16(r.data + 2)
    correlation_id = <int32_t> codec_u32(r.data + 4)
    first = flexible_from.get(key)
    if first is None:
        raise ProtocolError(f"RequestHeader: no api key {key}")
    r.position = 8
    client.compact = False
    client.nullable = True
    text = read_string(&r, &client)
    if text == NULL:
        raise_read("RequestHeader: client_id", &r)
    client_id = <object> text
    Py_DECREF(text)
    if version >= first and not skip_tags(&r):
        raise_read("RequestHeader: tagged fields", &r)
    return key, version, correlation_id, client_id, r.position
