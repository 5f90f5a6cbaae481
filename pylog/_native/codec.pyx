"""The protocol codec: flat programs, one per struct and version, that read and write message objects.

Owns: the programs (arrays of ops in C) and the layout of the message classes.
Called by: protocol.codec, which compiles a message's table into programs on first use.
Invariants: (1) no byte outside [offset, length of the data) is read;
  (2) nothing is allocated for a declared count or length before that many bytes are known to be there,
  and what one message makes is bounded by a budget; (3) a slot holds an owned reference or NULL;
  (4) no Python code runs between the first and the last byte of a message, so nothing moves under the walk.
Source: KIP-482 (compact forms, tagged fields); Kafka's message schemas.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memmove

cdef extern from *:
    """
    #include <stddef.h>
    #include "structmember.h"
    /* The position of a slot in its object, or -1 when the attribute is no slot. */
    static Py_ssize_t codec_slot(PyObject *descriptor)
    {
        if (!PyObject_TypeCheck(descriptor, &PyMemberDescr_Type)) return -1;
        PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
        return member->type == T_OBJECT_EX ? member->offset : -1;
    }
    #define CODEC_AT(object, slot) (*(PyObject **)((char *)(object) + (slot)))
    #define codec_get(object, slot) CODEC_AT(object, slot)
    static inline void codec_put(PyObject *object, Py_ssize_t slot, PyObject *owned)
    {
        PyObject *old = CODEC_AT(object, slot);
        CODEC_AT(object, slot) = owned;
        Py_XDECREF(old);
    }
    static inline PyObject *codec_alloc(PyTypeObject *type) { return type->tp_alloc(type, 0); }
    static inline void codec_list_put(PyObject *list, Py_ssize_t place, PyObject *owned)
    {
        PyList_SET_ITEM(list, place, owned);
    }
    static inline PyObject *codec_item(PyObject *sequence, Py_ssize_t place)
    {
        return PyList_Check(sequence) ? PyList_GET_ITEM(sequence, place)
                                      : PyTuple_GET_ITEM(sequence, place);
    }
    static inline uint16_t codec_u16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
    static inline uint32_t codec_u32(const uint8_t *p)
    {
        uint32_t value;
        memcpy(&value, p, 4);
        return __builtin_bswap32(value);
    }
    static inline uint64_t codec_u64(const uint8_t *p)
    {
        uint64_t value;
        memcpy(&value, p, 8);
        return __builtin_bswap64(value);
    }
    """
    Py_ssize_t codec_slot(PyObject *descriptor) noexcept
    PyObject *codec_get(PyObject *object, Py_ssize_t slot) noexcept
    void codec_put(PyObject *object, Py_ssize_t slot, PyObject *owned) noexcept
    PyObject *codec_alloc(PyTypeObject *type) noexcept
    void codec_list_put(PyObject *list, Py_ssize_t place, PyObject *owned) noexcept
    PyObject *codec_item(PyObject *sequence, Py_ssize_t place) noexcept
    uint16_t codec_u16(const uint8_t *p) noexcept
    uint32_t codec_u32(const uint8_t *p) noexcept
    uint64_t codec_u64(const uint8_t *p) noexcept

cdef extern from "Python.h":
    PyObject *Py_None
    PyObject *Py_True
    PyObject *Py_False
    void Py_INCREF(PyObject *)
    void Py_DECREF(PyObject *)
    void Py_XDECREF(PyObject *)
    PyTypeObject *Py_TYPE(PyObject *)
    bint PyObject_TypeCheck(PyObject *, PyTypeObject *)
    bint PyBool_Check(PyObject *)
    bint PyLong_Check(PyObject *)
    bint PyFloat_Check(PyObject *)
    bint PyUnicode_Check(PyObject *)
    bint PyList_Check(PyObject *)
    bint PyTuple_Check(PyObject *)
    Py_ssize_t Py_SIZE(PyObject *)
    void PyErr_Clear()
    PyObject *PyErr_Occurred()
    PyObject *raw_long "PyLong_FromLongLong"(long long)
    long long PyLong_AsLongLongAndOverflow(PyObject *, int *)
    PyObject *raw_float "PyFloat_FromDouble"(double)
    double PyFloat_AS_DOUBLE(PyObject *)
    PyObject *raw_text "PyUnicode_DecodeUTF8"(const char *, Py_ssize_t, const char *)
    const char *PyUnicode_AsUTF8AndSize(PyObject *, Py_ssize_t *)
    PyObject *raw_bytes "PyBytes_FromStringAndSize"(const char *, Py_ssize_t)
    PyObject *raw_list "PyList_New"(Py_ssize_t)
    int _PyBytes_Resize(PyObject **, Py_ssize_t)
    char *raw_bytes_data "PyBytes_AS_STRING"(PyObject *)


class ProtocolError(ValueError):
    """Bytes that break the protocol, or a message that its version cannot carry. Ends the connection."""


class EncodeError(ProtocolError):
    """A message object that cannot be written: wrong type, null, out of range, field not in this version."""


cdef enum:
    BOOL, INT8, INT16, INT32, INT64, UINT16, UINT32, FLOAT64, UUID, STRING, BYTES, STRUCT

cdef enum:
    DEFAULT_SHARED, DEFAULT_LIST, DEFAULT_STRUCT

cdef enum:
    OK, E_SHORT, E_VARINT, E_LENGTH, E_NULL, E_COUNT, E_TAGS, E_BUDGET, E_MEMORY, E_TYPE, E_RANGE, E_VERSION
    E_TEXT, E_MISSING

cdef enum:
    PATH_MAX = 16
    TAGS_MAX = 1000
    STRING_MAX = 32767

KINDS = {
    "bool": BOOL, "int8": INT8, "int16": INT16, "int32": INT32, "int64": INT64, "uint16": UINT16,
    "uint32": UINT32, "float64": FLOAT64, "uuid": UUID, "string": STRING, "bytes": BYTES,
    "records": BYTES,
}
cdef tuple KIND_NAMES = (
    "bool", "int8", "int16", "int32", "int64", "uint16", "uint32", "float64", "16 bytes of a uuid",
    "str", "bytes", "struct",
)
cdef tuple WIDTHS = (1, 1, 2, 4, 8, 2, 4, 8, 16)

# What one message may cost in memory once decoded; a request of 100 MiB of tiny structs stops here.
DECODED_BYTES_MAX = 256 * 1024 * 1024

ZERO_UUID = bytes(16)


cdef struct Op:
    uint8_t kind
    bint array
    bint compact
    bint nullable
    bint present  # False: this version has no such field
    bint ignorable
    uint8_t default_kind
    uint32_t tag
    Py_ssize_t slot
    Py_ssize_t size_min  # the fewest bytes of one element (array) or of the value
    Plan *plan  # of the struct, or NULL
    PyObject *default  # borrowed from Program.kept: the value, or the class of a struct
    PyObject *name

cdef struct Plan:
    PyTypeObject *type
    PyObject *layout
    Op *ops
    Py_ssize_t count
    Op *tags  # by rising tag
    Py_ssize_t tag_count
    bint flexible
    Py_ssize_t size_min
    Py_ssize_t cost

cdef struct Step:
    PyObject *name  # borrowed from a program
    Py_ssize_t index  # -1: no array

cdef struct Failure:
    int code
    const char *got
    const Op *op
    int depth
    Step path[PATH_MAX]

cdef struct Reader:
    const uint8_t *data
    Py_ssize_t position
    Py_ssize_t end
    int64_t budget
    Failure failure

cdef struct Writer:
    PyObject *bytes
    uint8_t *data
    Py_ssize_t size
    Py_ssize_t capacity
    Failure failure


cdef inline PyObject *owned(PyObject *thing) noexcept:
    Py_INCREF(thing)
    return thing


cdef void step(Failure *failure, const Op *op, Py_ssize_t index) noexcept:
    """Notes one level of the path to what failed; called from the inside out."""
    if failure.depth < PATH_MAX:
        failure.path[failure.depth].name = op.name
        failure.path[failure.depth].index = index
        failure.depth += 1


# ---------------------------------------------------------------- message objects


@cython.final
cdef class Layout:
    """Where the fields of one class are, and what they are when nobody says."""

    cdef Py_ssize_t count
    cdef Py_ssize_t *slots
    cdef uint8_t *kinds
    cdef PyObject **defaults  # borrowed from `kept`
    cdef readonly tuple names
    cdef dict index
    cdef list kept
    cdef type owner

    def __cinit__(self, type cls, list fields):
        """fields: [(name, default, is_list, is_struct)]; for a struct the default is its class."""
        cdef Py_ssize_t i, slot
        self.count = len(fields)
        self.slots = <Py_ssize_t *> PyMem_Calloc(self.count + 1, sizeof(Py_ssize_t))
        self.kinds = <uint8_t *> PyMem_Calloc(self.count + 1, 1)
        self.defaults = <PyObject **> PyMem_Calloc(self.count + 1, sizeof(PyObject *))
        if not self.slots or not self.kinds or not self.defaults:
            raise MemoryError()
        self.names = tuple([field[0] for field in fields])
        self.index = {}
        self.kept = []
        self.owner = cls
        for i in range(self.count):
            name, default, is_list, is_struct = fields[i]
            member = cls.__dict__[name]
            slot = codec_slot(<PyObject *> member)
            assert slot > 0, (cls, name)
            self.slots[i] = slot
            self.index[name] = i
            self.kinds[i] = DEFAULT_LIST if is_list else DEFAULT_STRUCT if is_struct else DEFAULT_SHARED
            self.kept.append(default)
            self.defaults[i] = <PyObject *> default

    def __dealloc__(self):
        PyMem_Free(self.slots)
        PyMem_Free(self.kinds)
        PyMem_Free(self.defaults)


cdef PyObject *fresh(uint8_t kind, PyObject *default) noexcept:
    """A new reference to a default, NULL when memory ran out."""
    if kind == DEFAULT_LIST:
        return raw_list(0)
    if kind == DEFAULT_STRUCT:
        return fresh_struct(<PyTypeObject *> default)
    return owned(default)


cdef PyObject *fresh_struct(PyTypeObject *cls) noexcept:
    cdef PyObject *made = codec_alloc(cls)
    if made == NULL:
        return NULL
    if not fill(made, <PyObject *> (<object> cls).__layout__):
        Py_DECREF(made)
        return NULL
    return made


cdef bint fill(PyObject *made, PyObject *layout_object) noexcept:
    """Sets every field to its default. False when memory ran out."""
    cdef Layout layout = <Layout> layout_object
    cdef Py_ssize_t i
    cdef PyObject *value
    for i in range(layout.count):
        value = fresh(layout.kinds[i], layout.defaults[i])
        if value == NULL:
            return False
        codec_put(made, layout.slots[i], value)
    return True


cdef class Struct:
    """Base of all message classes: fields as slots, keyword constructor, equality by value."""

    def __init__(self, **fields):
        cdef Layout layout = <Layout> type(self).__layout__
        cdef Py_ssize_t i
        if not fill(<PyObject *> self, <PyObject *> layout):
            raise MemoryError()
        for name, value in fields.items():
            place = layout.index.get(name)
            if place is None:
                raise TypeError(f"{type(self).__qualname__} has no field {name!r}")
            i = place
            codec_put(<PyObject *> self, layout.slots[i], owned(<PyObject *> value))

    def __eq__(self, other):
        if type(self) is not type(other):
            return NotImplemented
        return all([getattr(self, name) == getattr(other, name) for name in (<Layout> self.__layout__).names])

    def __repr__(self):
        names = (<Layout> self.__layout__).names
        inner = ", ".join([f"{name}={getattr(self, name, '?')!r}" for name in names])
        return f"{type(self).__qualname__}({inner})"

    def __copy__(self):
        names = (<Layout> self.__layout__).names
        return type(self)(**{name: getattr(self, name) for name in names})

    def __reduce__(self):
        raise TypeError("message objects are encoded, not pickled")


# ---------------------------------------------------------------- reading


cdef inline bint charge(Reader *r, int64_t bytes_) noexcept:
    r.budget -= bytes_
    if r.budget < 0:
        r.failure.code = E_BUDGET
        return False
    return True


cdef inline bint need(Reader *r, Py_ssize_t count) noexcept:
    # Keeps (1).
    if count > r.end - r.position:
        r.failure.code = E_SHORT
        return False
    return True


cdef bint read_varint(Reader *r, uint32_t *out) noexcept:
    """An unsigned varint of at most 32 bits."""
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
            if value > 0xFFFFFFFF:
                break
            out[0] = <uint32_t> value
            return True
        shift += 7
    r.failure.code = E_VARINT
    return False


cdef Py_ssize_t read_length(Reader *r, const Op *op, int width) noexcept:
    """A length or count: -1 for an allowed null, -2 after a failure."""
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
    # As in Kafka, bytes that are no UTF-8 become U+FFFD: such a name is then refused as invalid.
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
    if kind == INT32:
        if not need(r, 4): return NULL
        r.position += 4
        return raw_long(<int32_t> codec_u32(at))
    if kind == INT16:
        if not need(r, 2): return NULL
        r.position += 2
        return raw_long(<int16_t> codec_u16(at))
    if kind == INT64:
        if not need(r, 8): return NULL
        r.position += 8
        return raw_long(<int64_t> codec_u64(at))
    if kind == BOOL or kind == INT8:
        if not need(r, 1): return NULL
        r.position += 1
        if kind == INT8:
            return raw_long(<int8_t> at[0])
        return owned(Py_True if at[0] else Py_False)
    if kind == UUID:
        if not need(r, 16): return NULL
        r.position += 16
        return raw_bytes(<const char *> at, 16)
    if kind == UINT16:
        if not need(r, 2): return NULL
        r.position += 2
        return raw_long(codec_u16(at))
    if kind == UINT32:
        if not need(r, 4): return NULL
        r.position += 4
        return raw_long(codec_u32(at))
    if not need(r, 8): return NULL
    r.position += 8
    raw = codec_u64(at)
    memcpy(&real, &raw, 8)
    return raw_float(real)


cdef PyObject *read_one(Reader *r, const Op *op) noexcept:
    """One value that is no array: a field, or an array's element."""
    if op.kind < STRING:
        return read_fixed(r, op.kind)
    if op.kind == STRING:
        return read_string(r, op)
    if op.kind == BYTES:
        return read_bytes(r, op)
    return read_struct(r, op.plan)


