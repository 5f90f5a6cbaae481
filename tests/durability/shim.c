/* Preloaded into a broker under test: records its file system calls and injects failures.
 *
 * SHIM_ROOT: only files below this folder are considered. SHIM_RECORD: file for the events, in
 * the order in which they took effect, of the process that creates the file but not of its
 * children. A sync is two events, because it covers all operations that completed before it
 * began. SHIM_FAULTS: a file that may appear at any time with lines "KIND SUBSTRING ERRNO".
 * Calls of that kind (sync, syncfs, write, read, open, name, any) on paths that contain
 * SUBSTRING then fail with ERRNO; syncs block while there is a line "hold". An event is a struct
 * event, then its path, then (for writes) the bytes.
 *
 * A test can also load it instead of preloading it. It then is a disk for logs in the test's own
 * process: shim_begin sets what is recorded where, shim_table is the disk, shim_arm makes a
 * later call fail or makes it the last one with any effect. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <linux/falloc.h>
#include <unistd.h>

#include "os/disk.h"

enum { WRITE = 1, TRUNCATE, ALLOCATE, SYNC_BEGIN, SYNC_END, CREATE, RENAME, UNLINK, MKDIR, MAP };
struct event {
    uint64_t time_ns, inode, token;
    int64_t position, size;
    uint32_t path_len, data_len;
    uint32_t type, flags; /* flags: 1 written through O_DSYNC or O_SYNC, 2 a directory, 4 all */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int record_fd = -2;
static uint64_t next_token = 1;
static char own_root[PATH_MAX];

/* The armed fault, under the lock. calls_left counts down to it. */
enum { NOTHING, FAIL_ONCE, FULL, DIE, SHORT };
static int armed, armed_code;
static int64_t calls_left;
static int happened;

/* ---- own numbers of files, because file systems reuse inodes ---- */

enum { BUCKETS = 1 << 12 };
static struct known {
    struct known *next;
    uint64_t inode, id;
} *known[BUCKETS];
static uint64_t next_id = 1;

/* Caller holds the lock. */
static uint64_t id_of(uint64_t inode, int fresh) {
    struct known *k = known[inode % BUCKETS];
    while (k != NULL && k->inode != inode) k = k->next;
    if (k == NULL) {
        if ((k = malloc(sizeof *k)) == NULL) abort();
        *k = (struct known){known[inode % BUCKETS], inode, 0};
        known[inode % BUCKETS] = k;
    }
    if (k->id == 0 || fresh) k->id = next_id++;
    return k->id;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void raw_write(int fd, const void *data, size_t size) {
    const char *at = data;
    while (size > 0) {
        ssize_t n = syscall(SYS_write, fd, at, size);
        if (n <= 0) return;
        at += n;
        size -= (size_t)n;
    }
}

static int below_root(const char *path) {
    const char *root = own_root[0] != 0 ? own_root : getenv("SHIM_ROOT");
    if (root == NULL) return 0;
    size_t n = strlen(root);
    return strncmp(path, root, n) == 0 && (path[n] == '/' || path[n] == 0);
}

/* Write the path of an open file and return 1 if it is below the root. */
static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return below_root(path);
}

