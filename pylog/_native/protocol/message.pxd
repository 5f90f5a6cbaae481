"""Declarations shared by the modules of the codec: message objects, and the ops that process them.
"""

from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    #include <stddef.h>
    #include "structmember.h"
    /* Returns the offset of a slot in its object, or -1 if the attribute is not a slot. */
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
    /* Calls of the class run `construct`. Its subclasses keep the normal call. */
    typedef PyObject *(*codec_constructor)(PyObject *, PyObject **, size_t, PyObject *);
    static inline void codec_callable(PyTypeObject *type, codec_constructor construct)
    {
        type->tp_vectorcall = (vectorcallfunc)construct;
    }
    /* A message is a tree without cycles: tracking it would only cost collector time. */
    static inline PyObject *codec_untrack(PyObject *object)
    {
        if (object != NULL && PyType_IS_GC(Py_TYPE(object))) PyObject_GC_UnTrack(object);
        return object;
    }
    static inline PyObject *codec_alloc(PyTypeObject *type)
    {
        return codec_untrack(type->tp_alloc(type, 0));
    }
    static inline PyObject *codec_list(Py_ssize_t count)
    {
        return codec_untrack(PyList_New(count));
    }
    static inline void codec_list_put(PyObject *list, Py_ssize_t place, PyObject *owned)
    {
        PyList_SET_ITEM(list, place, owned);
    }
    static inline PyObject *codec_item(PyObject *sequence, Py_ssize_t place)
    {
        return PyList_Check(sequence) ? PyList_GET_ITEM(sequence, place)
                                      : PyTuple_GET_ITEM(sequence, place);
    }
    /* Bytes of a fixed-size value, by kind. */
    static inline Py_ssize_t codec_width(uint8_t kind)
    {
        static const uint8_t widths[] = {1, 1, 2, 4, 8, 2, 4, 8, 16};
        return widths[kind];
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
    void codec_callable(PyTypeObject *type, PyObject *(*construct)(
        PyObject *, PyObject **, size_t, PyObject *) except NULL) noexcept
    PyObject *codec_get(PyObject *object, Py_ssize_t slot) noexcept
    void codec_put(PyObject *object, Py_ssize_t slot, PyObject *owned) noexcept
    PyObject *codec_alloc(PyTypeObject *type) noexcept
    PyObject *codec_untrack(PyObject *object) noexcept
    PyObject *codec_list(Py_ssize_t count) noexcept
    void codec_list_put(PyObject *list, Py_ssize_t place, PyObject *owned) noexcept
    PyObject *codec_item(PyObject *sequence, Py_ssize_t place) noexcept
    Py_ssize_t codec_width(uint8_t kind) noexcept nogil
    uint16_t codec_u16(const uint8_t *p) noexcept nogil
    uint32_t codec_u32(const uint8_t *p) noexcept nogil
    uint64_t codec_u64(const uint8_t *p) noexcept nogil

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
    Py_ssize_t PyVectorcall_NARGS(size_t)
    void PyErr_Clear()
    PyObject *PyErr_Occurred()
    PyObject *raw_long "PyLong_FromLongLong"(long long)
    long long PyLong_AsLongLongAndOverflow(PyObject *, int *)
    PyObject *raw_float "PyFloat_FromDouble"(double)
    double PyFloat_AS_DOUBLE(PyObject *)
    PyObject *raw_text "PyUnicode_DecodeUTF8"(const char *, Py_ssize_t, const char *)
    const char *PyUnicode_AsUTF8AndSize(PyObject *, Py_ssize_t *)
    PyObject *raw_bytes "PyBytes_FromStringAndSize"(const char *, Py_ssize_t)
    int _PyBytes_Resize(PyObject **, Py_ssize_t)
    char *raw_bytes_data "PyBytes_AS_STRING"(PyObject *)

cdef enum:
    BOOL, INT8, INT16, INT32, INT64, UINT16, UINT32, FLOAT64, UUID, STRING, BYTES, STRUCT

cdef enum:
    DEFAULT_SHARED, DEFAULT_LIST, DEFAULT_STRUCT

cdef enum:
    OK, E_SHORT, E_VARINT, E_LENGTH, E_NULL, E_COUNT, E_TAGS, E_BUDGET, E_MEMORY, E_TYPE
    E_RANGE, E_VERSION, E_TEXT, E_MISSING, E_ELEMENTS, E_TOO_LONG

cdef enum:
    PATH_MAX = 16
    TAGS_MAX = 1000
    STRING_MAX = 32767

cdef struct Op:
    uint8_t kind
    bint array
    bint compact
    bint nullable
    bint present  # False: not in this version
    bint ignorable
    uint8_t default_kind
    uint32_t tag
    Py_ssize_t slot
    Py_ssize_t size_min  # minimum bytes of one element (array) or of the value
    Plan *plan  # of the struct, or NULL
    PyObject *default  # borrowed from Program.kept: the value, or a struct's Layout
    PyObject *name

cdef struct Plan:
    PyTypeObject *type
    Op *ops
    Py_ssize_t count
    Op *tags  # in ascending tag order
    Py_ssize_t tag_count
    bint flexible
    Py_ssize_t size_min
    Py_ssize_t cost

cdef struct Step:
    PyObject *name  # borrowed from a program
    Py_ssize_t index  # -1: not an array

cdef struct Failure:
    int code
    const char *got
    const Op *op
    int depth
    Step path[PATH_MAX]


cdef class Layout:
    cdef Py_ssize_t count
    cdef Py_ssize_t *slots
    cdef uint8_t *kinds
    cdef PyObject **defaults  # borrowed from `kept`
    cdef readonly tuple names
    cdef dict index  # name -> slot
    cdef list kept
    cdef type owner


cdef class Struct:
    pass


cdef PyObject *fresh(uint8_t kind, PyObject *default) noexcept
cdef bint same(uint8_t default_kind, PyObject *default, PyObject *value) noexcept


cdef inline PyObject *owned(PyObject *thing) noexcept:
    Py_INCREF(thing)
    return thing


cdef inline void step(Failure *failure, const Op *op, Py_ssize_t index) noexcept:
    """Record one level of the failure's path; called from the innermost level outwards."""
    if failure.depth < PATH_MAX:
        failure.path[failure.depth].name = op.name
        failure.path[failure.depth].index = index
        failure.depth += 1
