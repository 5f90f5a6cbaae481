/* A log directory: its small files, faults, free space, and delayed removals. Usage:
 * log_directories DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "log/log_simulation.h"
#include "os/mailbox.h"

static struct log_dir *dir;
static struct iopool *pool;

static uint64_t shortages(int *error) {
    struct log_dir_stats figures;
    log_dir_read_stats(dir, &figures);
    *error = (int)figures.short_error;
    return figures.shortages;
}

/* ---- faults ---- */

static void tell_shortages(void) {
    static const struct {
        int error, result;
    } shorts[] = {{ENOSPC, LOG_E_FULL},   {EDQUOT, LOG_E_FULL},   {EFBIG, LOG_E_FULL},
                  {ENOMEM, LOG_E_MEMORY}, {EMFILE, LOG_E_MEMORY}, {ENFILE, LOG_E_MEMORY}};
    int last;
    for (size_t i = 0; i < sizeof shorts / sizeof *shorts; i++) {
        CHECK(log_dir_error(dir, shorts[i].error, "pwrite") == shorts[i].result);
        CHECK(shortages(&last) == i + 1 && last == shorts[i].error);
        CHECK(!log_dir_offline(dir));
    }
    CHECK(!log_dir_report_error(dir, ENOSPC) && shortages(&last) == 7 && last == ENOSPC);
    const char *call = "";
    CHECK(log_dir_failure(dir, &call) == 0 && call == NULL);
    CHECK(log_dir_report_error(dir, EACCES) && log_dir_offline(dir) && shortages(&last) == 7);
    CHECK(log_dir_failure(dir, &call) == EACCES && strcmp(call, "checkpoint") == 0);
    /* The first failure is reported. */
    CHECK(log_dir_error(dir, EIO, "pread") == LOG_E_IO);
    CHECK(log_dir_failure(dir, &call) == EACCES && strcmp(call, "checkpoint") == 0);
    CHECK(log_dir_failure(dir, NULL) == EACCES);
}

static void fail_without_errno(void) {
    log_dir_fail(dir, 0, "fsync");
    CHECK(log_dir_offline(dir) && log_dir_failure(dir, NULL) == EIO);
}

/* ---- small files ---- */

static void read_files(void) {
    uint8_t *bytes;
    size_t len;
    played_write(dir, "small", "0123456789", 10);
    CHECK(log_dir_read_file(dir, "none", 100, &bytes, &len) == -ENOENT);
    CHECK(log_dir_read_file(dir, "small", 9, &bytes, &len) == LOG_E_CORRUPT);
    played_fail(PREAD, "small", EINTR, 1);
    CHECK(log_dir_read_file(dir, "small", 10, &bytes, &len) == 0 && len == 10);
    CHECK(memcmp(bytes, "0123456789", 10) == 0);
    free(bytes);
    for (size_t most = 1; most < 10; most++) {
        played_shorten(PREAD, "small", most);
        CHECK(log_dir_read_file(dir, "small", 11, &bytes, &len) == 0 && len == 10);
        CHECK(memcmp(bytes, "0123456789", 10) == 0);
        free(bytes);
    }
    played_fail(PREAD, "small", EIO, 1);
    CHECK(log_dir_read_file(dir, "small", 10, &bytes, &len) == -EIO);
    played_shorten(PREAD, "small", 0); /* truncated during the read */
    CHECK(log_dir_read_file(dir, "small", 10, &bytes, &len) == -EIO);
    short_of.starved = 1;
    CHECK(log_dir_read_file(dir, "small", 10, &bytes, &len) == -ENOMEM);
    played_write(dir, "small", "", 0);
    CHECK(log_dir_read_file(dir, "small", 0, &bytes, &len) == 0 && len == 0);
    free(bytes);
    CHECK(!log_dir_offline(dir)); /* The caller decides. */
}

