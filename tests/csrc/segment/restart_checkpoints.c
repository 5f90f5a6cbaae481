/* The crash state table, which outlives its process: the entries found there, and its slots.
 * Usage: restart_checkpoints DIRECTORY SCENE; the directory is in a tmpfs, because tables need one.
 * Exits with 0, or with 1 and a line on stderr. */
#include <dirent.h>

#include "segment/restart_checkpoint.h"
#include "log/log_simulation.h"

static const char *where;
static int dir_fd;
static dev_t device;

static struct restart_checkpoint *begin(void) { return restart_checkpoint_new(dir_fd, where); }

/* Return the stat of a file that has been unchanged for this many seconds. */
static struct stat file_of(uint64_t inode, int64_t seconds_ago) {
    struct stat st;
    memset(&st, 0, sizeof st);
    st.st_dev = device;
    st.st_ino = inode;
    st.st_ctim.tv_sec = clock_read_ns(CLOCK_REALTIME) / 1000000000 - seconds_ago;
    st.st_ctim.tv_nsec = 7;
    return st;
}

static void record(struct restart_checkpoint *w, uint64_t inode, int64_t bytes,
                   int64_t seconds_ago) {
    struct stat st = file_of(inode, seconds_ago);
    struct restart_checkpoint_slot *slot = restart_checkpoint_acquire_slot(w, &st);
    CHECK(slot != NULL && atomic_load(&slot->inode) == 0);
    restart_checkpoint_record(slot, &st, (int64_t)inode * 10, bytes, bytes / 2);
}

static bool finds(struct restart_checkpoint *w, uint64_t inode,
                  struct restart_checkpoint_found *out) {
    struct stat st = file_of(inode, 0);
    return restart_checkpoint_find(w, &st, out);
}

/* Return the size of the only table file here, and its name below the folder. */
static off_t table(char name[300]) {
    DIR *entries = opendir(where);
    struct dirent *entry;
    struct stat st = {0};
    name[0] = 0;
    while ((entry = readdir(entries)) != NULL) {
        if (strncmp(entry->d_name, "pylog-", 6) != 0) continue;
        CHECK(name[0] == 0); /* a single file, and no temporary one */
        snprintf(name, 300, "%s/%s", where, entry->d_name);
        CHECK(stat(name, &st) == 0 && (st.st_mode & 0777) == 0600);
    }
    closedir(entries);
    return st.st_size;
}

/* A process finds the entries of the killed one. */
static void find(void) {
    struct restart_checkpoint_found found;
    struct restart_checkpoint *w = begin();
    CHECK(w != NULL && restart_checkpoint_found_count(w) == 0 && !finds(w, 5, &found));
    for (uint64_t inode = 90; inode >= 10; inode -= 10) record(w, inode, 1000 + inode, 60);
    struct restart_checkpoint *next = begin();
    CHECK(restart_checkpoint_found_count(next) == 9);
    for (uint64_t inode = 1; inode <= 100; inode++) {
        bool there = inode % 10 == 0 && inode < 100;
        CHECK(finds(next, inode, &found) == there);
        if (!there) continue;
        CHECK(found.inode == inode && found.base_offset == (int64_t)inode * 10);
        CHECK(found.bytes == 1000 + (int64_t)inode && found.flushed == (1000 + (int64_t)inode) / 2);
        struct stat st = file_of(inode, 60);
        CHECK(found.time_ns <= restart_checkpoint_ctime_ns(&st) && found.time_ns % 1000 == 7);
    }
    struct stat other = file_of(10, 0);
    other.st_dev++;
    CHECK(!restart_checkpoint_find(next, &other, &found) &&
          restart_checkpoint_acquire_slot(next, &other) == NULL);
    CHECK(!restart_checkpoint_find(NULL, &other, &found) &&
          restart_checkpoint_acquire_slot(NULL, &other) == NULL);
    CHECK(restart_checkpoint_found_count(NULL) == 0);
    /* So does the one after it, including entries that were never taken. */
    struct restart_checkpoint *third = begin();
    CHECK(restart_checkpoint_found_count(third) == 9 && finds(third, 90, &found) &&
          found.bytes == 1090);
    restart_checkpoint_free(third);
    char name[300];
    CHECK(table(name) == 0 && name[0] == 0);
    third = begin();
    CHECK(restart_checkpoint_found_count(third) == 0);
    restart_checkpoint_forget(third);
    restart_checkpoint_forget(third);
    restart_checkpoint_forget(NULL);
    CHECK(table(name) == 0 && name[0] == 0);
    restart_checkpoint_free(third);
    restart_checkpoint_free(NULL);
}

