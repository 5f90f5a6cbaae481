"""Splits a long request: each piece is a separate request with a few of its elements.

Owns: the table of keys seen, its position in the request.
Invariants: the pieces contain every element once, in order, except repeats; no piece is created
  unless the request is complete and valid to its last element; repeats are found by hashing the
  key's bytes: two different keys of a request collide with a probability of about 1 in 2^60.
Source: Kafka's message schemas; protocol.elements lists the arrays and the keys of their elements.
"""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

import os

from pylog._native.protocol.codec cimport Program
from pylog._native.protocol.decode cimport (
    Reader, raise_read, read_count, read_length, read_one, read_tags, read_value, skip_one,
    skip_tags, skip_value,
)
from pylog._native.protocol.message cimport (
    E_ELEMENTS, E_LENGTH, E_MEMORY, E_SHORT, OK, STRING, STRING_MAX, STRUCT, Op, Plan, Py_DECREF,
    codec_alloc, codec_list, codec_put, codec_width, fresh, owned, step,
)

KEEP, ONCE, TWICE = range(3)

cdef enum:
    KEEP_ALL, GIVE_ONCE, GIVE_TWICE
    LEVELS_MAX = 3
    TABLE_SLOTS_MIN = 1024
    REPEATED = 1
    GIVEN = 2
    FLAGS = 3

cdef uint64_t SEED = int.from_bytes(os.urandom(8), "little")


cdef struct Level:
    Op array  # the array, as a field of the struct that holds it
    Op element  # one of its elements
    Py_ssize_t inner  # op index of the next level's array in the element, -1 at the last level
    uint64_t keys  # bit i: the element's op i is part of its key
    Py_ssize_t left   # elements not read yet
    uint64_t hash  # of the keys down to this level's current element
    bint is_open  # an element has been started
    bint is_null  # the element's inner array is null