static void write_files(void) {
    char bytes[20];
    CHECK(log_dir_write_file(dir, "small", "first", 5, false) == 0);
    CHECK(played.counts[FSYNC] == 0 && played_size(dir, "small") == 5);
    CHECK(log_dir_write_file(dir, "small", "second", 6, true) == 0 && played.counts[FSYNC] == 1);
    static const struct {
        enum played_call call;
        int error;
    } faults[] = {{OPENAT, EACCES}, {PWRITE, ENOSPC}, {FSYNC, EIO}, {RENAMEAT, ENOSPC}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        played_fail(faults[i].call, "small.tmp", faults[i].error, 1);
        CHECK(log_dir_write_file(dir, "small", "third one", 9, true) == -faults[i].error);
        CHECK(played_read(dir, "small", bytes, sizeof bytes) == 6);
        CHECK(memcmp(bytes, "second", 6) == 0 && played_size(dir, "small.tmp") == -1);
    }
    played_shorten(PWRITE, "small.tmp", 8);
    CHECK(log_dir_write_file(dir, "small", "third one", 9, true) == -ENOSPC);
    CHECK(played_size(dir, "small") == 6 && played_size(dir, "small.tmp") == -1);
    /* The order guarantees that a name on disk has its contents. */
    played_note();
    CHECK(log_dir_write_file(dir, "small", "third one", 9, true) == 0);
    const char *synced = strstr(played.notes, "fsync"), *named = strstr(played.notes, "rename");
    CHECK(synced != NULL && named != NULL && synced < named);
    CHECK(played_size(dir, "small") == 9 && !log_dir_offline(dir));
}

static void open_files(void) {
    /* No idle descriptor can be closed. */
    played_fail(OPENAT, "small", EMFILE, 3);
    CHECK(log_dir_open(dir, "small", O_RDWR | O_CREAT) == -1 && errno == EMFILE);
    CHECK(played.faults[OPENAT].times == 1); /* one more attempt with the lock */
    played_heal();
    int fd = log_dir_open(dir, "small", O_RDWR | O_CREAT);
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && (st.st_mode & 0777) == 0644);
    close(fd);
    CHECK(log_dir_rename(dir, "small", "other") == 0 && played_size(dir, "other") == 0);
    CHECK(log_dir_rename(dir, "small", "other") == -ENOENT);
    CHECK(log_dir_unlink(dir, "other") == 0 && log_dir_unlink(dir, "other") == -ENOENT);
}

static void sync_names(void) {
    CHECK(mkdirat(dir->fd, "t-0", 0755) == 0);
    CHECK(log_dir_sync(dir, "t-0") == 0 && log_dir_sync(dir, NULL) == 0);
    CHECK(played.counts[FSYNC] == 2);
    CHECK(log_dir_sync(dir, "none") == -ENOENT);
    played_fail(OPENAT, "t-0", EMFILE, 2);
    CHECK(log_dir_sync(dir, "t-0") == -EMFILE && !log_dir_offline(dir));
    played_fail(FSYNC, "t-0", ENOSPC, 1);
    const char *call;
    CHECK(log_dir_sync(dir, "t-0") == LOG_E_IO && log_dir_failure(dir, &call) == ENOSPC);
    CHECK(strcmp(call, "fsync") == 0);
}

/* ---- free space ---- */

static struct log *open_log(void) {
    const struct log_config config = scene_config(1 << 20, 4096);
    const struct log_checkpoint checkpoint = {.log_start_offset = -1, .high_watermark = -1};
    static const uint8_t id[16] = {1};
    struct log *log;
    CHECK(log_open(dir, "t", 0, id, &config, &checkpoint, 0, &log) == 0);
    return log;
}

static int64_t look(void) {
    int64_t free_bytes = -1, total_bytes = -1;
    CHECK(log_dir_measure_space(dir, &free_bytes, &total_bytes));
    CHECK(total_bytes == 10000);
    return free_bytes;
}