static int absolute(int dir, const char *path, char *out) {
    if (path[0] == '/') {
        snprintf(out, PATH_MAX, "%s", path);
    } else {
        char base[PATH_MAX];
        if (dir == AT_FDCWD) {
            if (getcwd(base, sizeof base) == NULL) return 0;
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
            ssize_t n = readlink(link, base, sizeof base - 1);
            if (n <= 0) return 0;
            base[n] = 0;
        }
        if (snprintf(out, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return 0;
    }
    return below_root(out);
}

/* Caller holds the lock. */
static uint64_t id_at(const char *path, int fresh) {
    struct stat st;
    return stat(path, &st) == 0 ? id_of((uint64_t)st.st_ino, fresh) : 0;
}

/* Caller holds the lock. */
static void note(struct event e, const char *path, const struct iovec *data, int data_count) {
    if (record_fd == -2) {
        const char *name = getenv("SHIM_RECORD");
        /* For one process only: a child numbers its files differently. */
        int flags = O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC;
        record_fd = name == NULL ? -1 : (int)syscall(SYS_openat, AT_FDCWD, name, flags, 0644);
    }
    if (record_fd < 0) return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    e.time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    e.path_len = (uint32_t)strlen(path);
    size_t left = e.data_len;
    size_t total = sizeof e + e.path_len + left;
    char *out = malloc(total);
    if (out == NULL) abort();
    memcpy(out, &e, sizeof e);
    memcpy(out + sizeof e, path, e.path_len);
    char *at = out + sizeof e + e.path_len;
    for (int i = 0; i < data_count && left > 0; i++) {
        size_t part = data[i].iov_len < left ? data[i].iov_len : left;
        memcpy(at, data[i].iov_base, part);
        at += part;
        left -= part;
    }
    raw_write(record_fd, out, total);
    free(out);
}

/* Return the errno that the faults file requests, or 0. */
static int fault(const char *kind, const char *path) {
    const char *name = getenv("SHIM_FAULTS");
    if (name == NULL) return 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    char text[1024];
    ssize_t n = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    if (n <= 0) return 0;
    text[n] = 0;
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char what[16], part[512];
        int code;
        if (sscanf(line, "%15s %511s %d", what, part, &code) == 3 && strstr(path, part) != NULL
            && (strcmp(what, kind) == 0 || strcmp(what, "any") == 0))
            return code;
    }
    return 0;
}

/* Return the errno of a call that changes the disk, or 0. `room`: the call needs space. The
 * caller holds the lock. */
static int due(int room) {
    if (armed == NOTHING) return 0;
    if (happened) return armed == DIE ? EIO : armed == FULL && room ? ENOSPC : 0;
    if (armed == FULL && !room) return 0;
    if (calls_left-- > 0) return 0;
    happened = 1;
    return armed == DIE ? EIO : armed == FULL ? ENOSPC : armed == SHORT ? 0 : armed_code;
}

static ssize_t written(int fd, const char *path, ssize_t n, int64_t position,
                       const struct iovec *data, int count) {
    if (n <= 0) return n;
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return n;
    int flags = fcntl(fd, F_GETFL);
    if (position < 0) position = (int64_t)lseek(fd, 0, SEEK_CUR) - n;
    struct event e = {.type = WRITE, .inode = id_of(st.st_ino, 0), .position = position,
                      .size = n, .data_len = (uint32_t)n, .flags = (flags & O_DSYNC) ? 1 : 0};
    note(e, path, data, count);
    return n;
}

#define WRITER(call, fd, position, data, count)                                  \
    char path[PATH_MAX];                                                         \
    if (!path_of(fd, path)) return call;                                         \
    int code = fault("write", path);                                             \
    if (code) { errno = code; return -1; }                                       \
    pthread_mutex_lock(&lock);                                                   \
    code = due(1);                                                               \
    if (code) { pthread_mutex_unlock(&lock); errno = code; return -1; }          \
    ssize_t n = written(fd, path, call, position, data, count);                  \
    int saved = errno;                                                           \
    pthread_mutex_unlock(&lock);                                                 \
    errno = saved;                                                               \
    return n

ssize_t write(int fd, const void *buf, size_t count) {
    struct iovec data = {(void *)buf, count};
    WRITER(REAL(write)(fd, buf, count), fd, -1, &data, 1);
}
ssize_t pwrite(int fd, const void *buf, size_t count, off_t offset) {
    struct iovec data = {(void *)buf, count};
    WRITER(REAL(pwrite)(fd, buf, count, offset), fd, offset, &data, 1);
}
ssize_t pwrite64(int fd, const void *buf, size_t count, off64_t offset) {
    struct iovec data = {(void *)buf, count};
    WRITER(REAL(pwrite64)(fd, buf, count, offset), fd, offset, &data, 1);
}
ssize_t writev(int fd, const struct iovec *iov, int count) {
    WRITER(REAL(writev)(fd, iov, count), fd, -1, iov, count);
}
ssize_t pwritev(int fd, const struct iovec *iov, int count, off_t offset) {
    WRITER(REAL(pwritev)(fd, iov, count, offset), fd, offset, iov, count);
}
ssize_t pwritev64(int fd, const struct iovec *iov, int count, off64_t offset) {
    WRITER(REAL(pwritev64)(fd, iov, count, offset), fd, offset, iov, count);
}
ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t offset, int flags) {
    WRITER(REAL(pwritev2)(fd, iov, count, offset, flags), fd, offset, iov, count);
}

