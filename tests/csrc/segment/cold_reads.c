/* Reads of data outside the page cache, and its removal from the cache after the reader has
 * moved on. The scene defines which bytes are resident. Usage: cold_reads DIRECTORY SCENE. Exits
 * with 0, or with 1 and a line on stderr. Linked with --wrap of syscall and posix_fadvise. */
#include <stdarg.h>
#include <sys/syscall.h>

#include "log/single_log.h"

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

enum { PAGE = 4096, APPENDED = 120 };

/* Bytes in [from, to) are resident, unless the kernel cannot report it. */
static struct {
    int64_t from, to;
    bool silent;
} resident;
/* Bytes dropped from the cache: their number, the first one, and the end of the last call. */
static int64_t forgotten, forgotten_from, forgotten_to;

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
int __wrap_posix_fadvise(int fd, off_t at, off_t len, int advice);

long __wrap_syscall(long number, ...) {
    va_list list;
    long a[6];
    va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    if (number != SYS_cachestat) return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    const uint64_t *range = (const uint64_t *)a[1];
    int64_t from = (int64_t)range[0], to = from + (int64_t)range[1];
    if (from < resident.from) from = resident.from;
    if (to > resident.to) to = resident.to;
    memset((void *)a[2], 0, 5 * sizeof(uint64_t));
    if (from < to) *(uint64_t *)a[2] = (uint64_t)(to - from + PAGE - 1) / PAGE;
    if (resident.silent) errno = ENOSYS;
    return resident.silent ? -1 : 0;
}

int __wrap_posix_fadvise(int fd, off_t at, off_t len, int advice) {
    CHECK(fd >= 0 && len > 0 && advice == POSIX_FADV_DONTNEED);
    if (forgotten == 0 || at < forgotten_from) forgotten_from = at;
    if (at + len > forgotten_to) forgotten_to = at + len;
    forgotten += len;
    return 0;
}

/* Append without preallocation by a worker. */
static void append_some(void) {
    fill(1, 0);
    atomic_store(&one->view.segments[0]->allocated, INT64_MAX);
    for (int i = 1; i < APPENDED; i++)
        CHECK(append((struct played_batch){.time = i, .value_bytes = 4000}) == 0);
}

/* Read the next range at `*offset`; return true if part of it came from disk. */
static bool read_on(int64_t *offset, int32_t bytes_max) {
    struct log_range range;
    CHECK(log_read(one,
                   &(struct log_read_request){
                       .offset = *offset, .bytes_max = bytes_max, .at_least_one = true},
                   &range) == 0 &&
          range.length > 0);
    bool cold = cold_read(&dir->cold, &range);
    *offset = range.next_offset;
    log_range_release(&range);
    return cold;
}

/* ---- scenes ---- */

static void forget_what_was_read_in(void) {
    int64_t offset = 0;
    open_one(scene_config(1 << 26, 4096));
    append_some();
    while (offset < APPENDED) CHECK(read_on(&offset, 100000));
    CHECK(atomic_load(&dir->cold.live) == 1 && forgotten == 0);
    cold_sweep(&dir->cold, true);
    CHECK(atomic_load(&dir->cold.live) == 0 && forgotten == log_size_bytes(one));
    CHECK(forgotten_from == 0 && forgotten_to == log_size_bytes(one));
    let_go();
}

/* The next range starts with a read from disk, never from the cache only. */
static void leave_its_next_range_to_a_worker(void) {
    uint8_t bytes[APPENDED * PAGE];
    int64_t offset = 0;
    struct log_range range;
    open_one(scene_config(1 << 26, 4096));
    append_some();
    CHECK(read_on(&offset, 100000));
    CHECK(log_read(one,
                   &(struct log_read_request){
                       .offset = offset, .bytes_max = 100000, .at_least_one = true},
                   &range) == 0);
    CHECK(range.length <= (int32_t)sizeof bytes && !log_range_read_cached(&range, bytes));
    log_range_release(&range);
    cold_sweep(&dir->cold, true);
    let_go();
}

/* Records appended during the read stay in the cache for tailing readers. */
static void keep_what_is_appended(void) {
    int64_t offset = 0;
    open_one(scene_config(1 << 26, 4096));
    append_some();
    int64_t end = log_size_bytes(one);
    CHECK(read_on(&offset, 100000));
    resident.from = end;
    resident.to = INT64_MAX;
    append_some();
    while (offset < APPENDED) CHECK(read_on(&offset, 100000));
    while (offset < 2 * APPENDED) CHECK(!read_on(&offset, 100000));
    cold_sweep(&dir->cold, true);
    CHECK(atomic_load(&dir->cold.live) == 0);
    CHECK(forgotten_from == 0 && forgotten_to == end && forgotten == end);
    let_go();
}

static void keep_what_was_resident(void) {
    int64_t offset = 0;
    open_one(scene_config(1 << 26, 4096));
    append_some();
    resident.to = 128 << 10;
    while (offset < APPENDED) (void)read_on(&offset, 50000);
    cold_sweep(&dir->cold, true);
    CHECK(forgotten_from == 128 << 10 && forgotten_to == log_size_bytes(one));
    forgotten = forgotten_to = 0;
    /* The opposite case: the reader reaches resident data. */
    resident.from = 256 << 10;
    resident.to = INT64_MAX;
    offset = 0;
    while (offset < APPENDED) (void)read_on(&offset, 50000);
    cold_sweep(&dir->cold, true);
    CHECK(forgotten == 256 << 10 && forgotten_to == 256 << 10);
    /* All of it is resident: no disk reads. */
    resident.from = forgotten = offset = 0;
    while (offset < APPENDED) CHECK(!read_on(&offset, 50000));
    CHECK(atomic_load(&dir->cold.live) == 0 && forgotten == 0);
    let_go();
}

static void forget_nothing_blindly(void) {
    int64_t offset = 0;
    resident.silent = true;
    open_one(scene_config(1 << 26, 4096));
    append_some();
    while (offset < APPENDED) CHECK(read_on(&offset, 100000));
    CHECK(atomic_load(&dir->cold.live) == 0);
    cold_sweep(&dir->cold, true);
    CHECK(forgotten == 0);
    let_go();
}

/* A reader that finds no free stream keeps no reference to the segment. */
static void read_with_all_streams_busy(void) {
    int64_t offset = 0;
    open_one(scene_config(1 << 26, 4096));
    append_some();
    struct segment *s = one->view.segments[0];
    uint32_t references = atomic_load(&s->references);
    for (int i = 0; i < COLD_STREAMS_MAX; i++) dir->cold.streams[i].busy = true;
    while (offset < APPENDED) CHECK(read_on(&offset, 100000));
    CHECK(atomic_load(&s->references) == references && atomic_load(&dir->cold.live) == 0);
    CHECK(forgotten == 0);
    for (int i = 0; i < COLD_STREAMS_MAX; i++) dir->cold.streams[i].busy = false;
    let_go();
}

int main(int argc, char **argv) {
    static const struct scene scenes[] = {{"read", forget_what_was_read_in},
                                          {"next", leave_its_next_range_to_a_worker},
                                          {"appended", keep_what_is_appended},
                                          {"resident", keep_what_was_resident},
                                          {"silent", forget_nothing_blindly},
                                          {"busy", read_with_all_streams_busy}};
    return play_scenes(argc, argv, scenes, sizeof scenes / sizeof *scenes, true);
}