static void take_room(void) {
    struct log *log = open_log();
    short_of.total_blocks = 10000;
    short_of.free_blocks = 5000;
    CHECK(look() == 5000 && atomic_load(&dir->room_bytes) == 5000);
    CHECK(atomic_load(&dir->measure_below_bytes) == 3750);
    /* Without a reserve nothing is checked. */
    CHECK(log_dir_reserve(dir, 6000) && atomic_load(&dir->reserved_bytes) == 6000);
    CHECK(log_dir_may_allocate(dir, 1 << 30));
    log_dir_unreserve(dir, 6000);
    CHECK(atomic_load(&dir->reserved_bytes) == 0 && atomic_load(&dir->room_bytes) == 5000);
    log_dir_set_reserve(dir, 1000);
    CHECK(look() == 5000 && atomic_load(&dir->room_bytes) == 4000);
    CHECK(log_dir_may_allocate(dir, 4000) && !log_dir_may_allocate(dir, 4001));
    /* Until a quarter of the space is used, it is not checked again; then pending bytes count. */
    short_of.free_blocks = 4500;
    CHECK(log_dir_reserve(dir, 1000) && atomic_load(&dir->room_bytes) == 3000);
    CHECK(log_dir_reserve(dir, 1) && atomic_load(&dir->room_bytes) == 2499);
    CHECK(atomic_load(&dir->reserved_bytes) == 1001);
    CHECK(log_dir_reserve(dir, 2499) && atomic_load(&dir->room_bytes) == 0);
    CHECK(!log_dir_short_of_space(dir));
    CHECK(!log_dir_reserve(dir, 1) && log_dir_short_of_space(dir));
    CHECK(atomic_load(&dir->refused_bytes) == 1 && atomic_load(&dir->reserved_bytes) == 3500);
    log_dir_unreserve(dir, 2500);
    log_dir_unreserve(dir, 1000);
    CHECK(look() == 4500 && !log_dir_short_of_space(dir));
    CHECK(atomic_load(&dir->refused_bytes) == 0);
    log_release(log);
}

static void refuse_the_large(void) {
    struct log *log = open_log();
    short_of.total_blocks = 10000;
    short_of.free_blocks = 3000;
    log_dir_set_reserve(dir, 1000);
    CHECK(look() == 3000);
    CHECK(!log_dir_reserve(dir, 2001) && atomic_load(&dir->refused_bytes) == 2001);
    CHECK(log_dir_short_of_space(dir) && atomic_load(&dir->room_bytes) == 2000);
    CHECK(log_dir_reserve(dir, 2000) && atomic_load(&dir->room_bytes) == 0);
    log_dir_unreserve(dir, 2000);
    CHECK(!log_dir_reserve(dir, 5000) && atomic_load(&dir->refused_bytes) == 2001);
    short_of.free_blocks = 2500;
    CHECK(!log_dir_reserve(dir, 1600) && atomic_load(&dir->refused_bytes) == 1600);
    /* After a rejection, requests of that size wait until enough space exists for them. */
    short_of.free_blocks = 9000;
    CHECK(!log_dir_reserve(dir, 1600));
    short_of.free_blocks = 2599;
    CHECK(look() == 2599 && log_dir_short_of_space(dir));
    CHECK(atomic_load(&dir->refused_bytes) == 1600);
    short_of.free_blocks = 2600;
    CHECK(look() == 2600 && !log_dir_short_of_space(dir));
    CHECK(log_dir_reserve(dir, 1600));
    log_dir_unreserve(dir, 1600);
    log_release(log);
}

/* ---- removals ---- */

static void order_removals(void) {
    static const int64_t delays[] = {50000, 10000, 50000, -1, INT64_MAX, 20000};
    static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
    for (int i = 0; i < 6; i++) log_dir_remove_later(dir, names[i], delays[i]);
    int64_t now = clock_read_ms(CLOCK_MONOTONIC), before = INT64_MIN;
    char order[8] = "";
    for (struct log_dir_removal *r = dir->removals; r != NULL; r = r->next) {
        strcat(order, r->path);
        CHECK(r->due_ms >= before && !r->again && r->dir == dir);
        before = r->due_ms;
        if (r->path[0] == 'b') CHECK(r->due_ms <= now + 10000 && r->due_ms > now);
        if (r->path[0] == 'e') CHECK(r->due_ms == INT64_MAX);
    }
    CHECK(strcmp(order, "dbface") == 0);
    played_write(dir, "a", "1", 1);
    CHECK(mkdirat(dir->fd, "b", 0755) == 0);
    played_write(dir, "b/one", "1", 1);
    played_write(dir, "b/two", "1", 1);
}

/* End with the directory's removal, which runs all pending removals. */
static void check_removed(const char *path) {
    struct stat st;
    char name[512];
    snprintf(name, sizeof name, "%s/a", path);
    CHECK(stat(name, &st) != 0);
    snprintf(name, sizeof name, "%s/b", path);
    CHECK(stat(name, &st) != 0);
}

