/* The file: a header (magic, identity of the log directory, whether the records are valid, the
 * directory's path), then slots. A running process locks its file, so that others can detect
 * abandoned ones. The file is named after the directory's device and inode, created under
 * another name and renamed when it is complete. The old file is read, never mapped, so that
 * truncating it does no harm. The new one is mapped and grows only into allocated space, because
 * a store must not hit a full tmpfs. */
#include "segment/restart_checkpoint.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "os/clock.h"
#include "os/lock.h"
#include "os/mapped.h"

#ifndef STATX_MNT_ID_UNIQUE
#define STATX_MNT_ID_UNIQUE 0x00004000U
#endif
#ifndef F2FS_SUPER_MAGIC
#define F2FS_SUPER_MAGIC 0xF2F52010
#endif
#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif

enum {
    RESTART_CHECKPOINT_NAME_BYTES = 96,
    RESTART_CHECKPOINT_PATH_BYTES = 1024,
    RESTART_CHECKPOINT_CHUNK_MIN = 64,
    RESTART_CHECKPOINT_CHUNK_MAX = 4096
};
static const uint64_t RESTART_CHECKPOINT_MAGIC = 0x31746977676f6c70; /* "plogwit1" */

_Static_assert(sizeof(struct restart_checkpoint_slot) == RESTART_CHECKPOINT_SLOT_BYTES,
               "one cache line");
_Static_assert(offsetof(struct restart_checkpoint_slot, flushed) ==
                   offsetof(struct restart_checkpoint_found, flushed),
               "a slot is read as an entry");

struct restart_checkpoint_header {
    uint64_t magic, device, inode, mount;
    _Atomic uint64_t counts;
    char path[RESTART_CHECKPOINT_PATH_BYTES]; /* of the directory; empty if too long */
};

/* A record of an earlier process, in an array sorted by inode. `slot`: its copy in the new file,
 * until it is taken. */
struct restart_checkpoint_entry {
    struct restart_checkpoint_found found;
    struct restart_checkpoint_slot *slot;
};

struct restart_checkpoint {
    struct lock lock;
    int fd, where;
    bool forgotten;
    char name[RESTART_CHECKPOINT_NAME_BYTES];
    struct restart_checkpoint_header header; /* the expected content */
    struct mapped_registration *registration;
    uint8_t *map; /* addresses for RESTART_CHECKPOINT_SLOTS_MAX, of which `room` are backed */
    uint32_t room GUARDED_BY(lock), used GUARDED_BY(lock);
    struct restart_checkpoint_slot **given_back GUARDED_BY(lock);
    uint32_t given_back_count GUARDED_BY(lock), given_back_room GUARDED_BY(lock);
    struct restart_checkpoint_entry *entries;
    uint32_t entry_count;
};

static const size_t RESTART_CHECKPOINT_MAP_BYTES =
    RESTART_CHECKPOINT_HEADER_BYTES +
    (size_t)RESTART_CHECKPOINT_SLOTS_MAX * RESTART_CHECKPOINT_SLOT_BYTES;

/* ---- the directory, and the file's name ---- */

/* Accepts local file systems whose pages survive a process and whose ctimes show every change. */
static bool restart_checkpoint_file_system_fits(int dir_fd) {
    struct statfs fs;
    if (fstatfs(dir_fd, &fs) != 0) return false;
    switch ((uint64_t)fs.f_type) {
    case EXT4_SUPER_MAGIC:
    case XFS_SUPER_MAGIC:
    case BTRFS_SUPER_MAGIC:
    case F2FS_SUPER_MAGIC:
    case TMPFS_MAGIC: return true;
    default: return false;
    }
}

/* The kernel's stx_mnt_id, which musl does not declare. */
static uint64_t restart_checkpoint_mount(const struct statx *st) {
    uint64_t id;
    memcpy(&id, (const char *)st + offsetof(struct statx, stx_dev_minor) + sizeof st->stx_dev_minor,
           sizeof id);
    return id;
}