cdef PyObject *read_array(Reader *r, const Op *op) noexcept:
    cdef Py_ssize_t count = read_length(r, op, 4)
    cdef Py_ssize_t i
    cdef PyObject *made
    cdef PyObject *value
    cdef Op element
    if count < 0:
        return owned(Py_None) if count == -1 else NULL
    # Keeps (2): each element takes at least size_min bytes, and all of them must be in the data.
    if count > (r.end - r.position) // op.size_min:
        r.failure.code = E_COUNT
        return NULL
    if not charge(r, 64 + count * (40 if op.kind < STRING else 8)):
        return NULL
    made = raw_list(count)
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
        return read_array(r, op)  # It names itself in the path, with the element's index.
    if op.kind == STRUCT and op.nullable:
        if not need(r, 1):
            return NULL
        r.position += 1
        if <int8_t> r.data[r.position - 1] < 0:
            return owned(Py_None)
    value = read_one(r, op)
    return value


cdef bint read_tags(Reader *r, const Plan *plan, PyObject *made) noexcept:
    """The tagged fields: known ones into their slots, others skipped."""
    cdef uint32_t count, tag, size, i
    cdef Py_ssize_t k, end, outer
    cdef PyObject *value
    if not read_varint(r, &count):
        return False
    if count > TAGS_MAX:
        r.failure.code = E_TAGS
        return False
    for i in range(count):
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