/* ---- wake-ups of the flusher's threads ---- */

/* The end of the last bounded sleep; under the directory's flush_lock. */
static int64_t slept_until_ms;

int __real_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock,
                                  const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock,
                                  const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock,
                                  const struct timespec *until) {
    slept_until_ms = until->tv_sec * 1000 + until->tv_nsec / 1000000;
    return __real_pthread_cond_timedwait(condition, lock, until);
}

static void sleep_until_due(void) {
    log_dir_remove_later(dir, "much later", 900000);
    log_dir_remove_later(dir, "later", 600000);
    for (int64_t until = 0, due = -1, last; until != due; usleep(500)) {
        lock_acquire(&dir->flush_lock);
        until = slept_until_ms;
        due = dir->removals->due_ms;
        last = dir->removals->next->due_ms;
        lock_release(&dir->flush_lock);
        CHECK(until == 0 || until == due || until == last);
    }
}

static void await_removal(const char *name, int64_t delay_ms) {
    played_write(dir, name, "x", 1);
    log_dir_remove_later(dir, name, delay_ms);
    if (delay_ms > 0) return;
    while (played_size(dir, name) >= 0) usleep(500);
}

static void wake_flusher(void) {
    struct mailbox *m = mailbox_new(8);
    struct message message;
    struct log *log = open_log();
    short_of.total_blocks = 10000;
    short_of.free_blocks = 3000;
    log_dir_set_reserve(dir, 1000);
    CHECK(look() == 3000);
    usleep(10000); /* They are asleep. */
    await_removal("now", 0);
    /* Rejected space and a check that finds none both trigger pending removals. */
    await_removal("later", 600000);
    CHECK(!log_dir_reserve(dir, 2001));
    while (played_size(dir, "later") >= 0) usleep(500);
    short_of.free_blocks = 9000;
    CHECK(look() == 9000 && !log_dir_short_of_space(dir));
    await_removal("much later", 600000);
    atomic_store(&dir->refused_bytes, 5000);
    short_of.free_blocks = 3000;
    CHECK(look() == 3000 && log_dir_short_of_space(dir));
    while (played_size(dir, "much later") >= 0) usleep(500);
    /* All waiters are notified of a failure. */
    CHECK(log_become_leader(log, 0, 1) == 0);
    struct log_waiter w = {.mailbox = m, .offset = 5, .wait_for = LOG_WAIT_END};
    CHECK(!log_wait(log, &w));
    log_dir_fail(dir, EIO, "pread");
    while (mailbox_take(m, &message, 1) == 0) usleep(500);
    CHECK(message.status == LOG_E_OFFLINE);
    mailbox_free(m);
    log_release(log);
}

/* ---- recovery at a start ---- */

static void sweep(const char *path) {
    static const char *const left[] = {"t-0.0123456789abcdef0123456789abcdef-delete",
                                       "x.ffffffffffffffffffffffffffffffff-delete"};
    static const char *const kept[] = {"t-0.0123456789abcdef0123456789abcdef-future",
                                       "t-0.0123456789abcdef0123456789abcde-delete",
                                       "t-0.0123456789abcdeg0123456789abcdef-delete",
                                       "t-0-0123456789abcdef0123456789abcdef-delete",
                                       ".0123456789abcdef0123456789abcdef-delete",
                                       "t-0.0123456789abcdef0123456789abcdef-deletes"};
    for (int i = 0; i < 2; i++) CHECK(mkdirat(dir->fd, left[i], 0755) == 0);
    for (int i = 0; i < 6; i++) CHECK(mkdirat(dir->fd, kept[i], 0755) == 0);
    log_dir_free(dir);
    dir = played_directory(path, pool);
    log_dir_free(dir);
    dir = played_directory(path, pool);
    played_still(dir);
    for (int i = 0; i < 2; i++) CHECK(played_size(dir, left[i]) == -1);
    for (int i = 0; i < 6; i++) CHECK(played_size(dir, kept[i]) >= 0);
}

