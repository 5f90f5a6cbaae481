/* The storage of reactors, each part in isolation at its limits: slabs, buffers, addresses,
 * disks. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "net/input.h"
#include "net/ip_connections.h"
#include "net/slab.h"
#include "failing_memory.h"
#include "scene_names.h"
#include "os/disk.h"

/* ---- slabs, buffers, addresses */

struct thing {
    struct slab_item item;
    uint64_t value[4];
};

SCENE(failed_growth_keeps_the_slab) {
    struct slab slab;
    bool grew;
    slab_init(&slab, sizeof(struct thing));
    for (int left = 0; left < 2; left++) {
        memory_left = left;
        CHECK(slab_take(&slab, &grew) == NULL && !grew && slab_room(&slab) == 0);
    }
    memory_left = NO_MEMORY_LIMIT;
    struct thing *one = slab_take(&slab, &grew);
    CHECK(grew && one->item.index == 0 && slab.live == 1);
    slab_undo(&slab, one);
    CHECK(slab.live == 0 && slab_room(&slab) == 0 && slab_at(&slab, 0) == NULL);
    struct thing *all_of[SLAB_CHUNK_ITEMS + 1];
    for (uint32_t i = 0; i <= SLAB_CHUNK_ITEMS; i++) {
        all_of[i] = slab_take(&slab, &grew);
        CHECK(all_of[i]->item.index == i && grew == (i % SLAB_CHUNK_ITEMS == 0));
    }
    slab_undo(&slab, all_of[SLAB_CHUNK_ITEMS]);
    CHECK(slab.live == SLAB_CHUNK_ITEMS && slab_room(&slab) == SLAB_CHUNK_ITEMS);
    CHECK(slab_at(&slab, SLAB_CHUNK_ITEMS - 1) != NULL && slab_at(&slab, SLAB_CHUNK_ITEMS) == NULL);
    CHECK(slab_take(&slab, &grew) != NULL && grew);
    slab_clear(&slab);
    CHECK(slab_room(&slab) == 0 && slab.item_bytes == sizeof(struct thing));
}

SCENE(slab_reuses_the_last_slot_with_a_new_handle) {
    struct slab slab;
    bool grew;
    slab_init(&slab, sizeof(struct thing));
    struct thing *a = slab_take(&slab, &grew), *b = slab_take(&slab, &grew);
    b->value[3] = 7;
    uint32_t index = b->item.index, generation = b->item.generation;
    CHECK(generation == 1 && slab_find(&slab, index, 1) == b && slab_find(&slab, index, 2) == NULL);
    slab_give(&slab, a);
    slab_give(&slab, b);
    b->item.generation = UINT32_MAX; /* after this many lives: 0 belongs to no item */
    CHECK(slab_take(&slab, &grew) == b && b->value[3] == 0 && !grew);
    slab_give(&slab, b);
    CHECK(b->item.generation == 1 && slab_take(&slab, &grew) == b && slab_take(&slab, &grew) == a);
    slab_clear(&slab);
}

SCENE(large_buffers_leave_space_to_small_and_tiny_ones) {
    struct input_pool pool;
    enum { MAX = 1 << 20, LARGE = (128 << 10) - 64, SMALL = (64 << 10) - 64, TINY = 4000 };
    struct input_buffer *held[64];
    int n = 0;
    input_pool_init(&pool, MAX, LARGE);
    while ((held[n] = input_take(&pool, LARGE, false)) != NULL) n++;
    CHECK(n == 6 && input_is_tight(&pool)); /* without an eighth and a sixteenth */
    while ((held[n] = input_take(&pool, SMALL, false)) != NULL) n++;
    CHECK(pool.held_bytes == MAX - (MAX >> 4));
    while ((held[n] = input_take(&pool, TINY, false)) != NULL) n++;
    CHECK(pool.held_bytes == MAX && n == 6 + 3 + 16);
    held[n] = input_take(&pool, LARGE, true); /* the longest frame may exceed it */
    CHECK(held[n] != NULL && input_take(&pool, TINY, true) == NULL);
    while (n >= 0) input_release(&pool, held[n--]);
    CHECK(pool.held_bytes == 0 && pool.spare_bytes <= MAX && !input_is_tight(&pool));
    input_pool_clear(&pool);
}