static void sized(int fd, const char *path, uint32_t type, int64_t position, int64_t size,
                  uint32_t flags) {
    struct stat st;
    if (fstat(fd, &st) == 0) {
        struct event e = {.type = type, .inode = id_of(st.st_ino, 0), .position = position,
                          .size = size, .flags = flags};
        note(e, path, NULL, 0);
    }
}

#define SIZER(call, fd, type, position, size, may_fail)                          \
    char path[PATH_MAX];                                                         \
    if (!path_of(fd, path)) return call;                                         \
    int code = (may_fail) ? fault("write", path) : 0;                            \
    if (code) FAIL(code);                                                        \
    pthread_mutex_lock(&lock);                                                   \
    code = due(may_fail);                                                        \
    if (code) { pthread_mutex_unlock(&lock); FAIL(code); }                       \
    int result = call;                                                           \
    int saved = errno;                                                           \
    if (result == 0) sized(fd, path, type, position, size, 0);                   \
    pthread_mutex_unlock(&lock);                                                 \
    errno = saved;                                                               \
    return result

#define FAIL(code) { errno = code; return -1; }
int ftruncate(int fd, off_t size) { SIZER(REAL(ftruncate)(fd, size), fd, TRUNCATE, 0, size, 0); }
int ftruncate64(int fd, off64_t size) {
    SIZER(REAL(ftruncate64)(fd, size), fd, TRUNCATE, 0, size, 0);
}
int fallocate(int fd, int mode, off_t offset, off_t size) {
    SIZER(REAL(fallocate)(fd, mode, offset, size), fd, mode & FALLOC_FL_KEEP_SIZE ? 0 : ALLOCATE,
          offset, size, 1);
}
int fallocate64(int fd, int mode, off64_t offset, off64_t size) {
    SIZER(REAL(fallocate64)(fd, mode, offset, size), fd,
          mode & FALLOC_FL_KEEP_SIZE ? 0 : ALLOCATE, offset, size, 1);
}
#undef FAIL
#define FAIL(code) return code
int posix_fallocate(int fd, off_t offset, off_t size) {
    SIZER(REAL(posix_fallocate)(fd, offset, size), fd, ALLOCATE, offset, size, 1);
}
int posix_fallocate64(int fd, off64_t offset, off64_t size) {
    SIZER(REAL(posix_fallocate64)(fd, offset, size), fd, ALLOCATE, offset, size, 1);
}

static int synced(int fd, int (*call)(int), int all) {
    char path[PATH_MAX];
    if (!path_of(fd, path)) return call(fd);
    int code = fault("sync", path);
    if (code == 0 && all) code = fault("syncfs", path);
    struct stat st;
    fstat(fd, &st);
    pthread_mutex_lock(&lock);
    struct event e = {.type = SYNC_BEGIN, .inode = id_of(st.st_ino, 0), .token = next_token++,
                      .flags = all ? 4 : S_ISDIR(st.st_mode) ? 2 : 0};
    if (code == 0) code = due(0);
    if (code == 0) note(e, path, NULL, 0);
    pthread_mutex_unlock(&lock);
    if (code) {
        errno = code;
        return -1;
    }
    while (fault("hold", path)) usleep(1000);
    int result = call(fd);
    int saved = errno;
    if (result == 0) {
        e.type = SYNC_END;
        pthread_mutex_lock(&lock);
        note(e, path, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    errno = saved;
    return result;
}

int fsync(int fd) { return synced(fd, REAL(fsync), 0); }
int fdatasync(int fd) { return synced(fd, REAL(fdatasync), 0); }
int syncfs(int fd) { return synced(fd, REAL(syncfs), 1); }

static int is_there(int dir, const char *name) {
    struct stat st;
    return fstatat(dir, name, &st, 0) == 0;
}

static int opened(int fd, int dir, const char *name, int flags, int before) {
    char path[PATH_MAX];
    int saved = errno;
    if (fd >= 0 && (flags & (O_CREAT | O_TRUNC)) && absolute(dir, name, path)) {
        struct stat st;
        if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
            struct event e = {.type = CREATE, .inode = id_of(st.st_ino, !before),
                              .size = st.st_size};
            note(e, path, NULL, 0);
        }
    }
    errno = saved;
    return fd;
}

#define OPENER(call_with, dir, name, flags)                                      \
    mode_t mode = 0;                                                             \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                     \
        va_list rest;                                                            \
        va_start(rest, flags);                                                   \
        mode = va_arg(rest, mode_t);                                             \
        va_end(rest);                                                            \
    }                                                                            \
    char path_[PATH_MAX];                                                        \
    int ours = absolute(dir, name, path_), code = ours ? fault("open", path_) : 0; \
    if (code) { errno = code; return -1; }                                       \
    if (!ours || !((flags) & (O_CREAT | O_TRUNC))) return call_with;             \
    pthread_mutex_lock(&lock);                                                   \
    int before = is_there(dir, name);                                            \
    code = due(!before);                                                         \
    if (code) { pthread_mutex_unlock(&lock); errno = code; return -1; }          \
    int fd = opened(call_with, dir, name, flags, before);                        \
    int saved = errno;                                                           \
    pthread_mutex_unlock(&lock);                                                 \
    errno = saved;                                                               \
    return fd