# ---------------------------------------------------------------- writing


cdef bint refuse(Writer *w, int code, const Op *op, PyObject *value) noexcept:
    w.failure.code = code
    w.failure.op = op
    w.failure.got = "nothing"
    if value != NULL:
        w.failure.got = Py_TYPE(value).tp_name
    return False


cdef bint room(Writer *w, Py_ssize_t count) noexcept:
    """Makes place for `count` more bytes."""
    cdef Py_ssize_t capacity = w.capacity
    if w.size + count <= capacity:
        return True
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


cdef inline void put_u32(uint8_t *at, uint32_t value) noexcept:
    at[0] = <uint8_t> (value >> 24)
    at[1] = <uint8_t> (value >> 16)
    at[2] = <uint8_t> (value >> 8)
    at[3] = <uint8_t> value


cdef inline int varint_put(uint8_t *at, uint32_t value) noexcept:
    """Writes an unsigned varint, at most 5 bytes; returns how many."""
    cdef int count = 0
    while value >= 0x80:
        at[count] = <uint8_t> (value | 0x80)
        value >>= 7
        count += 1
    at[count] = <uint8_t> value
    return count + 1


cdef bint write_length(Writer *w, const Op *op, int64_t length, int width) noexcept:
    """length: -1 for null."""
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
    """bytes, bytearray or a contiguous memoryview."""
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
    if not PyObject_CheckBuffer(<object> value):
        return refuse(w, E_TYPE, op, value)
    try:
        PyObject_GetBuffer(<object> value, &view, PyBUF_SIMPLE)
    except BufferError:
        return refuse(w, E_TYPE, op, value)
    done = view.len <= 0x7FFFFFFF
    if not done:
        refuse(w, E_LENGTH, op, value)
    done = done and write_length(w, op, view.len, 4) and room(w, view.len)
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
    if not write_length(w, op, count, 4):
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