static bool restart_checkpoint_identify(int dir_fd, struct restart_checkpoint_header *header) {
    struct statx st;
    struct stat plain;
    if (statx(dir_fd, "", AT_EMPTY_PATH, STATX_INO | STATX_MNT_ID_UNIQUE, &st) != 0 ||
        !(st.stx_mask & STATX_MNT_ID_UNIQUE) || fstat(dir_fd, &plain) != 0)
        return false;
    char link[64];
    *header = (struct restart_checkpoint_header){
        RESTART_CHECKPOINT_MAGIC, plain.st_dev, plain.st_ino, restart_checkpoint_mount(&st), 1, ""};
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir_fd);
    ssize_t n = readlink(link, header->path, sizeof header->path);
    header->path[n > 0 && n < (ssize_t)sizeof header->path ? n : 0] = 0;
    return true;
}

static int restart_checkpoint_where(const char *where) {
    struct statfs fs;
    int fd = open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && (fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* ---- reading an earlier process's file ---- */

static int restart_checkpoint_compare(const void *a, const void *b) {
    const struct restart_checkpoint_found *x = &((const struct restart_checkpoint_entry *)a)->found,
                                          *y = &((const struct restart_checkpoint_entry *)b)->found;
    if (x->inode != y->inode) return x->inode < y->inode ? -1 : 1;
    return x->time_ns > y->time_ns ? -1 : x->time_ns < y->time_ns;
}

/* Keeps the newest entry of each file. */
static void restart_checkpoint_sort(struct restart_checkpoint *w) {
    uint32_t unique = 0;
    if (w->entry_count > 1)
        qsort(w->entries, w->entry_count, sizeof *w->entries, restart_checkpoint_compare);
    for (uint32_t i = 0; i < w->entry_count; i++)
        if (unique == 0 || w->entries[unique - 1].found.inode != w->entries[i].found.inode)
            w->entries[unique++] = w->entries[i];
    w->entry_count = unique;
}

static void restart_checkpoint_parse(struct restart_checkpoint *w, const uint8_t *bytes,
                                     size_t len) {
    struct restart_checkpoint_header header;
    memcpy(&header, bytes, sizeof header);
    if (header.magic != w->header.magic || header.device != w->header.device ||
        header.inode != w->header.inode || header.mount != w->header.mount || header.counts != 1)
        return;
    size_t count = (len - RESTART_CHECKPOINT_HEADER_BYTES) / RESTART_CHECKPOINT_SLOT_BYTES;
    w->entries = count == 0 ? NULL : calloc(count, sizeof *w->entries);
    int64_t now_ns = clock_read_ns(CLOCK_REALTIME);
    for (size_t i = 0; i < count && w->entries != NULL; i++) {
        struct restart_checkpoint_found *found = &w->entries[w->entry_count].found;
        memcpy(found, bytes + RESTART_CHECKPOINT_HEADER_BYTES + i * RESTART_CHECKPOINT_SLOT_BYTES,
               sizeof *found);
        /* A timestamp in the future comes from another clock and cannot be compared with ctimes. */
        if (found->inode != 0 && found->base_offset >= 0 && found->bytes >= 0 &&
            found->time_ns <= now_ns)
            w->entry_count++;
    }
    restart_checkpoint_sort(w);
}

/* Returns a descriptor of a file that only this user can have written, or -1. */
static int restart_checkpoint_open_own(int where, const char *name, size_t *len) {
    struct stat st;
    int fd = openat(where, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return -1;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
        (st.st_mode & 077) != 0 || st.st_nlink != 1 ||
        st.st_size < RESTART_CHECKPOINT_HEADER_BYTES ||
        (size_t)st.st_size > RESTART_CHECKPOINT_MAP_BYTES) {
        close(fd);
        return -1;
    }
    *len = (size_t)st.st_size;
    return fd;
}

static void restart_checkpoint_read(struct restart_checkpoint *w) {
    size_t len, have = 0;
    int fd = restart_checkpoint_open_own(w->where, w->name, &len);
    if (fd < 0) return;
    uint8_t *bytes = malloc(len);
    ssize_t n = 1;
    while (bytes != NULL && have < len && n > 0) {
        n = pread(fd, bytes + have, len - have, (off_t)have);
        if (n > 0) have += (size_t)n;
    }
    if (bytes != NULL && have == len) restart_checkpoint_parse(w, bytes, len);
    free(bytes);
    close(fd);
}

/* Returns true if no process uses the file and its directory no longer exists. */
static bool restart_checkpoint_is_left(int fd) {
    struct restart_checkpoint_header header;
    struct stat st;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 ||
        pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header ||
        header.magic != RESTART_CHECKPOINT_MAGIC ||
        memchr(header.path, 0, sizeof header.path) == NULL || header.path[0] != '/')
        return false;
    if (stat(header.path, &st) != 0) return errno == ENOENT;
    return st.st_dev != header.device || st.st_ino != header.inode;
}

/* Removes files of killed brokers whose directories are gone: they would stay until the next
 * reboot. */
static void restart_checkpoint_sweep(struct restart_checkpoint *w) {
    char prefix[32];
    int copy = dup(w->where);
    DIR *entries = copy < 0 ? NULL : fdopendir(copy);
    struct dirent *entry;
    size_t len;
    if (entries == NULL) {
        if (copy >= 0) close(copy);
        return;
    }
    snprintf(prefix, sizeof prefix, "pylog-%u-", (unsigned)geteuid());
    rewinddir(entries);
    while ((entry = readdir(entries)) != NULL) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0) continue;
        int fd = restart_checkpoint_open_own(w->where, entry->d_name, &len);
        if (fd < 0) continue;
        if (restart_checkpoint_is_left(fd)) unlinkat(w->where, entry->d_name, 0);
        close(fd);
    }
    closedir(entries);
}

