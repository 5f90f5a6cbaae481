"""Decodes messages: one pass over the bytes, guided by a plan, creates the objects.

Owns: nothing.
Invariants: never reads outside [position, end); never allocates memory for a declared count or
  length before that many bytes are known to be present, and limits the memory of a message to a
  budget; runs no Python code during a pass.
Source: KIP-482 (compact forms, tagged fields).
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pylog._native.protocol.message cimport (
    BOOL, BYTES, E_BUDGET, E_COUNT, E_ELEMENTS, E_LENGTH, E_NULL, E_SHORT, E_TAGS, E_VARINT, INT8,
    INT16, INT32, INT64, STRING, STRING_MAX, STRUCT, TAGS_MAX, UINT16, UINT32, UUID, Py_DECREF,
    Py_False, Py_None, Py_True, PyErr_Clear, codec_alloc, codec_list, codec_list_put, codec_put,
    codec_u16, codec_u32, codec_u64, codec_width, fresh, owned, raw_bytes, raw_float, raw_long,
    raw_text, step,
)

from pylog._native.protocol.message import ProtocolError


cdef inline bint charge(Reader *r, int64_t bytes_) noexcept:
    r.budget -= bytes_
    if r.budget < 0:
        r.failure.code = E_BUDGET
        return False
    return True


cdef inline bint need(Reader *r, Py_ssize_t count) noexcept nogil:
    # Never reads past `end`.
    if count > r.end - r.position:
        r.failure.code = E_SHORT
        return False
    return True


cdef bint read_varint(Reader *r, uint32_t *out) noexcept nogil:
    """Read an unsigned varint of at most 32 bits."""
    cdef uint64_t value = 0
    cdef uint8_t byte
    cdef int shift = 0
    while shift < 35:
        if not need(r, 1):
            return False
        byte = r.data[r.position]
        r.position += 1
        value |= <uint64_t> (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 32:
                break
            out[0] = <uint32_t> value
            return True
        shift += 7
    r.failure.code = E_VARINT
    return False


cdef Py_ssize_t read_length(Reader *r, const Op *op, int width) noexcept nogil:
    """Read a length or count. Return -1 for an allowed null, -2 on failure."""
    cdef uint32_t raw
    cdef int64_t length
    if op.compact:
        if not read_varint(r, &raw):
            return -2
        length = <int64_t> raw - 1
    elif width == 2:
        if not need(r, 2):
            return -2
        length = <int16_t> codec_u16(r.data + r.position)
        r.position += 2
    else:
        if not need(r, 4):
            return -2
        length = <int32_t> codec_u32(r.data + r.position)
        r.position += 4
    if length >= 0:
        return length
    if length == -1 and op.nullable:
        return -1
    r.failure.code = E_NULL if length == -1 else E_LENGTH
    return -2


cdef PyObject *read_string(Reader *r, const Op *op) noexcept:
    cdef Py_ssize_t length = read_length(r, op, 2)
    cdef PyObject *text
    if length < 0:
        return owned(Py_None) if length == -1 else NULL
    if length > STRING_MAX:
        r.failure.code = E_LENGTH
        return NULL
    if not need(r, length) or not charge(r, 56 + length):
        return NULL
    # As in Kafka, bytes that are not UTF-8 become U+FFFD. Such a name is then rejected as invalid.
    text = raw_text(<const char *> r.data + r.position, length, "replace")
    r.position += length
    return text


cdef PyObject *read_bytes(Reader *r, const Op *op) noexcept:
    cdef Py_ssize_t length = read_length(r, op, 4)
    cdef PyObject *made
    if length < 0:
        return owned(Py_None) if length == -1 else NULL
    if not need(r, length) or not charge(r, 40 + length):
        return NULL
    made = raw_bytes(<const char *> r.data + r.position, length)
    r.position += length
    return made


cdef PyObject *read_fixed(Reader *r, uint8_t kind) noexcept:
    cdef const uint8_t *at = r.data + r.position
    cdef uint64_t raw
    cdef double real
    if not need(r, codec_width(kind)):
        return NULL
    r.position += codec_width(kind)
    if kind == INT32:
        return raw_long(<int32_t> codec_u32(at))
    if kind == INT16:
        return raw_long(<int16_t> codec_u16(at))
    if kind == INT64:
        return raw_long(<int64_t> codec_u64(at))
    if kind == INT8:
        return raw_long(<int8_t> at[0])
    if kind == BOOL:
        return owned(Py_True if at[0] else Py_False)
    if kind == UUID:
        return raw_bytes(<const char *> at, 16)
    if kind == UINT16:
        return raw_long(codec_u16(at))
    if kind == UINT32:
        return raw_long(codec_u32(at))
    raw = codec_u64(at)
    memcpy(&real, &raw, 8)
    return raw_float(real)


cdef PyObject *read_one(Reader *r, const Op *op) noexcept:
    """Read one value that is not an array: a field, or an array's element."""
    if op.kind < STRING:
        return read_fixed(r, op.kind)
    if op.kind == STRING:
        return read_string(r, op)
    if op.kind == BYTES:
        return read_bytes(r, op)
    return read_struct(r, op.plan)


