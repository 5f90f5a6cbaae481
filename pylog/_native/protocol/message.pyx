"""Message objects: classes whose fields are slots, and the positions of those slots.

Owns: the layout of each message class; the exceptions of the codec.
Invariants: a slot holds an owned reference or NULL; each object gets its own copy of a mutable
  default.
Source: Kafka's message schemas, for defaults.
"""

cimport cython
from cpython.bytes cimport PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.string cimport memcmp


class ProtocolError(ValueError):
    """Bytes that violate the protocol. The connection is closed."""


class EncodeError(ProtocolError):
    """A message that cannot be encoded: wrong type, null, out of range, unknown in this version."""


class AnswerTooLong(EncodeError):
    """A response that exceeds the size limit."""


@cython.final
cdef class Layout:
    """The positions and defaults of one class's fields."""

    def __cinit__(self, type cls, list fields):
        """fields: [(name, default, is_list, is_struct)]; for a struct the default is its Layout."""
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
        codec_callable(<PyTypeObject *> cls, &construct)
        for i in range(self.count):
            name, default, is_list, is_struct = fields[i]
            member = cls.__dict__[name]
            slot = codec_slot(<PyObject *> member)
            assert slot > 0, (cls, name)
            self.slots[i] = slot
            self.index[name] = slot
            if is_list:
                self.kinds[i] = DEFAULT_LIST
            else:
                self.kinds[i] = DEFAULT_STRUCT if is_struct else DEFAULT_SHARED
            self.kept.append(default)
            self.defaults[i] = <PyObject *> default

    def __dealloc__(self):
        PyMem_Free(self.slots)
        PyMem_Free(self.kinds)
        PyMem_Free(self.defaults)


cdef PyObject *fresh(uint8_t kind, PyObject *default) noexcept:
    """Return a new reference to a default, or NULL if out of memory."""
    if kind == DEFAULT_LIST:
        return codec_list(0)
    if kind == DEFAULT_STRUCT:
        return fresh_struct(default)
    return owned(default)


cdef PyObject *fresh_struct(PyObject *layout) noexcept:
    cdef PyObject *made = codec_alloc(<PyTypeObject *> (<Layout> layout).owner)
    if made == NULL:
        return NULL
    if not fill(made, layout):
        Py_DECREF(made)
        return NULL
    return made


cdef bint fill(PyObject *made, PyObject *layout_object) noexcept:
    """Set all unset fields to their defaults. Return False if out of memory."""
    cdef Layout layout = <Layout> layout_object
    cdef Py_ssize_t i
    cdef PyObject *value
    for i in range(layout.count):
        if codec_get(made, layout.slots[i]) != NULL:
            continue
        value = fresh(layout.kinds[i], layout.defaults[i])
        if value == NULL:
            return False
        codec_put(made, layout.slots[i], value)
    return True


cdef int assign(Layout layout, PyObject *made, PyObject *name, PyObject *value) except -1:
    cdef PyObject *slot = PyDict_GetItem(layout.index, <object> name)
    if slot == NULL:
        raise TypeError(f"{layout.owner.__qualname__} has no field {<object> name!r}")
    codec_put(made, <Py_ssize_t> <object> slot, owned(value))
    return 0


cdef PyObject *construct(
    PyObject *cls, PyObject **arguments, size_t count, PyObject *names
) except NULL:
    """Construct a message like __init__, but without a dict for the keywords."""
    cdef Layout layout = <Layout> (<object> cls).__layout__
    cdef PyObject *made
    cdef Py_ssize_t i
    if PyVectorcall_NARGS(count):
        raise TypeError(f"{layout.owner.__qualname__} takes fields by name only")
    made = codec_alloc(<PyTypeObject *> cls)
    if made == NULL:
        raise MemoryError()
    try:
        if names != NULL:
            for i in range(Py_SIZE(names)):
                assign(layout, made, codec_item(names, i), arguments[i])
        if not fill(made, <PyObject *> layout):
            raise MemoryError()
    except BaseException:
        Py_DECREF(made)
        raise
    return made


cdef class Struct:
    """Base of all message classes: fields as slots, keyword constructor, equality by value.

    A message is a tree without cycles, so the cycle collector does not track it.
    """

    def __init__(self, **fields):
        cdef Layout layout = <Layout> type(self).__layout__
        codec_untrack(<PyObject *> self)
        for name, value in fields.items():
            assign(layout, <PyObject *> self, <PyObject *> name, <PyObject *> value)
        if not fill(<PyObject *> self, <PyObject *> layout):
            raise MemoryError()

    def __eq__(self, other):
        if type(self) is not type(other):
            return NotImplemented
        names = (<Layout> self.__layout__).names
        return all([getattr(self, name) == getattr(other, name) for name in names])

    def __repr__(self):
        names = (<Layout> self.__layout__).names
        inner = ", ".join([f"{name}={getattr(self, name, '?')!r}" for name in names])
        return f"{type(self).__qualname__}({inner})"

    def __copy__(self):
        names = (<Layout> self.__layout__).names
        return type(self)(**{name: getattr(self, name) for name in names})

    def __reduce__(self):
        raise TypeError("message objects are encoded, not pickled")


cdef bint same(uint8_t default_kind, PyObject *default, PyObject *value) noexcept:
    """Return True if the value equals its default. Compares built-in types only, so it cannot run
    user code.
    """
    cdef int overflow = 0
    cdef Py_ssize_t a = 0, b = 0
    cdef const char *x
    cdef const char *y
    if default_kind == DEFAULT_LIST:
        return (PyList_Check(value) or PyTuple_Check(value)) and Py_SIZE(value) == 0
    if default_kind == DEFAULT_STRUCT:
        return same_struct(default, value)
    if value == default:
        return True
    if default == Py_None:
        return False
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


cdef bint same_struct(PyObject *default, PyObject *value) noexcept:
    cdef Layout layout = <Layout> default
    cdef PyObject *field
    cdef Py_ssize_t i
    if not PyObject_TypeCheck(value, <PyTypeObject *> layout.owner):
        return False
    for i in range(layout.count):
        field = codec_get(value, layout.slots[i])
        if field == NULL or not same(layout.kinds[i], layout.defaults[i], field):
            return False
    return True