cdef bint same(uint8_t default_kind, PyObject *default, PyObject *value) noexcept:
    """Whether a value is the default. Keeps (4): only comparisons of built-in values."""
    cdef int overflow = 0
    cdef Py_ssize_t a = 0, b = 0
    cdef const char *x
    cdef const char *y
    if default_kind == DEFAULT_LIST:
        return (PyList_Check(value) or PyTuple_Check(value)) and Py_SIZE(value) == 0
    if default_kind == DEFAULT_STRUCT:
        return same_struct(<PyTypeObject *> default, value)
    if value == default:
        return True
    if default == Py_None:
        # Kafka's own classes never write an empty array in place of a null one.
        return (PyList_Check(value) or PyTuple_Check(value)) and Py_SIZE(value) == 0
    if PyLong_Check(default):
        if not PyLong_Check(value):
            return False
        return PyLong_AsLongLongAndOverflow(value, &overflow) == PyLong_AsLongLongAndOverflow(
            default, &overflow) and not overflow
    if PyFloat_Check(default):
        return PyFloat_Check(value) and PyFloat_AS_DOUBLE(value) == PyFloat_AS_DOUBLE(default)
    if PyUnicode_Check(default) and PyUnicode_Check(value):
        x = PyUnicode_AsUTF8AndSize(value, &a)
        y = PyUnicode_AsUTF8AndSize(default, &b)
        if x == NULL:
            PyErr_Clear()
            return False
        return a == b and not memcmp(x, y, a)
    if PyBytes_CheckExact(<object> default) and PyBytes_CheckExact(<object> value):
        a = PyBytes_GET_SIZE(<object> value)
        return a == PyBytes_GET_SIZE(<object> default) and not memcmp(
            raw_bytes_data(value), raw_bytes_data(default), a)
    return False