cdef Py_ssize_t read_count(Reader *r, const Op *op) noexcept nogil:
    """Read an array's element count. Return -1 for an allowed null, -2 on failure."""
    cdef Py_ssize_t count = read_length(r, op, 4)
    # Each element has at least size_min bytes, and all elements must be in the data. Keeps
    # allocations bounded.
    if count > (r.end - r.position) // op.size_min:
        r.failure.code = E_COUNT
        return -2
    return count


cdef PyObject *read_array(Reader *r, const Op *op) noexcept:
    cdef Py_ssize_t count = read_count(r, op)
    cdef Py_ssize_t i
    cdef PyObject *made
    cdef PyObject *value
    cdef Op element
    if count < 0:
        return owned(Py_None) if count == -1 else NULL
    r.elements -= count
    if r.elements < 0:
        r.failure.code = E_ELEMENTS
        return NULL
    if not charge(r, 64 + count * (40 if op.kind < STRING else 8)):
        return NULL
    made = codec_list(count)
    if made == NULL:
        return NULL
    element = op[0]
    element.nullable = False
    for i in range(count):
        value = read_one(r, &element)
        if value == NULL:
            step(&r.failure, op, i)
            Py_DECREF(made)
            return NULL
        codec_list_put(made, i, value)
    return made


cdef PyObject *read_value(Reader *r, const Op *op) noexcept:
    cdef PyObject *value
    if op.array:
        return read_array(r, op)  # It adds its path entry itself, with the element's index.
    if op.kind == STRUCT and op.nullable:
        if not need(r, 1):
            return NULL
        r.position += 1
        if <int8_t> r.data[r.position - 1] < 0:
            return owned(Py_None)
    value = read_one(r, op)
    return value


cdef bint read_tags(Reader *r, const Plan *plan, PyObject *made) noexcept:
    """Read the tagged fields: store the known ones, skip the others."""
    cdef uint32_t count, tag, size
    cdef Py_ssize_t k, end, outer
    cdef PyObject *value
    if not read_varint(r, &count):
        return False
    if count > TAGS_MAX:
        r.failure.code = E_TAGS
        return False
    for _ in range(count):
        if not read_varint(r, &tag) or not read_varint(r, &size) or not need(r, size):
            return False
        end = r.position + size
        for k in range(plan.tag_count):
            if plan.tags[k].tag == tag:
                outer = r.end
                r.end = end
                value = read_value(r, &plan.tags[k])
                r.end = outer
                if value == NULL:
                    if not r.failure.depth or not plan.tags[k].array:
                        step(&r.failure, &plan.tags[k], -1)
                    return False
                codec_put(made, plan.tags[k].slot, value)
                break
        r.position = end
    return True