@cython.final
cdef class Pieces:
    """Reads one request in pieces.

    path: (array, key fields of its elements) from the message down; elements of an array of
    plain values are their own keys. repeats: KEEP returns every element, ONCE the first with each
    key, TWICE the first twice in a row, for a handler that rejects repeats. elements_max: limit of
    elements at the end of `path`. budget, inner_max: limits of one piece's memory and of its other
    elements.
    """

    cdef Program program
    cdef const uint8_t[::1] view
    cdef Reader r
    cdef Level[LEVELS_MAX] levels
    cdef int depth, repeats
    cdef int64_t elements_max, budget, inner_max
    cdef object template
    cdef list holders  # the current element of each level above the last
    cdef Py_ssize_t room
    cdef bint begun
    cdef readonly Py_ssize_t leaves, repeated
    cdef uint64_t *table
    cdef uint64_t slots, taken

    def __cinit__(self, Program program, bytes body, tuple path, int repeats,
                  int64_t elements_max, int64_t budget, int64_t inner_max):
        cdef const Plan *plan = &program.plan
        cdef Level *level
        assert 0 < len(path) <= LEVELS_MAX, path
        self.program = program
        self.view = body
        self.r.data = &self.view[0] if self.view.shape[0] else NULL
        self.r.end = self.view.shape[0]
        self.depth = len(path)
        self.repeats = repeats
        self.elements_max, self.budget, self.inner_max = elements_max, budget, inner_max
        self.holders = [None] * LEVELS_MAX
        for number, (name, keys) in enumerate(path):
            level = &self.levels[number]
            place = op_index(plan, name)
            level.array = plan.ops[place]
            if number:
                self.levels[number - 1].inner = place
                # Fields after the inner array would be missing in the element's first piece.
                for i in range(place + 1, plan.count):
                    assert not plan.ops[i].present, (program.title, name)
            level.element = level.array
            level.element.array = False
            level.element.nullable = False
            level.inner = -1
            plan = level.array.plan
            for key in keys:
                level.keys |= 1ULL << <int> op_index(plan, key)

    def __dealloc__(self):
        free(self.table)

    def survey(self):
        """Validate the whole request, without the GIL, and start. Return False if the array is
        null.

        Call it once, before next(). Raises ProtocolError.
        """
        cdef Py_ssize_t first
        cdef bint good
        cdef const Plan *plan = &self.program.plan
        self.limit()
        top = self.made(plan)
        if not self.read_fields(plan, <PyObject *> top, self.levels[0].array.slot, False):
            raise_read(self.program.title, &self.r)
        first = self.r.position
        with nogil:
            good = self.survey_array(0, SEED)
        if not good:
            raise_read(self.program.title, &self.r)
        if not self.read_fields(plan, <PyObject *> top, self.levels[0].array.slot, True):
            raise_read(self.program.title, &self.r)
        self.r.position = first
        self.levels[0].left = read_count(&self.r, &self.levels[0].array)
        self.template = top
        return self.levels[0].left >= 0

    def next(self, Py_ssize_t count):
        """Return a request with the next `count` elements, repeats counted once, or None."""
        cdef object part
        cdef list elements = []
        assert count > 0, count
        if self.begun and not self.levels[0].left:
            return None
        # Skipped repeats can leave a piece empty, but an empty array may mean "all".
        while not elements and self.levels[0].left:
            self.limit()
            self.room = count
            elements = self.filled(0)
        if self.begun and not elements:
            return None
        self.begun = True
        part = copied(self.template)
        put(part, self.levels[0].array.slot, elements)
        return part

    # ---- the survey ------------------------------------------------------------------------------

    cdef bint survey_array(self, int number, uint64_t hash_) noexcept nogil:
        """Skip over the array of a level and record its elements' keys."""
        cdef Level *level = &self.levels[number]
        cdef Py_ssize_t _, count = read_count(&self.r, &level.array)
        if count < 0:
            return count == -1 and (number == 0 or self.note(hash_))
        if count == 0 and number and not self.note(hash_):
            return False
        for _ in range(count):
            if not self.survey_element(number, hash_):
                return False
        return True

    cdef bint survey_element(self, int number, uint64_t hash_) noexcept nogil:
        cdef Level *level = &self.levels[number]
        cdef const Plan *plan = level.element.plan
        cdef Py_ssize_t i
        if level.element.kind != STRUCT:
            return self.skip_key(&level.element, &hash_) and self.note(hash_)
        for i in range(plan.count):
            if not plan.ops[i].present:
                continue
            if i == level.inner:
                if not self.survey_array(number + 1, hash_):
                    return False
            elif level.keys >> i & 1:
                if not self.skip_key(&plan.ops[i], &hash_):
                    return False
            elif not skip_value(&self.r, &plan.ops[i]):
                return False
        if plan.flexible and not skip_tags(&self.r):
            return False
        return level.inner >= 0 or self.note(hash_)

    cdef bint skip_key(self, const Op *op, uint64_t *hash_) noexcept nogil:
        """Skip over a key field and hash it. The hash depends on the value, not its encoding."""
        cdef Py_ssize_t size
        if op.kind < STRING:
            size = codec_width(op.kind)
            if not skip_one(&self.r, op):
                return False
        else:
            size = read_length(&self.r, op, 2)
            if size < -1:
                return False
            if op.kind == STRING and size > STRING_MAX:
                self.r.failure.code = E_LENGTH
                return False
            if size > self.r.end - self.r.position:
                self.r.failure.code = E_SHORT
                return False
            self.r.position += size if size > 0 else 0
        hash_[0] = mixed(hash_[0], self.r.data + self.r.position - (size if size > 0 else 0), size)
        return True

    cdef bint note(self, uint64_t hash_) noexcept nogil:
        """Count an element at the end of the path and record its key."""
        cdef uint64_t *slot
        self.leaves += 1
        if self.leaves > self.elements_max:
            self.r.failure.code = E_ELEMENTS
            return False
        if self.repeats == KEEP_ALL:
            return True
        if 4 * (self.taken + 1) > 3 * self.slots and not self.grow():
            self.r.failure.code = E_MEMORY
            return False
        slot = self.slot_of(hash_)
        if slot[0]:
            slot[0] |= REPEATED
            self.repeated += 1
        else:
            slot[0] = named(hash_)
            self.taken += 1
        return True

    cdef uint64_t *slot_of(self, uint64_t hash_) noexcept nogil:
        cdef uint64_t name = named(hash_)
        cdef uint64_t at = name >> 2 & (self.slots - 1)
        while self.table[at] and self.table[at] & ~<uint64_t> FLAGS != name:
            at = at + 1 & (self.slots - 1)
        return &self.table[at]

    cdef bint grow(self) noexcept nogil:
        cdef uint64_t *old = self.table
        cdef uint64_t count = self.slots, i
        self.slots = 2 * count if count else TABLE_SLOTS_MIN
        self.table = <uint64_t *> calloc(self.slots, sizeof(uint64_t))
        if self.table == NULL:
            self.table = old
            self.slots = count
            return False
        for i in range(count):
            if old[i]:
                self.slot_of(old[i])[0] = old[i]
        free(old)
        return True

    # ---- pieces ----------------------------------------------------------------------------------

    cdef int copies(self, uint64_t hash_) noexcept:
        """Return how many times to return an element with this key now."""
        cdef uint64_t *slot
        if not self.repeated:
            return 1
        slot = self.slot_of(hash_)
        if not slot[0] & REPEATED:
            return 1
        if slot[0] & GIVEN:
            return 0
        slot[0] |= GIVEN
        return 2 if self.repeats == GIVE_TWICE else 1

    cdef list filled(self, int number):
        """Return the next elements of a level's array, while there is room."""
        cdef Level *level = &self.levels[number]
        cdef list out = []
        while level.left > 0 and self.room > 0:
            if level.inner < 0:
                level.left -= 1
                self.take_leaf(number, out)
            else:
                self.take_holder(number, out)
        return out

    cdef int take_leaf(self, int number, list out) except -1:
        cdef Level *level = &self.levels[number]
        cdef Py_ssize_t first = self.r.position
        cdef PyObject *value
        cdef int _, count = 1
        cdef uint64_t hash_ = self.levels[number - 1].hash if number else SEED
        self.room -= 1
        if self.repeated:
            if not self.hashed_leaf(number, &hash_):
                raise_read(self.program.title, &self.r)
            count = self.copies(hash_)
        for _ in range(count):
            self.r.position = first
            value = read_one(&self.r, &level.element)
            if value == NULL:
                step(&self.r.failure, &level.array, -1)
                raise_read(self.program.title, &self.r)
            out.append(<object> value)
            Py_DECREF(value)
        return 0

    cdef bint hashed_leaf(self, int number, uint64_t *hash_) noexcept:
        """Skip over an element at the end of the path and hash its key."""
        cdef Level *level = &self.levels[number]
        cdef const Plan *plan = level.element.plan
        cdef Py_ssize_t i
        if level.element.kind != STRUCT:
            return self.skip_key(&level.element, hash_)
        for i in range(plan.count):
            if not plan.ops[i].present:
                continue
            if level.keys >> i & 1:
                if not self.skip_key(&plan.ops[i], hash_):
                    return False
            elif not skip_value(&self.r, &plan.ops[i]):
                return False
        return not plan.flexible or skip_tags(&self.r)

    cdef int take_holder(self, int number, list out) except -1:
        """Append a copy of the level's current element with some of the elements below it."""
        cdef Level *level = &self.levels[number]
        cdef Level *below = &self.levels[number + 1]
        cdef const Plan *plan = level.element.plan
        cdef list elements
        cdef bint is_empty = False
        if not level.is_open:
            self.open(number)
            is_empty = below.left == 0
        elements = self.filled(number + 1)
        part = copied(self.holders[number])
        if level.is_null:
            put(part, below.array.slot, None)
        else:
            put(part, below.array.slot, elements)
        if not below.left:
            if plan.flexible and not read_tags(&self.r, plan, <PyObject *> part):
                raise_read(self.program.title, &self.r)
            level.is_open = False
            level.left -= 1
        if is_empty:
            self.room -= 1
            out.extend([part] * self.copies(level.hash))
        elif elements:
            out.append(part)
        return 0

    cdef int open(self, int number) except -1:
        """Read an element up to its inner array."""
        cdef Level *level = &self.levels[number]
        cdef Level *below = &self.levels[number + 1]
        cdef const Plan *plan = level.element.plan
        cdef Py_ssize_t first = self.r.position, i
        made = self.made(plan)
        if not self.read_fields(plan, <PyObject *> made, below.array.slot, False):
            raise_read(self.program.title, &self.r)
        level.hash = self.levels[number - 1].hash if number else SEED
        if self.repeated:
            self.r.position = first
            for i in range(level.inner):
                if plan.ops[i].present and not (
                        self.skip_key(&plan.ops[i], &level.hash) if level.keys >> i & 1
                        else skip_value(&self.r, &plan.ops[i])):
                    raise_read(self.program.title, &self.r)
        below.left = read_count(&self.r, &below.array)
        if below.left < -1:
            raise_read(self.program.title, &self.r)
        level.is_null = below.left < 0
        below.left = max(below.left, 0)
        level.is_open = True
        self.holders[number] = made
        return 0

    cdef int limit(self) except -1:
        self.r.budget = self.budget
        self.r.elements = self.inner_max
        self.r.failure.code = OK
        self.r.failure.depth = 0
        return 0

    cdef object made(self, const Plan *plan):
        """Return an empty message. Its fields must be set before Python code can access it."""
        cdef PyObject *raw = codec_alloc(plan.type)
        if raw == NULL:
            raise MemoryError(self.program.title)
        message = <object> raw
        Py_DECREF(raw)
        return message

    cdef bint read_fields(
        self, const Plan *plan, PyObject *made, Py_ssize_t slot, bint behind
    ) noexcept:
        """Read the fields before the array in `slot` and set defaults for tagged fields, or read
        the fields after the array.
        """
        cdef Py_ssize_t i
        cdef const Op *op
        cdef PyObject *value
        cdef bint passed = False
        for i in range(plan.count):
            op = &plan.ops[i]
            if op.slot == slot:
                passed = True
                if not behind:
                    codec_put(made, slot, codec_list(0))
                continue
            if op.present and passed != behind:
                continue
            value = read_value(&self.r, op) if op.present else fresh(op.default_kind, op.default)
            if value == NULL:
                step(&self.r.failure, op, -1)
                return False
            codec_put(made, op.slot, value)
        if behind:
            return not plan.flexible or read_tags(&self.r, plan, made)
        for i in range(plan.tag_count):
            value = fresh(plan.tags[i].default_kind, plan.tags[i].default)
            if value == NULL:
                return False
            codec_put(made, plan.tags[i].slot, value)
        return True