/* ---- this process's file ---- */

static struct restart_checkpoint_slot *restart_checkpoint_slot_at(struct restart_checkpoint *w,
                                                                  uint32_t i) {
    return (struct restart_checkpoint_slot *)(w->map + RESTART_CHECKPOINT_HEADER_BYTES) + i;
}

/* Backs bytes `from` to `to` with allocated space, so that no store hits a full tmpfs. */
static bool restart_checkpoint_back(struct restart_checkpoint *w, size_t from, size_t to) {
    return posix_fallocate(w->fd, (off_t)from, (off_t)(to - from)) == 0 &&
           mmap(w->map + from, to - from, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, w->fd,
                (off_t)from) != MAP_FAILED;
}

/* Makes space for at least one more slot; chunks are pages. */
static bool restart_checkpoint_grow(struct restart_checkpoint *w, uint32_t wanted)
    REQUIRES(w->lock) {
    uint32_t more = w->room < RESTART_CHECKPOINT_CHUNK_MIN   ? RESTART_CHECKPOINT_CHUNK_MIN
                    : w->room > RESTART_CHECKPOINT_CHUNK_MAX ? RESTART_CHECKPOINT_CHUNK_MAX
                                                             : w->room;
    if (more < wanted)
        more = (wanted + RESTART_CHECKPOINT_CHUNK_MIN - 1) / RESTART_CHECKPOINT_CHUNK_MIN *
               RESTART_CHECKPOINT_CHUNK_MIN;
    if (more > RESTART_CHECKPOINT_SLOTS_MAX - w->room) return false;
    size_t from = RESTART_CHECKPOINT_HEADER_BYTES + (size_t)w->room * RESTART_CHECKPOINT_SLOT_BYTES;
    if (!restart_checkpoint_back(w, from, from + (size_t)more * RESTART_CHECKPOINT_SLOT_BYTES))
        return false;
    w->room += more;
    assert(w->room <= RESTART_CHECKPOINT_SLOTS_MAX);
    return true;
}