cdef PyObject *read_struct(Reader *r, const Plan *plan) noexcept:
    cdef PyObject *made
    cdef PyObject *value
    cdef const Op *op
    cdef Py_ssize_t i
    if not charge(r, plan.cost):
        return NULL
    made = codec_alloc(plan.type)
    if made == NULL:
        return NULL
    for i in range(plan.count):
        op = &plan.ops[i]
        value = read_value(r, op) if op.present else fresh(op.default_kind, op.default)
        if value == NULL:
            if not r.failure.depth or not op.array:
                step(&r.failure, op, -1)
            Py_DECREF(made)
            return NULL
        codec_put(made, op.slot, value)
    for i in range(plan.tag_count):
        value = fresh(plan.tags[i].default_kind, plan.tags[i].default)
        if value == NULL:
            Py_DECREF(made)
            return NULL
        codec_put(made, plan.tags[i].slot, value)
    if plan.flexible and not read_tags(r, plan, made):
        Py_DECREF(made)
        return NULL
    return made


cdef bint skip_one(Reader *r, const Op *op) noexcept nogil:
    """Skip a value that is not an array, as read_one would read it."""
    cdef Py_ssize_t size
    if op.kind == STRUCT:
        return skip_struct(r, op.plan)
    if op.kind < STRING:
        size = codec_width(op.kind)
    else:
        size = read_length(r, op, 2 if op.kind == STRING else 4)
        if size < 0:
            return size == -1
        if op.kind == STRING and size > STRING_MAX:
            r.failure.code = E_LENGTH
            return False
    if not need(r, size):
        return False
    r.position += size
    return True


cdef bint skip_value(Reader *r, const Op *op) noexcept nogil:
    cdef Py_ssize_t _, count
    cdef Op element
    if not op.array:
        if op.kind == STRUCT and op.nullable:
            if not need(r, 1):
                return False
            r.position += 1
            if <int8_t> r.data[r.position - 1] < 0:
                return True
        return skip_one(r, op)
    count = read_count(r, op)
    if count < 0:
        return count == -1
    element = op[0]
    element.nullable = False
    for _ in range(count):
        if not skip_one(r, &element):
            return False
    return True


cdef bint skip_struct(Reader *r, const Plan *plan) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(plan.count):
        if plan.ops[i].present and not skip_value(r, &plan.ops[i]):
            return False
    return not plan.flexible or skip_tags(r)


cdef bint skip_tags(Reader *r) noexcept nogil:
    cdef uint32_t count, tag, size
    if not read_varint(r, &count):
        return False
    if count > TAGS_MAX:
        r.failure.code = E_TAGS
        return False
    for _ in range(count):
        if not read_varint(r, &tag) or not read_varint(r, &size) or not need(r, size):
            return False
        r.position += size
    return True


cdef str path_of(Failure *failure):
    """Return the path of the failed field, such as `topics[3].partitions[0].leader_id`."""
    parts = []
    cdef int i
    for i in range(failure.depth - 1, -1, -1):
        name = <object> failure.path[i].name
        index = failure.path[i].index
        parts.append(name if index < 0 else f"{name}[{index}]")
    return ".".join(parts) or "itself"


cdef raise_read(str title, Reader *r):
    cdef dict words = {
        E_SHORT: "the bytes end within it", E_VARINT: "a varint of more than 32 bits",
        E_LENGTH: "an impossible length", E_NULL: "null is not allowed",
        E_COUNT: "more elements declared than bytes are left",
        E_TAGS: f"more than {TAGS_MAX} tagged fields",
        E_BUDGET: "decoding it would take too much memory",
        E_ELEMENTS: "more elements than one request may have",
    }
    if r.failure.code not in words:
        PyErr_Clear()
        raise MemoryError(f"{title}: {path_of(&r.failure)}")
    what = words[r.failure.code]
    raise ProtocolError(f"{title}: {path_of(&r.failure)}: {what} (byte {r.position})")
