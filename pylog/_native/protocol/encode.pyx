"""Encodes messages: one pass over the objects, guided by a plan, into a growing buffer.

Owns: nothing; the buffer belongs to the caller.
Invariants: room is reserved before bytes are written; no Python code runs while a borrowed
  reference is held; a failure names the path of the invalid field.
Source: KIP-482 (compact forms, tagged fields).
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.object cimport PyTypeObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from pylog._native.protocol.decode cimport path_of
from pylog._native.protocol.message cimport (
    BOOL, BYTES, E_LENGTH, E_MEMORY, E_MISSING, E_NULL, E_RANGE, E_TEXT, E_TOO_LONG, E_TYPE,
    E_VERSION, FLOAT64,
    INT8, INT16, INT32, INT64, STRING, STRING_MAX, STRUCT, UINT16, UINT32, UUID, Py_None, Py_SIZE,
    Py_True, Py_TYPE, PyBool_Check, PyErr_Clear, PyFloat_AS_DOUBLE, PyFloat_Check, PyList_Check,
    PyLong_AsLongLongAndOverflow, PyLong_Check, PyObject_TypeCheck, PyTuple_Check,
    PyUnicode_AsUTF8AndSize, PyUnicode_Check, _PyBytes_Resize, codec_get, codec_item,
    raw_bytes_data, same, step,
)

from pylog._native.protocol.message import AnswerTooLong, EncodeError

cdef tuple KIND_NAMES = (
    "bool", "int8", "int16", "int32", "int64", "uint16", "uint32", "float64", "16 bytes of a uuid",
    "str", "bytes", "struct",
)


@cython.final
cdef class Encoded:
    """Structs that were encoded once, to be copied into messages unchanged.

    Takes the place of the struct, or of consecutive structs in an array, in messages of the same
    version.
    """

    def __len__(self):
        return len(self.data)


cdef bint refuse(Writer *w, int code, const Op *op, PyObject *value) noexcept:
    w.failure.code = code
    w.failure.op = op
    w.failure.got = "nothing"
    if value != NULL:
        w.failure.got = Py_TYPE(value).tp_name
    return False


cdef bint room(Writer *w, Py_ssize_t count) noexcept:
    """Reserve room for `count` more bytes."""
    cdef Py_ssize_t capacity = w.capacity
    if w.size + count <= capacity:
        return True
    if w.size + count > w.size_max + 4:
        w.failure.code = E_TOO_LONG
        return False
    while capacity < w.size + count:
        capacity = capacity * 2
    if _PyBytes_Resize(&w.bytes, capacity) < 0:
        PyErr_Clear()
        w.failure.code = E_MEMORY
        return False
    w.data = <uint8_t *> raw_bytes_data(w.bytes)
    w.capacity = capacity
    return True


cdef inline void put_u16(uint8_t *at, uint16_t value) noexcept:
    at[0] = <uint8_t> (value >> 8)
    at[1] = <uint8_t> value


cdef void put_u32(uint8_t *at, uint32_t value) noexcept:
    at[0] = <uint8_t> (value >> 24)
    at[1] = <uint8_t> (value >> 16)
    at[2] = <uint8_t> (value >> 8)
    at[3] = <uint8_t> value


cdef inline int varint_put(uint8_t *at, uint32_t value) noexcept:
    """Write an unsigned varint, at most 5 bytes; return its size."""
    cdef int count = 0
    while value >= 0x80:
        at[count] = <uint8_t> (value | 0x80)
        value >>= 7
        count += 1
    at[count] = <uint8_t> value
    return count + 1


cdef bint write_length(Writer *w, const Op *op, int64_t length, int width) noexcept:
    """Write a length. length: -1 for null."""
    if not room(w, 5):
        return False
    if op.compact:
        w.size += varint_put(w.data + w.size, <uint32_t> (length + 1))
    elif width == 2:
        put_u16(w.data + w.size, <uint16_t> length)
        w.size += 2
    else:
        put_u32(w.data + w.size, <uint32_t> length)
        w.size += 4
    return True


cdef bint write_null(Writer *w, const Op *op) noexcept:
    if not op.nullable:
        return refuse(w, E_NULL, op, Py_None)
    return write_length(w, op, -1, 2 if op.kind == STRING and not op.array else 4)


cdef bint write_integer(Writer *w, const Op *op, PyObject *value) noexcept:
    cdef int overflow = 0
    cdef long long number, low, high
    cdef uint8_t *at = w.data + w.size
    if not PyLong_Check(value):
        return refuse(w, E_TYPE, op, value)
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if op.kind == INT64:
        if overflow:
            return refuse(w, E_RANGE, op, value)
        put_u32(at, <uint32_t> (<uint64_t> number >> 32))
        put_u32(at + 4, <uint32_t> number)
        w.size += 8
        return True
    if op.kind == INT32:
        low, high = -0x80000000, 0x7FFFFFFF
    elif op.kind == INT16:
        low, high = -0x8000, 0x7FFF
    elif op.kind == INT8:
        low, high = -0x80, 0x7F
    elif op.kind == UINT16:
        low, high = 0, 0xFFFF
    else:
        low, high = 0, 0xFFFFFFFF
    if overflow or number < low or number > high:
        return refuse(w, E_RANGE, op, value)
    if op.kind == INT32 or op.kind == UINT32:
        put_u32(at, <uint32_t> number)
        w.size += 4
    elif op.kind == INT8:
        at[0] = <uint8_t> number
        w.size += 1
    else:
        put_u16(at, <uint16_t> number)
        w.size += 2
    return True


cdef bint write_fixed(Writer *w, const Op *op, PyObject *value) noexcept:
    cdef double real
    cdef uint64_t raw
    if not room(w, 16):
        return False
    if op.kind == BOOL:
        if not PyBool_Check(value):
            return refuse(w, E_TYPE, op, value)
        w.data[w.size] = value == Py_True
        w.size += 1
        return True
    if op.kind == UUID:
        if not PyBytes_CheckExact(<object> value) or PyBytes_GET_SIZE(<object> value) != 16:
            return refuse(w, E_TYPE, op, value)
        memcpy(w.data + w.size, raw_bytes_data(value), 16)
        w.size += 16
        return True
    if op.kind == FLOAT64:
        if not PyFloat_Check(value):
            return refuse(w, E_TYPE, op, value)
        real = PyFloat_AS_DOUBLE(value)
        memcpy(&raw, &real, 8)
        put_u32(w.data + w.size, <uint32_t> (raw >> 32))
        put_u32(w.data + w.size + 4, <uint32_t> raw)
        w.size += 8
        return True
    return write_integer(w, op, value)


cdef bint write_string(Writer *w, const Op *op, PyObject *value) noexcept:
    cdef Py_ssize_t length
    cdef const char *text
    if value == Py_None:
        return write_null(w, op)
    if not PyUnicode_Check(value):
        return refuse(w, E_TYPE, op, value)
    text = PyUnicode_AsUTF8AndSize(value, &length)
    if text == NULL:
        PyErr_Clear()
        return refuse(w, E_TEXT, op, value)
    if length > STRING_MAX:
        return refuse(w, E_LENGTH, op, value)
    if not write_length(w, op, length, 2) or not room(w, length):
        return False
    memcpy(w.data + w.size, text, length)
    w.size += length
    return True


cdef bint write_bytes(Writer *w, const Op *op, PyObject *value) noexcept:
    """Write bytes, a bytearray or a contiguous memoryview."""
    cdef Py_buffer view
    cdef bint done
    if value == Py_None:
        return write_null(w, op)
    if PyBytes_CheckExact(<object> value) and PyBytes_GET_SIZE(<object> value) <= 0x7FFFFFFF:
        if not write_length(w, op, PyBytes_GET_SIZE(<object> value), 4):
            return False
        if not room(w, PyBytes_GET_SIZE(<object> value)):
            return False
        memcpy(w.data + w.size, raw_bytes_data(value), PyBytes_GET_SIZE(<object> value))
        w.size += PyBytes_GET_SIZE(<object> value)
        return True
    # No Python code may run here, and other buffer exporters may be written in Python.
    if not isinstance(<object> value, (bytes, bytearray, memoryview)):
        return refuse(w, E_TYPE, op, value)
    try:
        PyObject_GetBuffer(<object> value, &view, PyBUF_SIMPLE)
    except BufferError:
        return refuse(w, E_TYPE, op, value)
    done = view.len <= 0x7FFFFFFF
    if not done:
        refuse(w, E_LENGTH, op, value)
    done = done and write_length(w, op, view.len, 4)
    if (done and w.in_pieces and view.len >= PIECE_BYTES_MIN and w.piece_count < PIECES_MAX
            and isinstance(<object> value, memoryview)):
        w.pieces[w.piece_count].value = value
        w.pieces[w.piece_count].position = w.size
        w.piece_count += 1
        w.pieces_bytes += view.len
        PyBuffer_Release(&view)
        return True
    done = done and room(w, view.len)
    if done:
        memcpy(w.data + w.size, view.buf, view.len)
        w.size += view.len
    PyBuffer_Release(&view)
    return done


cdef bint write_one(Writer *w, const Op *op, PyObject *value) noexcept:
    if value == NULL:
        return refuse(w, E_MISSING, op, NULL)
    if op.kind < STRING:
        return write_fixed(w, op, value)
    if op.kind == STRING:
        return write_string(w, op, value)
    if op.kind == BYTES:
        return write_bytes(w, op, value)
    return write_struct(w, op, op.plan, value)


cdef Py_ssize_t stood_for(const Op *op, PyObject *value, Py_ssize_t count) noexcept:
    """Return the number of array elements; one Encoded may represent several."""
    cdef Py_ssize_t i, total = count
    if op.kind == STRUCT:
        for i in range(count):
            if Py_TYPE(codec_item(value, i)) == <PyTypeObject *> Encoded:
                total += (<Encoded> codec_item(value, i)).count - 1
    return total


cdef bint write_array(Writer *w, const Op *op, PyObject *value) noexcept:
    cdef Py_ssize_t i, count
    cdef Op element
    if value == Py_None:
        return write_null(w, op)
    if not PyList_Check(value) and not PyTuple_Check(value):
        return refuse(w, E_TYPE, op, value)
    count = Py_SIZE(value)
    if count > 0x7FFFFFFF:
        return refuse(w, E_LENGTH, op, value)
    if not write_length(w, op, stood_for(op, value, count), 4):
        return False
    element = op[0]
    element.nullable = False
    element.array = False
    for i in range(count):
        if not write_one(w, &element, codec_item(value, i)):
            if w.failure.op == &element:
                w.failure.op = op
            step(&w.failure, op, i)
            return False
    return True


cdef bint write_value(Writer *w, const Op *op, PyObject *value) noexcept:
    if value == NULL:
        return refuse(w, E_MISSING, op, NULL)
    if op.array:
        return write_array(w, op, value)
    if op.kind == STRUCT and op.nullable:
        if not room(w, 1):
            return False
        w.data[w.size] = 0xFF if value == Py_None else 1
        w.size += 1
        if value == Py_None:
            return True
    return write_one(w, op, value)


cdef bint write_tags(Writer *w, const Plan *plan, PyObject *value) noexcept:
    """Write the tagged fields that differ from their defaults: tag, size and value."""
    cdef Py_ssize_t i, start, size, counter
    cdef int width
    cdef uint8_t head[5]
    cdef const Op *op
    cdef PyObject *field
    cdef bint in_pieces = w.in_pieces
    if not room(w, 1):
        return False
    counter = w.size  # One byte: no message has 128 tags or more (Program asserts it).
    w.data[counter] = 0
    w.size += 1
    for i in range(plan.tag_count):
        op = &plan.tags[i]
        field = codec_get(value, op.slot)
        if field == NULL:
            step(&w.failure, op, -1)
            return refuse(w, E_MISSING, op, NULL)
        if same(op.default_kind, op.default, field):
            continue
        w.data[counter] += 1
        if not room(w, 10):
            return False
        w.size += varint_put(w.data + w.size, op.tag)
        start = w.size
        w.in_pieces = False  # The value is moved below, so it must be contiguous.
        if not write_value(w, op, field):
            if not w.failure.depth or not op.array:
                step(&w.failure, op, -1)
            return False
        # The size is only known now: move the value to make room for it.
        size = w.size - start
        width = varint_put(head, <uint32_t> size)
        if not room(w, width):
            return False
        memmove(w.data + start + width, w.data + start, size)
        memcpy(w.data + start, head, width)
        w.size += width
        w.in_pieces = in_pieces
    return True


cdef bint write_encoded(Writer *w, const Op *holder, const Plan *plan, PyObject *value) noexcept:
    cdef Encoded found = <Encoded> value
    cdef Py_ssize_t size = PyBytes_GET_SIZE(found.data)
    if found.plan != plan:
        return refuse(w, E_TYPE, holder, value)
    if not room(w, size):
        return False
    memcpy(w.data + w.size, raw_bytes_data(<PyObject *> found.data), size)
    w.size += size
    return True


cdef bint write_struct(Writer *w, const Op *holder, const Plan *plan, PyObject *value) noexcept:
    cdef const Op *op
    cdef PyObject *field
    cdef Py_ssize_t i
    if Py_TYPE(value) == <PyTypeObject *> Encoded:
        return write_encoded(w, holder, plan, value)
    if Py_TYPE(value) != plan.type and not PyObject_TypeCheck(value, plan.type):
        return refuse(w, E_NULL if value == Py_None else E_TYPE, holder, value)
    for i in range(plan.count):
        op = &plan.ops[i]
        field = codec_get(value, op.slot)
        if op.present:
            if write_value(w, op, field):
                continue
        elif field == NULL:
            refuse(w, E_MISSING, op, NULL)
        elif op.ignorable or same(op.default_kind, op.default, field):
            continue
        else:
            refuse(w, E_VERSION, op, field)
        if not w.failure.depth or not op.array:
            step(&w.failure, op, -1)
        return False
    return not plan.flexible or write_tags(w, plan, value)


cdef raise_written(str title, Writer *w):
    cdef const Op *op = w.failure.op
    cdef str path = path_of(&w.failure)
    if w.failure.code == E_MEMORY:
        raise MemoryError(f"{title}: {path}")
    if w.failure.code == E_TOO_LONG:
        raise AnswerTooLong(f"{title}: more than {w.size_max} bytes")
    if op == NULL:
        wanted = title
    elif op.array and (w.failure.depth == 0 or w.failure.path[0].index < 0):
        wanted = "list"
    else:
        wanted = KIND_NAMES[op.kind]
        if op.kind == STRUCT:
            wanted = (<type> <object> op.plan.type).__qualname__
    got = w.failure.got.decode()
    cdef dict words = {
        E_TYPE: f"{wanted} expected, not {got}", E_RANGE: f"out of range for {wanted}",
        E_NULL: "null is not allowed", E_LENGTH: "too long", E_TEXT: "not encodable as UTF-8",
        E_VERSION: "this version cannot carry it", E_MISSING: "not set",
    }
    raise EncodeError(f"{title}: {path}: {words[w.failure.code]}")