cdef bint same_struct(PyTypeObject *cls, PyObject *value) noexcept:
    cdef Layout layout
    cdef PyObject *field
    cdef Py_ssize_t i
    if not PyObject_TypeCheck(value, cls):
        return False
    layout = <Layout> (<object> cls).__layout__
    for i in range(layout.count):
        field = codec_get(value, layout.slots[i])
        if field == NULL or not same(layout.kinds[i], layout.defaults[i], field):
            return False
    return True


cdef bint write_tags(Writer *w, const Plan *plan, PyObject *value) noexcept:
    """Fields that differ from their defaults, each as tag, size and value."""
    cdef Py_ssize_t i, start, size, counter
    cdef int width
    cdef uint8_t head[5]
    cdef const Op *op
    cdef PyObject *field
    if not room(w, 1):
        return False
    counter = w.size  # Fewer than 128 tags in any message: one byte (Program asserts it).
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
        if not write_value(w, op, field):
            if not w.failure.depth or not op.array:
                step(&w.failure, op, -1)
            return False
        # The size is known only now: the value moves up to make place for it.
        size = w.size - start
        width = varint_put(head, <uint32_t> size)
        if not room(w, width):
            return False
        memmove(w.data + start + width, w.data + start, size)
        memcpy(w.data + start, head, width)
        w.size += width
    return True