/* The newest entry of a file counts; entries with another clock or without a file do not. */
static void believe(void) {
    struct restart_checkpoint_found found;
    struct restart_checkpoint *w = begin();
    record(w, 5, 100, 30);
    record(w, 5, 200, 20);
    record(w, 5, 300, 40);
    record(w, 6, 400, -60);
    record(w, 7, 500, 10);
    struct stat st = file_of(8, 10);
    struct restart_checkpoint_slot *slot = restart_checkpoint_acquire_slot(w, &st);
    restart_checkpoint_record(slot, &st, 0, 0, 0);
    struct restart_checkpoint *next = begin();
    CHECK(restart_checkpoint_found_count(next) == 3 && finds(next, 5, &found) &&
          found.bytes == 200);
    CHECK(!finds(next, 6, &found) && finds(next, 7, &found) && found.bytes == 500);
    CHECK(finds(next, 8, &found) && found.base_offset == 0 && found.bytes == 0);
    /* After a disk fault no entry counts. */
    restart_checkpoint_void(next);
    restart_checkpoint_void(NULL);
    struct restart_checkpoint *third = begin();
    CHECK(restart_checkpoint_found_count(third) == 0);
    restart_checkpoint_free(third);
}

static void grow(void) {
    struct restart_checkpoint_slot *slots[300];
    struct restart_checkpoint *w = begin();
    char name[300];
    CHECK(table(name) == 4096);
    static const struct {
        int taken, room;
    } sizes[] = {{1, 64}, {64, 64}, {65, 128}, {128, 128}, {129, 256}, {256, 256}, {257, 512}};
    int taken = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (; taken < sizes[i].taken; taken++) {
            struct stat st = file_of(1000 + (uint64_t)taken, 5);
            slots[taken] = restart_checkpoint_acquire_slot(w, &st);
            CHECK(slots[taken] != NULL && (taken == 0 || slots[taken] == slots[0] + taken));
            restart_checkpoint_record(slots[taken], &st, taken, 50, 10);
        }
        CHECK(table(name) == 4096 + 64 * sizes[i].room);
    }
    /* The next table starts with space for the entries found, in chunks. */
    struct restart_checkpoint *next = begin();
    CHECK(restart_checkpoint_found_count(next) == 257 && table(name) == 4096 + 64 * 320);
    /* A known file gets the slot of its entry, once. */
    struct stat st = file_of(1100, 0);
    struct restart_checkpoint_slot *slot = restart_checkpoint_acquire_slot(next, &st);
    struct restart_checkpoint_slot *again = restart_checkpoint_acquire_slot(next, &st);
    CHECK(atomic_load(&slot->inode) == 1100 && atomic_load(&slot->base_offset) == 100);
    CHECK(again != slot && atomic_load(&again->inode) == 0);
    /* A returned slot is empty and is reused first. */
    restart_checkpoint_release_slot(next, slot);
    CHECK(atomic_load(&slot->inode) == 0);
    restart_checkpoint_release_slot(next, NULL);
    st.st_ino = 1;
    CHECK(restart_checkpoint_acquire_slot(next, &st) == slot &&
          restart_checkpoint_acquire_slot(next, &st) == again + 1);
    for (int i = 0; i < 40; i++) restart_checkpoint_release_slot(next, again - i);
    for (int i = 39; i >= 0; i--) CHECK(restart_checkpoint_acquire_slot(next, &st) == again - i);
    restart_checkpoint_free(next);
}