static void open_directories(const char *path) {
    char name[512];
    int error = -1;
    snprintf(name, sizeof name, "%s/none/below", path);
    CHECK(log_dir_new(name, pool, &error) == NULL && error == ENOENT);
    played_write(dir, "file", "1", 1);
    snprintf(name, sizeof name, "%s/file", path);
    CHECK(log_dir_new(name, pool, &error) == NULL && error == ENOTDIR);
    snprintf(name, sizeof name, "%s/new", path);
    for (int after = 0; after < 2; after++) {
        short_of.starved_after = after;
        short_of.starved = 1;
        CHECK(log_dir_new(name, pool, &error) == NULL && error == ENOMEM);
    }
    short_of.starved = 0;
    struct log_dir *other = log_dir_new(name, pool, &error);
    CHECK(other != NULL && error == 0 && strcmp(other->path, name) == 0);
    struct log_dir_stats figures;
    log_dir_read_stats(other, &figures);
    CHECK(figures.open_files == 0 && figures.shortages == 0 && figures.rolls == 0);
    CHECK(other->open_max == LOG_DIR_OPEN_MAX && !log_dir_offline(other));
    log_dir_free(other);
    log_dir_free(NULL);
}

/* ---- recorded damage ---- */

static void take_damages(void) {
    CHECK(mkdirat(dir->fd, "t-0", 0755) == 0);
    struct partition_dir *home = partition_dir_new(dir, "t-0");
    struct segment *s = segment_new(home, 70, 0, -1);
    static struct log_damage out[LOG_DAMAGES_MAX + 10];
    struct log_dir_stats figures;
    CHECK(log_dir_fetch_damages(dir, out, 5) == 0);
    for (int i = 0; i < LOG_DAMAGES_MAX + 3; i++)
        log_damage_record(s, i % LOG_DAMAGE_EPOCHS, LOG_WHY_CRC, 100 + i, i, 10);
    CHECK(log_dir_fetch_damages(dir, out, 3) == 3);
    for (int i = 0; i < 3; i++) CHECK(out[i].offset == 100 + i && out[i].position == i);
    CHECK(strcmp(out[0].partition, "t-0") == 0 && out[0].segment == 70 && out[0].bytes == 10);
    CHECK(out[1].kind == LOG_DAMAGE_DROPPED && out[1].why == LOG_WHY_CRC);
    CHECK(log_dir_fetch_damages(dir, out, LOG_DAMAGES_MAX + 10) == LOG_DAMAGES_MAX - 3);
    CHECK(out[0].offset == 103 && out[LOG_DAMAGES_MAX - 4].offset == 99 + LOG_DAMAGES_MAX);
    CHECK(log_dir_fetch_damages(dir, out, 5) == 0);
    log_dir_read_stats(dir, &figures);
    /* 1027 alternating entries: 343 truncated, 342 dropped, 342 retained. */
    CHECK(figures.damages_cut == 685 && figures.damages_kept == 342 && figures.bytes_cut == 6850);
    segment_release(s);
    partition_dir_release(home);
}

static void run(const char *name, const char *path) {
    static const struct {
        const char *name;
        void (*run)(void);
    } scenes[] = {{"shortages", tell_shortages}, {"errno", fail_without_errno},
                  {"read", read_files},          {"write", write_files},
                  {"open", open_files},          {"sync", sync_names},
                  {"room", take_room},           {"large", refuse_the_large},
                  {"order", order_removals},     {"damages", take_damages},
                  {"wake", wake_flusher},        {"sleep", sleep_until_due}};
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(name, scenes[i].name) == 0) scenes[i].run();
    if (strcmp(name, "sweep") == 0) sweep(path);
    if (strcmp(name, "new") == 0) open_directories(path);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    pool = iopool_new(1, 16, NULL, NULL);
    dir = played_directory(argv[1], pool);
    if (strcmp(argv[2], "wake") != 0 && strcmp(argv[2], "sleep") != 0) played_still(dir);
    int before = played_descriptors();
    run(argv[2], argv[1]);
    CHECK(played_descriptors() == before);
    log_dir_free(dir);
    if (strcmp(argv[2], "order") == 0) check_removed(argv[1]);
    iopool_free(pool);
    puts("ok");
    return 0;
}