cdef bint write_struct(Writer *w, const Op *holder, const Plan *plan, PyObject *value) noexcept:
    cdef const Op *op
    cdef PyObject *field
    cdef Py_ssize_t i
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


# ---------------------------------------------------------------- programs


cdef str path_of(Failure *failure):
    """`topics[3].partitions[0].leader_id`"""
    parts = []
    cdef int i
    for i in range(failure.depth - 1, -1, -1):
        name = <object> failure.path[i].name
        index = failure.path[i].index
        parts.append(name if index < 0 else f"{name}[{index}]")
    return ".".join(parts) or "itself"


cdef raise_read(str title, Reader *r):
    cdef dict words = {
        E_SHORT: "the bytes end inside it", E_VARINT: "a varint of more than 32 bits",
        E_LENGTH: "an impossible length", E_NULL: "null is not allowed",
        E_COUNT: "more elements declared than bytes are left",
        E_TAGS: f"more than {TAGS_MAX} tagged fields",
        E_BUDGET: "decoding it would take too much memory",
    }
    if r.failure.code not in words:
        PyErr_Clear()
        raise MemoryError(f"{title}: {path_of(&r.failure)}")
    raise ProtocolError(f"{title}: {path_of(&r.failure)}: {words[r.failure.code]} (byte {r.position})")


cdef raise_written(str title, Writer *w):
    cdef const Op *op = w.failure.op
    cdef str path = path_of(&w.failure)
    if w.failure.code == E_MEMORY:
        raise MemoryError(f"{title}: {path}")
    if op == NULL:
        wanted = title
    elif op.array and (w.failure.depth == 0 or w.failure.path[0].index < 0):
        wanted = "list"
    else:
        wanted = KIND_NAMES[op.kind] if op.kind != STRUCT else (<type> <object> op.plan.type).__qualname__
    got = w.failure.got.decode()
    cdef dict words = {
        E_TYPE: f"{wanted} expected, not {got}", E_RANGE: f"out of range for {wanted}",
        E_NULL: "null is not allowed", E_LENGTH: "too long", E_TEXT: "not encodable as UTF-8",
        E_VERSION: "this version cannot carry it", E_MISSING: "not set",
    }
    raise EncodeError(f"{title}: {path}: {words[w.failure.code]}")