int open(const char *name, int flags, ...) {
    OPENER(REAL(open)(name, flags, mode), AT_FDCWD, name, flags);
}
int open64(const char *name, int flags, ...) {
    OPENER(REAL(open64)(name, flags, mode), AT_FDCWD, name, flags);
}
int openat(int dir, const char *name, int flags, ...) {
    OPENER(REAL(openat)(dir, name, flags, mode), dir, name, flags);
}
int openat64(int dir, const char *name, int flags, ...) {
    OPENER(REAL(openat64)(dir, name, flags, mode), dir, name, flags);
}

static void moved(int result, const char *from, const char *to) {
    if (result != 0) return;
    struct event e = {.type = RENAME, .inode = id_at(to, 0), .data_len = (uint32_t)strlen(from)};
    struct iovec data = {(void *)from, strlen(from)};
    note(e, to, &data, 1);
}

#define MOVER(call, from_dir, from, to_dir, to)                                  \
    char source[PATH_MAX], goal[PATH_MAX];                                       \
    if (!absolute(from_dir, from, source) || !absolute(to_dir, to, goal)) return call; \
    int code = fault("name", source);                                            \
    pthread_mutex_lock(&lock);                                                   \
    if (code == 0) code = due(0);                                                \
    if (code) { pthread_mutex_unlock(&lock); errno = code; return -1; }          \
    int result = call;                                                           \
    int saved = errno;                                                           \
    moved(result, source, goal);                                                 \
    pthread_mutex_unlock(&lock);                                                 \
    errno = saved;                                                               \
    return result

int rename(const char *from, const char *to) {
    MOVER(REAL(rename)(from, to), AT_FDCWD, from, AT_FDCWD, to);
}
int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    MOVER(REAL(renameat)(from_dir, from, to_dir, to), from_dir, from, to_dir, to);
}

#define ENTRY(call, dir, name, kind)                                             \
    char path[PATH_MAX];                                                         \
    if (!absolute(dir, name, path)) return call;                                 \
    int code = fault("name", path);                                              \
    pthread_mutex_lock(&lock);                                                   \
    if (code == 0) code = due(kind == MKDIR && !is_there(dir, name));            \
    if (code) { pthread_mutex_unlock(&lock); errno = code; return -1; }          \
    int result = call;                                                           \
    int saved = errno;                                                           \
    if (result == 0) {                                                           \
        struct event e = {.type = kind, .inode = kind == MKDIR ? id_at(path, 1) : 0}; \
        note(e, path, NULL, 0);                                                  \
    }                                                                            \
    pthread_mutex_unlock(&lock);                                                 \
    errno = saved;                                                               \
    return result

int unlink(const char *name) { ENTRY(REAL(unlink)(name), AT_FDCWD, name, UNLINK); }
int unlinkat(int dir, const char *name, int flags) {
    ENTRY(REAL(unlinkat)(dir, name, flags), dir, name, UNLINK);
}
int rmdir(const char *name) { ENTRY(REAL(rmdir)(name), AT_FDCWD, name, UNLINK); }
int mkdir(const char *name, mode_t mode) { ENTRY(REAL(mkdir)(name, mode), AT_FDCWD, name, MKDIR); }
int mkdirat(int dir, const char *name, mode_t mode) {
    ENTRY(REAL(mkdirat)(dir, name, mode), dir, name, MKDIR);
}