/* Creates the file under another name, copies the earlier records into it and renames it: a kill
 * at any time leaves the old file or the new one. */
static bool restart_checkpoint_make(struct restart_checkpoint *w) REQUIRES(w->lock) {
    char fresh[RESTART_CHECKPOINT_NAME_BYTES + 8];
    snprintf(fresh, sizeof fresh, "%s.new", w->name);
    unlinkat(w->where, fresh, 0);
    w->fd = openat(w->where, fresh, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (w->fd < 0) return false;
    flock(w->fd, LOCK_EX | LOCK_NB);
    void *map = mmap(NULL, RESTART_CHECKPOINT_MAP_BYTES, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    w->map = map == MAP_FAILED ? NULL : map;
    /* If another program truncates the file, records are lost, but the broker continues. */
    w->registration = w->map != NULL ? mapped_register(w->map, RESTART_CHECKPOINT_MAP_BYTES) : NULL;
    bool made = w->registration != NULL &&
                restart_checkpoint_back(w, 0, RESTART_CHECKPOINT_HEADER_BYTES) &&
                (w->entry_count == 0 || restart_checkpoint_grow(w, w->entry_count));
    if (made) {
        memcpy(w->map, &w->header, sizeof w->header);
        for (uint32_t i = 0; i < w->entry_count; i++) {
            w->entries[i].slot = restart_checkpoint_slot_at(w, w->used++);
            memcpy((void *)w->entries[i].slot, &w->entries[i].found, sizeof w->entries[i].found);
        }
        made = renameat(w->where, fresh, w->where, w->name) == 0;
    }
    if (!made) unlinkat(w->where, fresh, 0);
    return made;
}

/* The last user is gone, so no lock is needed. */
static void restart_checkpoint_drop(struct restart_checkpoint *w) NO_THREAD_SAFETY_ANALYSIS {
    if (w->registration != NULL) mapped_unregister(w->registration);
    if (w->map != NULL) munmap(w->map, RESTART_CHECKPOINT_MAP_BYTES);
    if (w->fd >= 0) close(w->fd);
    close(w->where);
    lock_destroy(&w->lock);
    free(w->entries);
    free(w->given_back);
    free(w);
}

struct restart_checkpoint *restart_checkpoint_new(int dir_fd, const char *where) {
    struct restart_checkpoint *w = calloc(1, sizeof *w);
    if (w == NULL) return NULL;
    if (!restart_checkpoint_file_system_fits(dir_fd) ||
        !restart_checkpoint_identify(dir_fd, &w->header) ||
        (w->where = restart_checkpoint_where(where)) < 0) {
        free(w);
        return NULL;
    }
    w->fd = -1;
    lock_init(&w->lock);
    snprintf(w->name, sizeof w->name, "pylog-%u-%llx-%llx", (unsigned)geteuid(),
             (unsigned long long)w->header.device, (unsigned long long)w->header.inode);
    restart_checkpoint_sweep(w);
    restart_checkpoint_read(w);
    lock_acquire(&w->lock);
    bool made = restart_checkpoint_make(w);
    lock_release(&w->lock);
    if (made) return w;
    /* The next start must not find a file that cannot be kept up to date. */
    unlinkat(w->where, w->name, 0);
    restart_checkpoint_drop(w);
    return NULL;
}

void restart_checkpoint_forget(struct restart_checkpoint *w) {
    if (w == NULL || w->forgotten) return;
    w->forgotten = true;
    unlinkat(w->where, w->name, 0);
}

void restart_checkpoint_free(struct restart_checkpoint *w) {
    if (w == NULL) return;
    restart_checkpoint_forget(w);
    restart_checkpoint_drop(w);
}

void restart_checkpoint_void(struct restart_checkpoint *w) {
    if (w != NULL) atomic_store(&((struct restart_checkpoint_header *)w->map)->counts, 0);
}

/* ---- entries ---- */

static struct restart_checkpoint_entry *restart_checkpoint_entry_of(struct restart_checkpoint *w,
                                                                    const struct stat *file) {
    if (file->st_dev != w->header.device) return NULL;
    uint32_t low = 0, high = w->entry_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (w->entries[middle].found.inode < file->st_ino)
            low = middle + 1;
        else
            high = middle;
    }
    return low < w->entry_count && w->entries[low].found.inode == file->st_ino ? &w->entries[low]
                                                                               : NULL;
}

bool restart_checkpoint_find(struct restart_checkpoint *w, const struct stat *file,
                             struct restart_checkpoint_found *out) {
    if (w == NULL) return false;
    lock_acquire(&w->lock);
    const struct restart_checkpoint_entry *entry = restart_checkpoint_entry_of(w, file);
    if (entry != NULL) *out = entry->found;
    lock_release(&w->lock);
    return entry != NULL;
}

uint32_t restart_checkpoint_found_count(struct restart_checkpoint *w) {
    return w == NULL ? 0 : w->entry_count;
}

struct restart_checkpoint_slot *restart_checkpoint_acquire_slot(struct restart_checkpoint *w,
                                                                const struct stat *file) {
    struct restart_checkpoint_slot *slot = NULL;
    if (w == NULL || file->st_dev != w->header.device) return NULL;
    lock_acquire(&w->lock);
    struct restart_checkpoint_entry *entry = restart_checkpoint_entry_of(w, file);
    if (entry != NULL && entry->slot != NULL) {
        slot = entry->slot;
        entry->slot = NULL;
    } else if (w->given_back_count > 0) {
        slot = w->given_back[--w->given_back_count];
    } else if (w->used < w->room || restart_checkpoint_grow(w, 1)) {
        assert(w->used < w->room);
        slot = restart_checkpoint_slot_at(w, w->used++);
    }
    lock_release(&w->lock);
    return slot;
}

void restart_checkpoint_release_slot(struct restart_checkpoint *w,
                                     struct restart_checkpoint_slot *slot) {
    if (slot == NULL) return;
    restart_checkpoint_clear(slot);
    lock_acquire(&w->lock);
    if (w->given_back_count == w->given_back_room) {
        uint32_t room = w->given_back_room == 0 ? 16 : w->given_back_room * 2;
        struct restart_checkpoint_slot **more = realloc(w->given_back, room * sizeof *more);
        if (more != NULL) {
            w->given_back = more;
            w->given_back_room = room;
        }
    }
    /* Without memory to record it, the slot stays unused until the next start. */
    assert(w->given_back_count <= w->given_back_room);
    if (w->given_back_count < w->given_back_room) w->given_back[w->given_back_count++] = slot;
    lock_release(&w->lock);
}

void restart_checkpoint_record(struct restart_checkpoint_slot *slot, const struct stat *file,
                               int64_t base_offset, int64_t bytes, int64_t flushed) {
    assert(base_offset >= 0);
    assert(bytes >= 0);
    assert(flushed >= 0);
    restart_checkpoint_clear(slot);
    atomic_store(&slot->base_offset, base_offset);
    atomic_store(&slot->bytes, bytes);
    atomic_store(&slot->time_ns, restart_checkpoint_ctime_ns(file));
    atomic_store(&slot->flushed, flushed);
    atomic_store(&slot->inode, file->st_ino);
}

void restart_checkpoint_touched(struct restart_checkpoint_slot *slot) {
    int64_t now_ns = clock_read_ns(CLOCK_REALTIME), before = atomic_load(&slot->time_ns);
    while (before < now_ns && !atomic_compare_exchange_weak(&slot->time_ns, &before, now_ns)) {}
}