@cython.final
cdef class Program:
    """Reads and writes one struct in one version."""

    cdef Plan plan
    cdef list kept
    cdef readonly str title
    cdef Py_ssize_t hint  # size of the last message written

    def __cinit__(self, str title, type cls, list ops, bint flexible):
        """ops: [(name, kind, array, compact, nullable, present, ignorable, tag, default_kind, default, Program)].

        tag: -1 for an ordinary field. Program: of a struct's fields, or None.
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
        self.plan.cost = cls.__basicsize__ + 32 + 56 * len([row for row in ops if row[8] == DEFAULT_LIST])
        self.hint = 256

    def __dealloc__(self):
        PyMem_Free(self.plan.ops)
        PyMem_Free(self.plan.tags)

    cdef int set_op(self, Op *op, type cls, tuple row) except -1:
        cdef Program inner
        (name, op.kind, op.array, op.compact, op.nullable, op.present, op.ignorable, tag, op.default_kind,
         default, child) = row
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
            op.size_min = WIDTHS[op.kind]
        else:
            op.size_min = 1 if op.compact else 2 if op.kind == STRING else 4
        return 0

    def decode(self, data, Py_ssize_t offset=0, int64_t budget=DECODED_BYTES_MAX):
        """The message at `offset` of `data` (bytes-like); bytes after it are left alone.

        budget: bytes of memory that the objects may take. Raises ProtocolError.
        """
        return self.decode_from(data, offset, budget)[0]

    def decode_from(self, data, Py_ssize_t offset=0, int64_t budget=DECODED_BYTES_MAX):
        """(message, position after it)."""
        cdef Reader r
        cdef const uint8_t[::1] view = data
        cdef PyObject *made
        if offset < 0 or offset > view.shape[0]:
            raise ProtocolError(f"{self.title}: offset {offset} of {view.shape[0]} bytes")
        r.data = &view[0] if view.shape[0] else NULL
        r.position = offset
        r.end = view.shape[0]
        r.budget = budget
        r.failure.code = OK
        r.failure.depth = 0
        made = read_struct(&r, &self.plan)
        if made == NULL:
            raise_read(self.title, &r)
        result = <object> made
        Py_DECREF(made)
        return result, r.position

    def encode(self, message, prefix=b""):
        """`prefix` (bytes-like) and the message. Raises EncodeError with the path of the field at fault."""
        cdef const uint8_t[::1] head = prefix
        return self.written(<PyObject *> message, &head[0] if head.shape[0] else NULL, head.shape[0], False)

    def response_frame(self, message, int32_t correlation_id, bint header_tags, bint size_prefix=True):
        """A whole response: its size, header v0 or v1 (`header_tags`) and body, in one buffer."""
        cdef uint8_t head[9]
        cdef Py_ssize_t start = 4 if size_prefix else 0
        put_u32(head + start, <uint32_t> correlation_id)
        head[start + 4] = 0
        return self.written(<PyObject *> message, head, start + 4 + header_tags, size_prefix)

    def request_frame(self, message, prefix):
        """A whole request: its size, `prefix` (the encoded header) and body, in one buffer."""
        cdef bytes head = bytes(4) + prefix
        return self.written(<PyObject *> message, <const uint8_t *> PyBytes_AS_STRING(head), len(head), True)

    cdef object written(self, PyObject *message, const uint8_t *head, Py_ssize_t size, bint sized):
        """head: bytes put in front; when `sized`, their first four become the size of what follows them."""
        cdef Writer w
        w.capacity = self.hint + size + 16
        w.failure.code = OK
        w.failure.depth = 0
        w.failure.op = NULL
        w.failure.got = ""
        w.bytes = raw_bytes(NULL, w.capacity)
        if w.bytes == NULL:
            raise MemoryError(self.title)
        w.data = <uint8_t *> raw_bytes_data(w.bytes)
        memcpy(w.data, head, size)
        w.size = size
        if not write_struct(&w, NULL, &self.plan, message):
            Py_XDECREF(w.bytes)
            raise_written(self.title, &w)
        if w.size - 4 > 0x7FFFFFFF:
            Py_DECREF(w.bytes)
            raise EncodeError(f"{self.title}: {w.size} bytes do not fit into one frame")
        if sized:
            put_u32(w.data, <uint32_t> (w.size - 4))
        # The next message of this kind is likely as long; a rare giant is not remembered.
        self.hint = min(w.size, 65536)
        if w.size != w.capacity and _PyBytes_Resize(&w.bytes, w.size) < 0:
            PyErr_Clear()
            raise MemoryError(self.title)
        result = <object> w.bytes
        Py_DECREF(w.bytes)
        return result


def request_header(const uint8_t[::1] frame, dict flexible_from):
    """(api key, version, correlation id, client id or None, position of the body) of a request.

    frame: the bytes after the size. flexible_from: api key -> first version with a flexible header;
    a key that is not in it is unknown. Raises ProtocolError.
    """
    cdef Reader r
    cdef Op client
    cdef uint32_t count, tag, size, i
    cdef PyObject *text
    cdef Py_ssize_t end = frame.shape[0]
    if end < 10:
        raise ProtocolError(f"RequestHeader: {end} bytes are too few")
    r.data = &frame[0]
    r.end = end
    r.budget = DECODED_BYTES_MAX
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


cdef bint skip_tags(Reader *r) noexcept:
    cdef uint32_t count, tag, size, i
    if not read_varint(r, &count):
        return False
    if count > TAGS_MAX:
        r.failure.code = E_TAGS
        return False
    for i in range(count):
        if not read_varint(r, &tag) or not read_varint(r, &size) or not need(r, size):
            return False
        r.position += size
    return True