cdef inline uint64_t named(uint64_t hash_) noexcept nogil:
    """Return the key's table entry: never 0, its two low bits clear."""
    cdef uint64_t name = hash_ & ~<uint64_t> FLAGS
    return name if name else FLAGS + 1


cdef uint64_t mixed(uint64_t hash_, const uint8_t *bytes_, Py_ssize_t count) noexcept nogil:
    """Return `hash_` extended by some bytes; count: -1 for null."""
    cdef uint64_t word
    cdef Py_ssize_t take
    hash_ = (hash_ ^ <uint64_t> (count + 2)) * <uint64_t> 0x9E3779B97F4A7C15
    hash_ ^= hash_ >> 29
    while count > 0:
        word = 0
        take = count if count < 8 else 8
        memcpy(&word, bytes_, take)
        hash_ = (hash_ ^ word) * <uint64_t> 0xBF58476D1CE4E5B9
        hash_ ^= hash_ >> 32
        bytes_ += take
        count -= take
    hash_ *= <uint64_t> 0x94D049BB133111EB
    return hash_ ^ hash_ >> 31


cdef Py_ssize_t op_index(const Plan *plan, name) except -1:
    cdef Py_ssize_t i
    for i in range(plan.count):
        if <object> plan.ops[i].name == name:
            return i
    raise KeyError(name)


cdef object copied(message):
    return message.__copy__()


cdef int put(message, Py_ssize_t slot, value) except -1:
    codec_put(<PyObject *> message, slot, owned(<PyObject *> value))
    return 0