static void move(void) {
    struct restart_checkpoint *w = begin();
    struct stat st = file_of(9, 100);
    struct restart_checkpoint_slot *slot = restart_checkpoint_acquire_slot(w, &st);
    restart_checkpoint_record(slot, &st, 70, 500, 400);
    int64_t before = clock_read_ns(CLOCK_REALTIME);
    restart_checkpoint_grown(slot, 600);
    int64_t grown = atomic_load(&slot->time_ns);
    CHECK(atomic_load(&slot->bytes) == 600 && grown >= before &&
          grown <= clock_read_ns(CLOCK_REALTIME));
    atomic_store(&slot->time_ns, 5);
    restart_checkpoint_touched(slot);
    CHECK(atomic_load(&slot->time_ns) >= grown && atomic_load(&slot->bytes) == 600);
    int64_t ahead = clock_read_ns(CLOCK_REALTIME) + 1000000000000;
    atomic_store(&slot->time_ns, ahead);
    restart_checkpoint_touched(slot);
    CHECK(atomic_load(&slot->time_ns) == ahead);
    restart_checkpoint_clear(slot);
    CHECK(atomic_load(&slot->inode) == 0);
    restart_checkpoint_free(w);
}

static void copy_table(const char *from, const char *name, mode_t mode, off_t bytes) {
    static char buffer[1 << 16];
    char to[600];
    snprintf(to, sizeof to, "%s/%s", where, name);
    int in = open(from, O_RDONLY), out = open(to, O_RDWR | O_CREAT | O_TRUNC, 0600);
    ssize_t n = read(in, buffer, sizeof buffer);
    CHECK(n > 0 && pwrite(out, buffer, (size_t)n, 0) == n && ftruncate(out, bytes) == 0);
    /* Of a directory that does not exist. */
    CHECK(pwrite(out, "/none/at/all", 13, 40) == 13);
    CHECK(fchmod(out, mode) == 0);
    close(in);
    close(out);
}

static bool is_there(const char *name) {
    char path[600];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", where, name);
    return lstat(path, &st) == 0;
}

/* Tables of deleted directories are removed, unless they belong to another process or are no
 * tables. */
static void sweep(void) {
    char name[300], ours[64], other[600];
    unsigned user = (unsigned)geteuid();
    struct restart_checkpoint *w = begin();
    table(name);
    snprintf(ours, sizeof ours, "pylog-%u-left", user);
    copy_table(name, ours, 0600, 4096);
    copy_table(name, "other-table", 0600, 4096);
    char open_to_all[64], cut[64];
    snprintf(open_to_all, sizeof open_to_all, "pylog-%u-open", user);
    copy_table(name, open_to_all, 0640, 4096);
    snprintf(cut, sizeof cut, "pylog-%u-cut", user);
    copy_table(name, cut, 0600, 4095);
    snprintf(other, sizeof other, "%s/none", where);
    CHECK(restart_checkpoint_new(dir_fd, other) == NULL);
    struct restart_checkpoint *next = begin();
    CHECK(next != NULL && !is_there(ours) && is_there("other-table"));
    CHECK(is_there(open_to_all) && is_there(cut));
    restart_checkpoint_free(next);
    (void)w;
}

/* Without memory there is no table, and no process finds an outdated one. */
static void starve(void) {
    struct restart_checkpoint *w = begin();
    record(w, 5, 100, 10);
    char name[300];
    int failed = 0;
    for (int after = 0; after < 20; after++) {
        short_of.starved_after = after;
        short_of.starved = 1;
        struct restart_checkpoint *next = begin();
        bool met = short_of.starved == 0;
        short_of.starved = 0;
        failed += next == NULL;
        if (next == NULL && after > 0) CHECK(table(name) == 0);
        if (next != NULL) {
            record(next, 1000 + (uint64_t)after, 100, 10);
            if (!met) break;
        }
    }
    CHECK(failed >= 1);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } scenes[] = {{"find", find}, {"believe", believe}, {"grow", grow},
                  {"move", move}, {"sweep", sweep},     {"starve", starve}};
    char path[512];
    struct stat st;
    CHECK(argc == 3);
    played.by = pthread_self();
    where = argv[1];
    snprintf(path, sizeof path, "%s/data", where);
    CHECK(mkdir(path, 0755) == 0 || errno == EEXIST);
    dir_fd = open(path, O_RDONLY | O_DIRECTORY);
    CHECK(dir_fd >= 0 && fstat(dir_fd, &st) == 0);
    device = st.st_dev;
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(argv[2], scenes[i].name) == 0) scenes[i].run();
    puts("ok");
    return 0;
}