static void *mapped(void *at, int prot, int flags, int fd) {
    char path[PATH_MAX];
    int shared = (flags & MAP_TYPE) == MAP_SHARED || (flags & MAP_TYPE) == MAP_SHARED_VALIDATE;
    if (at != MAP_FAILED && fd >= 0 && shared && (prot & PROT_WRITE) && path_of(fd, path)) {
        pthread_mutex_lock(&lock);
        sized(fd, path, MAP, 0, 0, 0);
        pthread_mutex_unlock(&lock);
    }
    return at;
}
void *mmap(void *hint, size_t size, int prot, int flags, int fd, off_t offset) {
    return mapped(REAL(mmap)(hint, size, prot, flags, fd, offset), prot, flags, fd);
}
void *mmap64(void *hint, size_t size, int prot, int flags, int fd, off64_t offset) {
    return mapped(REAL(mmap64)(hint, size, prot, flags, fd, offset), prot, flags, fd);
}

/* ---- reads can only fail ---- */

#define READER(call, fd)                                                         \
    char path[PATH_MAX];                                                         \
    int code = getenv("SHIM_FAULTS") != NULL && path_of(fd, path) ? fault("read", path) : 0; \
    if (code) { errno = code; return -1; }                                       \
    return call

ssize_t read(int fd, void *to, size_t size) { READER(REAL(read)(fd, to, size), fd); }
ssize_t pread(int fd, void *to, size_t size, off_t at) {
    READER(REAL(pread)(fd, to, size, at), fd);
}
ssize_t pread64(int fd, void *to, size_t size, off64_t at) {
    READER(REAL(pread64)(fd, to, size, at), fd);
}
ssize_t preadv2(int fd, const struct iovec *iov, int count, off_t at, int flags) {
    READER(REAL(preadv2)(fd, iov, count, at, flags), fd);
}
ssize_t sendfile(int to, int fd, off_t *at, size_t size) {
    READER(REAL(sendfile)(to, fd, at, size), fd);
}

/* ---- a disk for logs in this process ---- */

void shim_begin(const char *root, const char *record) {
    pthread_mutex_lock(&lock);
    if (record_fd >= 0) syscall(SYS_close, record_fd);
    snprintf(own_root, sizeof own_root, "%s", root);
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC;
    record_fd = (int)syscall(SYS_openat, AT_FDCWD, record, flags, 0644);
    armed = NOTHING;
    happened = 0;
    pthread_mutex_unlock(&lock);
}

/* Arm a fault after `calls` further calls that change the disk. FAIL_ONCE fails with `code`;
 * FULL fails calls that need space until the next shim_arm; DIE stops all changes permanently;
 * SHORT cuts a write. */
void shim_arm(int what, int64_t calls, int code) {
    pthread_mutex_lock(&lock);
    armed = what;
    armed_code = code;
    calls_left = calls;
    happened = 0;
    pthread_mutex_unlock(&lock);
}

/* Return 1 if the fault happened. */
int shim_happened(void) {
    pthread_mutex_lock(&lock);
    int result = happened;
    pthread_mutex_unlock(&lock);
    return result;
}

static int table_openat(int dir, const char *path, int flags, mode_t mode) {
    return openat(dir, path, flags, mode);
}

/* No write follows a cut one: there was space for half of it. */
static ssize_t table_pwrite(int fd, const void *bytes, size_t size, off_t at) {
    pthread_mutex_lock(&lock);
    int cut = armed == SHORT && !happened && calls_left == 0 && size > 1;
    if (cut) {
        armed = FULL;
        calls_left = 1;
    }
    pthread_mutex_unlock(&lock);
    ssize_t n = pwrite(fd, bytes, cut ? size / 2 : size, at);
    if (cut) {
        pthread_mutex_lock(&lock);
        happened |= armed == FULL;
        pthread_mutex_unlock(&lock);
    }
    return n;
}

const struct disk *shim_table(void) {
    static const struct disk table = {table_openat, pread, table_pwrite, ftruncate, fallocate,
                                      fsync, fdatasync, syncfs, renameat, unlinkat, mkdirat};
    return &table;
}

/* Return the number of a file that existed before, for its events. */
uint64_t shim_id(uint64_t inode) {
    pthread_mutex_lock(&lock);
    uint64_t id = id_of(inode, 1);
    pthread_mutex_unlock(&lock);
    return id;
}