SCENE(half_used_input_memory_is_not_scarce) {
    struct input_pool pool;
    input_pool_init(&pool, 4096, 1024);
    struct input_buffer *a = input_take(&pool, 2000, false), *b = input_take(&pool, 900, false);
    CHECK(pool.held_bytes == 2048 + 1024 && input_is_tight(&pool));
    input_release(&pool, b);
    CHECK(pool.held_bytes == 2048 && !input_is_tight(&pool));
    input_release(&pool, a);
    input_pool_clear(&pool);
}

SCENE(buffer_is_reused_after_its_last_reference) {
    struct input_pool pool;
    input_pool_init(&pool, 1 << 20, 1 << 16);
    struct input_buffer *a = input_take(&pool, 100, false), *b = input_take(&pool, 100, false);
    CHECK(a->room == 1024 - sizeof *a && input_room_for(a->room) == a->room);
    CHECK(input_room_for(a->room + 1) == 2048 - sizeof *a);
    a->references = 2;
    input_release(&pool, a);
    CHECK(pool.held_bytes == 2048 && pool.spare_bytes == 0);
    input_release(&pool, a);
    input_release(&pool, b);
    CHECK(pool.held_bytes == 0 && pool.spare_bytes == 2048);
    CHECK(input_take(&pool, 100, false) == b && pool.spare_bytes == 1024); /* most recent */
    input_pool_trim(&pool); /* no earlier period to compare */
    input_pool_trim(&pool);
    CHECK(pool.spare_bytes == 0);
    input_release(&pool, b);
    CHECK(pool.spare_bytes == 1024);
    input_pool_trim(&pool); /* it was needed */
    CHECK(pool.spare_bytes == 1024);
    input_pool_trim(&pool);
    CHECK(pool.spare_bytes == 0);
    input_pool_clear(&pool);
}

SCENE(address_is_counted_until_it_disconnects) {
    struct peers *peers = peers_new();
    static const uint8_t a[16] = {1}, b[32] = {2, [16] = 3};
    CHECK(!peers_enter(peers, a, 0) && peers_enter(peers, a, 1) && !peers_enter(peers, a, 1));
    CHECK(peers_enter(peers, a, 2));
    peers_leave(peers, a);
    CHECK(!peers_enter(peers, a, 1));
    peers_leave(peers, a);
    CHECK(peers_enter(peers, a, 1));
    CHECK(peers_set_overrides(peers, b, (uint32_t[]){2, 0}, 2));
    CHECK(peers_enter(peers, b, 0) && peers_enter(peers, b, 1) && !peers_enter(peers, b, 100));
    CHECK(!peers_enter(peers, b + 16, 100) && peers_enter(peers, a, 2));
    memory_left = 0;
    CHECK(!peers_set_overrides(peers, b, (uint32_t[]){9, 9}, 2) && !peers_enter(peers, b, 100));
    CHECK(!peers_enter(peers, (const uint8_t[16]){9}, 100)); /* without memory */
    memory_left = NO_MEMORY_LIMIT;
    CHECK(peers_enter(peers, (const uint8_t[16]){9}, 100));
    CHECK(peers_set_overrides(peers, NULL, NULL, 0) && peers_enter(peers, b + 16, 1));
    peers_free(peers);
}

/* ---- disks */

SCENE(full_disk_rejects_only_calls_that_need_space) {
    const struct disk *full = disk_of(DISK_FULL);
    int file = memfd_create("log", 0);
    char byte = 'x';
    struct stat st;
    CHECK(full->openat(AT_FDCWD, "/no such file", O_RDWR | O_CREAT, 0600) < 0 && errno == ENOSPC);
    CHECK(full->openat(AT_FDCWD, "/no such file", O_RDWR, 0) < 0 && errno == ENOENT);
    CHECK(full->openat(AT_FDCWD, "/dev/null/x", O_RDWR | O_CREAT, 0) < 0 && errno == ENOTDIR);
    int there = full->openat(AT_FDCWD, "/dev/null", O_RDWR | O_CREAT, 0600);
    CHECK(there >= 0);
    CHECK(full->mkdirat(AT_FDCWD, "/", 0700) < 0 && errno == EEXIST);
    CHECK(full->mkdirat(AT_FDCWD, "/no such place", 0700) < 0 && errno == ENOSPC);
    CHECK(full->pwrite(file, &byte, 1, 0) < 0 && errno == ENOSPC);
    CHECK(full->fallocate(file, 0, 0, 10) < 0 && errno == ENOSPC);
    CHECK(fstat(file, &st) == 0 && st.st_size == 0);
    CHECK(full->ftruncate(file, 3) == 0 && full->fsync(file) == 0 && full->fdatasync(file) == 0);
    CHECK(full->pread(file, &byte, 1, 0) == 1 && byte == 0);
    close(file);
    close(there);
}

