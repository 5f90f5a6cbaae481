/* The system's disk, and three fault-injecting disks for tests. */
#include "os/disk.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif

static int open_system(int dir, const char *path, int flags, mode_t mode) {
    return openat(dir, path, flags, mode);
}

/* ---- full ---- */

static int refused(int error) {
    errno = error;
    return -1;
}

static int open_full(int dir, const char *path, int flags, mode_t mode) {
    int fd = openat(dir, path, flags & ~O_CREAT, mode);
    return fd < 0 && errno == ENOENT && flags & O_CREAT ? refused(ENOSPC) : fd;
}

static ssize_t pwrite_full(int fd, const void *bytes, size_t len, off_t at) {
    (void)fd, (void)bytes, (void)len, (void)at;
    return refused(ENOSPC);
}

static int fallocate_full(int fd, int mode, off_t at, off_t len) {
    (void)fd, (void)mode, (void)at, (void)len;
    return refused(ENOSPC);
}

static int mkdir_full(int dir, const char *path, mode_t mode) {
    struct stat st;
    (void)mode;
    return refused(fstatat(dir, path, &st, 0) == 0 ? EEXIST : ENOSPC);
}

/* ---- broken ---- */

static int sync_broken(int fd) {
    (void)fd;
    return refused(EIO);
}

static int open_broken(int dir, const char *path, int flags, mode_t mode) {
    (void)dir, (void)path, (void)flags, (void)mode;
    return refused(EIO);
}

static ssize_t pread_broken(int fd, void *bytes, size_t len, off_t at) {
    (void)fd, (void)bytes, (void)len, (void)at;
    return refused(EIO);
}

static ssize_t pwrite_broken(int fd, const void *bytes, size_t len, off_t at) {
    (void)fd, (void)bytes, (void)len, (void)at;
    return refused(EIO);
}

static int ftruncate_broken(int fd, off_t len) {
    (void)fd, (void)len;
    return refused(EIO);
}

static int fallocate_broken(int fd, int mode, off_t at, off_t len) {
    (void)fd, (void)mode, (void)at, (void)len;
    return refused(EIO);
}

static int rename_broken(int from_dir, const char *from, int to_dir, const char *to) {
    (void)from_dir, (void)from, (void)to_dir, (void)to;
    return refused(EIO);
}

static int unlink_broken(int dir, const char *path, int flags) {
    (void)dir, (void)path, (void)flags;
    return refused(EIO);
}

static int mkdir_broken(int dir, const char *path, mode_t mode) {
    (void)dir, (void)path, (void)mode;
    return refused(EIO);
}

const struct disk *disk_of(enum disk_kind kind) {
    static const struct disk disks[] = {
        [DISK_SYSTEM] = {open_system, pread, pwrite, ftruncate, fallocate, fsync, fdatasync, syncfs,
                         renameat, unlinkat, mkdirat},
        [DISK_FULL] = {open_full, pread, pwrite_full, ftruncate, fallocate_full, fsync, fdatasync,
                       syncfs, renameat, unlinkat, mkdir_full},
        [DISK_NO_SYNC] = {open_system, pread, pwrite, ftruncate, fallocate, sync_broken,
                          sync_broken, sync_broken, renameat, unlinkat, mkdirat},
        [DISK_BROKEN] = {open_broken, pread_broken, pwrite_broken, ftruncate_broken,
                         fallocate_broken, sync_broken, sync_broken, sync_broken, rename_broken,
                         unlink_broken, mkdir_broken},
    };
    assert((size_t)kind < sizeof disks / sizeof *disks);
    return &disks[kind];
}

/* Linux 5.8 and later report pages that could not be written (to each descriptor open at that
 * time). Linux 5.17 and later also report failed journals and transactions. */
static bool syncfs_reports(const char *release) {
    int version = 0, patch = 0;
    return sscanf(release, "%d.%d", &version, &patch) == 2 &&
           (version > 5 || (version == 5 && patch >= 17));
}

const char *disk_syncfs_problem(int fd) {
    struct utsname system;
    struct statfs fs;
    if (uname(&system) != 0 || !syncfs_reports(system.release)) return "Linux before 5.17";
    if (fstatfs(fd, &fs) != 0) return "an unknown file system";
    switch ((uint64_t)fs.f_type) {
    case EXT4_SUPER_MAGIC:
    case XFS_SUPER_MAGIC:
    case BTRFS_SUPER_MAGIC:
    case TMPFS_MAGIC: return NULL;
    /* FUSE and network file systems do not report errors, overlays none of the layers below. */
    default: return "a file system that may not report it";
    }
}

bool disk_error_is_shortage(int error) {
    switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case EAGAIN: return true;
    default: return false;
    }
}