SCENE(broken_disk_fails_all_calls_and_a_sync_fault_only_syncs) {
    const struct disk *broken = disk_of(DISK_BROKEN), *lazy = disk_of(DISK_NO_SYNC);
    int file = memfd_create("log", 0);
    char byte = 'x';
    CHECK(lazy->pwrite(file, &byte, 1, 0) == 1 && lazy->pread(file, &byte, 1, 0) == 1);
    CHECK(lazy->fsync(file) == -1 && errno == EIO && lazy->fdatasync(file) == -1);
    CHECK(lazy->syncfs(file) == -1 && errno == EIO);
    CHECK(broken->openat(AT_FDCWD, "/dev/null", O_RDONLY, 0) == -1 && errno == EIO);
    CHECK(broken->pread(file, &byte, 1, 0) == -1 && broken->pwrite(file, &byte, 1, 0) == -1);
    CHECK(broken->ftruncate(file, 0) == -1 && broken->fallocate(file, 0, 0, 1) == -1);
    CHECK(broken->fsync(file) == -1 && broken->renameat(0, "a", 0, "b") == -1);
    errno = 0;
    CHECK(broken->unlinkat(AT_FDCWD, "/x", 0) == -1 && errno == EIO);
    errno = 0;
    CHECK(broken->mkdirat(AT_FDCWD, "/", 0) == -1 && errno == EIO);
    close(file);
}

SCENE(only_shortages_are_temporary) {
    static const int shortages[] = {ENOSPC, EDQUOT, EFBIG,   EMFILE,
                                    ENFILE, ENOMEM, ENOBUFS, EAGAIN};
    static const int failures[] = {EIO, EROFS, ENOENT, EACCES, 0};
    for (size_t i = 0; i < sizeof shortages / sizeof *shortages; i++)
        CHECK(disk_error_is_shortage(shortages[i]));
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
        CHECK(!disk_error_is_shortage(failures[i]));
}

static const char *release;
static long fs_type;
static int stat_error;
int __wrap_uname(struct utsname *out);
int __wrap_uname(struct utsname *out) {
    if (release == NULL) return -1;
    snprintf(out->release, sizeof out->release, "%s", release);
    return 0;
}
int __wrap_fstatfs(int fd, struct statfs *out);
int __wrap_fstatfs(int fd, struct statfs *out) {
    (void)fd;
    *out = (struct statfs){.f_type = (__typeof__(out->f_type))fs_type};
    return stat_error;
}

SCENE(syncfs_is_used_only_if_it_reports_errors) {
    static const char *const old[] = {"5.16.9", "4.99.0", "5.0", "x", "5", "", NULL};
    static const char *const good[] = {"5.17.0", "5.17-rc1", "6.0", "6.16.1", "10.0"};
    fs_type = EXT4_SUPER_MAGIC;
    for (size_t i = 0; i < sizeof old / sizeof *old; i++) {
        release = old[i];
        CHECK(strcmp(disk_syncfs_problem(0), "Linux before 5.17") == 0);
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        release = good[i];
        CHECK(disk_syncfs_problem(0) == NULL);
    }
    static const long known[] = {0x58465342, BTRFS_SUPER_MAGIC, TMPFS_MAGIC};
    for (int i = 0; i < 3; i++) {
        fs_type = known[i];
        CHECK(disk_syncfs_problem(0) == NULL);
    }
    fs_type = 0x6969; /* NFS */
    CHECK(strstr(disk_syncfs_problem(0), "may not report") != NULL);
    stat_error = -1;
    CHECK(strcmp(disk_syncfs_problem(0), "an unknown file system") == 0);
}
