/* Flushes: the files they sync, their order, and the guarantees after a failed call. Usage:
 * log_flush_calls DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "log/single_log.h"

enum { MANY = 40 };

static struct log_config config_of(int32_t segment_bytes) {
    return scene_config(segment_bytes, 3 * SMALL);
}

static int noted(const char *line) {
    int count = 0;
    for (const char *at = played.notes; (at = strstr(at, line)) != NULL; at++) count++;
    return count;
}

/* Return true if `line` precedes `other` in the notes. */
static bool before(const char *line, const char *other) {
    const char *a = strstr(played.notes, line), *b = strstr(played.notes, other);
    return a != NULL && b != NULL && a < b;
}

/* ---- one log ---- */

static void bring_all_to_disk(void) {
    open_one(config_of(4 * SMALL));
    fill(10, 1000);
    CHECK(log_flushed_offset(one) == 0 && log_recovery_point(one) == 0);
    struct segment *s = one->view.segments[0];
    atomic_store(&s->allocated, 9999);
    played_note();
    CHECK(log_flush(one) == 0 && log_flushed_offset(one) == 10 && log_recovery_point(one) == 10);
    CHECK(atomic_load(&one->flush.last_flush_ms) > 0);
    /* Three log files, the indexes of two, and the producer snapshots at the last two base
     * offsets. */
    CHECK(noted("\nsync ") == 3 + 4 + 2);
    CHECK(noted("fsync ") == 3); /* epochs, the log's directory, the parent directory */
    CHECK(before("\nsync ", "fsync ") && atomic_load(&s->flush_done));
    CHECK(atomic_load(&s->allocated) == 0 && !atomic_load(&s->dirty));
    CHECK(atomic_load(&one->view.segments[1]->flush_done));
    CHECK(!atomic_load(&one->view.segments[2]->flush_done));
    CHECK(!atomic_load(&one->view.segments[2]->dirty));
    CHECK(!log_marked(&one->flush.files_marks) && !log_marked(&one->flush.epochs_marks));
    CHECK(played_size(dir, "t-0/leader-epoch-checkpoint") == 8);
    /* Nothing is left to flush. */
    played_note();
    CHECK(log_flush(one) == 0 && played.notes[0] == 0);
    fill(1, 1000);
    played_note();
    CHECK(log_flush(one) == 0 && log_flushed_offset(one) == 11 && noted("sync ") == 1);
    CHECK(noted("fsync ") == 0);
    struct log_dir_stats figures;
    struct meter_stats times;
    memset(&times, 0, sizeof times);
    log_dir_read_stats(dir, &figures);
    log_dir_flush_times(dir, &times);
    CHECK(figures.flush_files == 4 && figures.flush_groups == 0);
    uint64_t count = 0;
    for (int i = 0; i < METER_BUCKETS; i++) count += times.counts[i];
    CHECK(count == 4);
    log_abandon(one);
    CHECK(log_flush(one) == LOG_E_DELETED);
    let_go();
}

/* More segments than one round flushes. */
static void bring_many_segments(void) {
    open_one(config_of(SMALL));
    fill(150, 1000);
    CHECK(log_flush(one) == 0 && log_flushed_offset(one) == 150);
    for (int i = 0; i < 149; i++) CHECK(atomic_load(&one->view.segments[i]->flush_done));
    struct log_dir_stats figures;
    log_dir_read_stats(dir, &figures);
    CHECK(figures.flush_files == 150);
    let_go();
}

static void close_what_is_too_many(void) {
    open_one(config_of(SMALL));
    log_dir_set_open_files(dir, 2);
    fill(10, 1000);
    CHECK(dir->open_count == 10); /* Unflushed files stay open. */
    CHECK(log_flush(one) == 0 && dir->open_count == 2);
    let_go();
}

static void fail_to_flush(void) {
    open_one(config_of(1 << 20));
    fill(3, 1000);
    CHECK(log_flush(one) == 0);
    fill(3, 1000);
    struct mailbox *m = mailbox_new(8);
    struct message message;
    struct log_waiter w = {.mailbox = m, .offset = 3, .wait_for = LOG_WAIT_FLUSHED};
    CHECK(!log_wait(one, &w));
    played_fail(FDATASYNC, ".log", ENOSPC, 1); /* for any reason */
    CHECK(log_flush(one) == LOG_E_IO && log_flushed_offset(one) == 3);
    const char *call;
    CHECK(log_dir_failure(dir, &call) == ENOSPC && strcmp(call, "fdatasync") == 0);
    CHECK(log_flush(one) == LOG_E_OFFLINE && log_flushed_offset(one) == 3);
    CHECK(mailbox_take(m, &message, 1) == 0 && w.linked);
    log_unwait(one, &w);
    CHECK(!w.linked && log_dir_flush(dir) == LOG_E_OFFLINE);
    mailbox_free(m);
    let_go();
}

static void fail_to_flush_names(void) {
    open_one(config_of(4 * SMALL));
    fill(6, 1000);
    played_fail(FSYNC, "t-0", EIO, 1);
    CHECK(log_flush(one) == LOG_E_IO && log_flushed_offset(one) == 0);
    CHECK(log_dir_offline(dir) && log_marked(&one->flush.files_marks));
    let_go();
}

static void fail_to_flush_indexes(void) {
    open_one(config_of(4 * SMALL));
    fill(6, 1000);
    played_fail(FDATASYNC, "timeindex", EIO, 1);
    CHECK(log_flush(one) == LOG_E_IO && log_flushed_offset(one) == 0 && log_dir_offline(dir));
    let_go();
}

/* Small files without space hold back the recovery point, and nothing else. */
static void hold_the_point(void) {
    open_one(config_of(1 << 20));
    fill(3, 1000);
    CHECK(log_flush(one) == 0);
    CHECK(log_become_leader(one, 2, 1) == 0);
    fill(3, 1000);
    played_fail(PWRITE, "epoch", ENOSPC, 1);
    CHECK(log_flush(one) == 0 && log_flushed_offset(one) == 6 && log_recovery_point(one) == 3);
    CHECK(log_marked(&one->flush.epochs_marks));
    fill(1, 1000);
    played_fail(OPENAT, "epoch", EMFILE, 3);
    CHECK(log_flush(one) == 0 && log_flushed_offset(one) == 7 && log_recovery_point(one) == 3);
    played_heal();
    CHECK(log_flush(one) == 0 && log_recovery_point(one) == 7);
    CHECK(!log_marked(&one->flush.epochs_marks));
    struct played_batch b = {.time = 1, .producer = 8, .attributes = BATCH_TRANSACTIONAL};
    CHECK(append(b) == 0 && append_marker(7, 0, false, 1) == 0);
    played_fail(PWRITE, "txnindex", ENOSPC, 1);
    CHECK(log_flush(one) == 0 && log_flushed_offset(one) == 9 && log_recovery_point(one) == 7);
    CHECK(atomic_load(&one->view.segments[0]->aborted_due));
    CHECK(log_flush(one) == 0 && log_recovery_point(one) == 9);
    CHECK(played_size(dir, file_of(0, "txnindex")) == 34);
    played_fail(FDATASYNC, "txnindex", EIO, 1);
    b.sequence = 1;
    CHECK(append(b) == 0 && append_marker(7, 0, false, 1) == 0);
    CHECK(log_flush(one) == LOG_E_IO && log_flushed_offset(one) == 9);
    let_go();
}

/* Indexes without space wait in memory for a later flush. */
static void wait_for_room(void) {
    open_one(config_of(8 * SMALL));
    played_fail(PWRITE, "000.index", ENOSPC, 2);
    fill(10, 1000);
    CHECK(played.faults[PWRITE].times == 1);
    CHECK(log_flush(one) == 0 && log_flushed_offset(one) == 10 && log_recovery_point(one) == 10);
    CHECK(atomic_load(&one->flush.indexes_due) && segment_index_has_pending(one->view.segments[0]));
    CHECK(played_size(dir, file_of(0, "index")) == 0);
    CHECK(log_flush(one) == 0 && !atomic_load(&one->flush.indexes_due));
    CHECK(played_size(dir, file_of(0, "index")) == 8);
    CHECK(!segment_index_has_pending(one->view.segments[0]));
    let_go();
}

/* ---- all logs of a directory ---- */

static struct log *logs[MANY];

static void open_many(int count, struct log_config config) {
    static const uint8_t id[16] = {1};
    const struct log_checkpoint checkpoint = from_nothing();
    for (int i = 0; i < count; i++) {
        CHECK(log_open(dir, "m", i, id, &config, &checkpoint, NOW, &logs[i]) == 0);
        CHECK(log_become_leader(logs[i], 0, 1) == 0);
    }
}

static void append_to(int i, int count) {
    one = logs[i];
    fill(count, 1000);
}

static void let_go_many(int count) {
    drop_asked();
    for (int i = 0; i < count; i++) log_release(logs[i]);
}

static void flush_few(void) {
    dir->syncfs_problem = NULL;
    open_many(7, config_of(1 << 20));
    for (int i = 0; i < 7; i++) append_to(i, 2);
    CHECK(log_dir_flush(dir) == 0 && played.counts[SYNCFS] == 0);
    for (int i = 0; i < 7; i++) CHECK(log_flushed_offset(logs[i]) == 2);
    append_to(3, 1);
    uint32_t syncs = played.counts[FDATASYNC];
    CHECK(log_dir_flush(dir) == 0 && played.counts[FDATASYNC] == syncs + 1);
    CHECK(log_flushed_offset(logs[3]) == 3);
    let_go_many(7);
}

static void flush_many(void) {
    dir->syncfs_problem = NULL;
    open_many(12, config_of(4 * SMALL));
    for (int i = 0; i < 12; i++) append_to(i, i == 5 ? 6 : 2); /* log 5 has two segments */
    log_abandon(logs[7]);
    log_hold_recovery_point(logs[8], 0);
    uint32_t syncs = played.counts[FDATASYNC];
    CHECK(log_dir_flush(dir) == 0 && played.counts[SYNCFS] == 1);
    for (int i = 0; i < 12; i++)
        CHECK(log_flushed_offset(logs[i]) == (i == 5 ? 6 : i == 7 ? 0 : 2));
    /* Log 5: two files, two indexes; log 8: one file. */
    CHECK(played.counts[FDATASYNC] == syncs + 6);
    CHECK(log_recovery_point(logs[8]) == 2 && atomic_load(&logs[5]->view.segments[0]->flush_done));
    for (int i = 0; i < 12; i++)
        if (i != 7) CHECK(!log_marked(&logs[i]->flush.files_marks));
    for (int i = 0; i < 12; i++)
        if (i != 7) CHECK(!log_marked(&logs[i]->flush.epochs_marks));
    CHECK(!atomic_load(&logs[0]->view.segments[0]->dirty));
    CHECK(log_dir_flush(dir) == 0 && played.counts[SYNCFS] == 1);
    for (int i = 0; i < 8; i++)
        if (i != 7) append_to(i, 1);
    append_to(9, 1);
    played_fail(SYNCFS, NULL, EIO, 1);
    CHECK(log_dir_flush(dir) == LOG_E_IO && log_flushed_offset(logs[0]) == 2);
    const char *call;
    CHECK(log_dir_failure(dir, &call) == EIO && strcmp(call, "syncfs") == 0);
    let_go_many(12);
}

/* If syncfs may miss errors, each file is synced by itself. */
static void flush_each(void) {
    dir->syncfs_problem = "the test says so";
    CHECK(strcmp(log_dir_syncfs_problem(dir), "the test says so") == 0);
    open_many(12, config_of(1 << 20));
    for (int i = 0; i < 12; i++) append_to(i, 2);
    CHECK(log_dir_flush(dir) == 0 && played.counts[SYNCFS] == 0);
    for (int i = 0; i < 12; i++) CHECK(log_flushed_offset(logs[i]) == 2);
    /* A log whose flush fails does not affect the others. */
    for (int i = 0; i < 12; i++) append_to(i, 1);
    for (int i = 0; i < 12; i++) log_mark(&logs[i]->flush.files_marks);
    played_fail(OPENAT, "m-4/.", EMFILE, 3);
    CHECK(log_dir_flush(dir) == LOG_E_MEMORY && !log_dir_offline(dir));
    played_heal();
    for (int i = 0; i < 12; i++) CHECK(log_flushed_offset(logs[i]) == (i == 4 ? 2 : 3));
    short_of.starved = 1;
    CHECK(log_dir_flush(dir) == LOG_E_MEMORY && log_dir_flush(dir) == 0);
    CHECK(log_flushed_offset(logs[4]) == 3);
    let_go_many(12);
}

static void settle(void) {
    dir->syncfs_problem = NULL;
    open_many(9, config_of(4 * SMALL));
    for (int i = 0; i < 9; i++) append_to(i, 6);
    log_abandon(logs[2]);
    short_of.starved = 1;
    CHECK(log_dir_close_files(dir) == LOG_E_MEMORY);
    played_fail(PWRITE, ".snapshot", ENOSPC, 1);
    CHECK(log_dir_close_files(dir) == LOG_E_FULL);
    for (int i = 0; i < 9; i++) {
        CHECK(log_flushed_offset(logs[i]) == (i == 2 ? 0 : 6));
        CHECK(logs[i]->append.writable == (i == 2));
    }
    CHECK(log_dir_close_files(dir) == 0);
    let_go_many(9);
}

/* ---- the flusher ---- */

static _Atomic int data_syncs, whole_syncs;
static int counting_fdatasync(int fd) {
    (void)fd;
    atomic_fetch_add(&data_syncs, 1);
    return 0;
}
static int counting_syncfs(int fd) {
    (void)fd;
    atomic_fetch_add(&whole_syncs, 1);
    return 0;
}

/* The threads flush the requested logs, and end. */
static void run_flusher(void) {
    struct flusher *f = &dir->flusher;
    static struct disk disk;
    disk = *log_dir_disk(dir);
    disk.fdatasync = counting_fdatasync;
    disk.syncfs = counting_syncfs;
    log_dir_set_disk(dir, &disk);
    data_syncs = whole_syncs = 0;
    lock_acquire(&dir->flush_lock);
    struct log **asked = f->requested.last, **slow = f->lazy_last;
    CHECK(flusher_start(dir) == 0 && f->thread_count == FLUSHER_THREADS);
    f->requested.last = asked;
    f->lazy_last = slow;
    lock_release(&dir->flush_lock);
    flusher_stop(dir);
    lock_condition_init(&dir->changed);
    f->thread_count = 0;
    f->closing = false;
    CHECK(f->requested.first == NULL && f->lazy_first == NULL && f->ready.first == NULL);
}

static void flush_what_was_asked(void) {
    struct log_dir_stats figures;
    dir->syncfs_problem = NULL;
    open_many(31, config_of(1 << 20));
    for (int i = 0; i < 31; i++) append_to(i, 1);
    CHECK(log_dir_flush(dir) == 0);
    for (int i = 0; i < 31; i++) append_to(i, 1);
    for (int i = 0; i < 31; i += 2) flush_queue_add(logs[i]);
    flush_queue_add(logs[0]); /* a second request is merged */
    CHECK(atomic_load(&logs[0]->references) == 2);
    log_dir_read_stats(dir, &figures);
    uint64_t groups = figures.flush_groups;
    run_flusher();
    log_dir_read_stats(dir, &figures);
    CHECK(figures.flush_groups == groups + 1 && data_syncs == 16 && whole_syncs == 0);
    for (int i = 0; i < 31; i++) {
        CHECK(log_flushed_offset(logs[i]) == (i % 2 == 0 ? 2 : 1));
        CHECK(atomic_load(&logs[i]->references) == 1 && !logs[i]->queue.wanted);
        CHECK(!logs[i]->queue.flushing && !logs[i]->queue.again);
    }
    for (int i = 1; i < 31; i += 2) flush_queue_add_lazy(logs[i]);
    flush_queue_add_lazy(logs[1]);
    CHECK(atomic_load(&logs[1]->references) == 2);
    run_flusher();
    CHECK(data_syncs == 15);
    for (int i = 0; i < 31; i++) {
        CHECK(log_flushed_offset(logs[i]) == 2 && !logs[i]->queue.lazy_wanted);
        CHECK(atomic_load(&logs[i]->references) == 1);
    }
    let_go_many(31);
}

static void flush_large_groups(void) {
    dir->syncfs_problem = NULL;
    open_many(34, config_of(4 * SMALL));
    for (int i = 0; i < 34; i++) append_to(i, 1);
    CHECK(log_dir_flush(dir) == 0);
    drop_asked();
    for (int i = 0; i < 34; i++) append_to(i, i == 20 ? 6 : 1); /* log 20 needs more */
    log_hold_recovery_point(logs[21], 0);
    drop_asked();
    for (int i = 0; i < 34; i++) flush_queue_add(logs[i]);
    run_flusher();
    CHECK(whole_syncs == 1);
    /* Log 20: two files and two indexes; log 21: one file. */
    CHECK(data_syncs >= 4 && data_syncs <= 6);
    for (int i = 0; i < 34; i++) {
        CHECK(log_flushed_offset(logs[i]) == (i == 20 ? 7 : 2));
        CHECK(log_recovery_point(logs[i]) == log_flushed_offset(logs[i]));
        CHECK(atomic_load(&logs[i]->references) == 1 && !logs[i]->queue.flushing);
    }
    /* A slow syncfs is not used; smaller groups never use it. */
    for (int i = 0; i < 34; i++) append_to(i, 1);
    drop_asked();
    atomic_store(&dir->flusher.syncfs_skips, 2);
    for (int i = 0; i < 34; i++) flush_queue_add(logs[i]);
    run_flusher();
    CHECK(whole_syncs == 0 && data_syncs >= 34 && atomic_load(&dir->flusher.syncfs_skips) == 1);
    for (int i = 0; i < 32; i++) append_to(i, 1);
    drop_asked();
    atomic_store(&dir->flusher.syncfs_skips, 0);
    for (int i = 0; i < 31; i++) flush_queue_add(logs[i]);
    run_flusher();
    CHECK(whole_syncs == 0);
    append_to(0, 1);
    drop_asked();
    for (int i = 0; i < 32; i++) flush_queue_add(logs[i]);
    run_flusher();
    CHECK(whole_syncs == 1);
    for (int i = 0; i < 32; i++) CHECK(log_flushed_offset(logs[i]) == log_end_offset(logs[i]));
    let_go_many(34);
}

/* One sync covers files, names and epochs of new logs, and surplus files are closed. */
static void relieve(void) {
    dir->syncfs_problem = NULL;
    open_many(34, config_of(1 << 20));
    log_dir_set_open_files(dir, 20);
    for (int i = 0; i < 30; i++) append_to(i, 1);
    CHECK(dir->open_count == 30 && atomic_load(&dir->over_limit) &&
          !atomic_load(&dir->over_hard_limit));
    CHECK(!log_descriptors_exhausted(logs[33]));
    append_to(30, 1);
    CHECK(atomic_load(&dir->over_hard_limit) && !log_descriptors_exhausted(logs[30]) &&
          log_descriptors_exhausted(logs[33]));
    CHECK(atomic_load(&logs[30]->references) == 1); /* it is not in the flusher's queue */
    run_flusher();
    CHECK(whole_syncs == 1 && data_syncs == 0 && !atomic_load(&dir->flusher.relief_wanted));
    for (int i = 0; i < 31; i++) {
        CHECK(log_flushed_offset(logs[i]) == 1);
        CHECK(!log_marked(&logs[i]->flush.files_marks));
        CHECK(!log_marked(&logs[i]->flush.epochs_marks));
    }
    CHECK(dir->open_count == 20 && !atomic_load(&dir->over_limit) &&
          !log_descriptors_exhausted(logs[33]));
    let_go_many(34);
    log_dir_set_open_files(dir, 100);
}

/* A failed directory: all waiters are notified, and nothing is synced. */
static void fail_all(void) {
    struct mailbox *m = mailbox_new(64);
    struct message messages[8];
    struct log_waiter waiters[3];
    open_many(3, config_of(1 << 20));
    for (int i = 0; i < 3; i++) {
        append_to(i, 1);
        waiters[i] = (struct log_waiter){.mailbox = m, .offset = 5,
                                         .wait_for = (uint8_t)(i + 1)};
        CHECK(!log_wait(logs[i], &waiters[i]));
    }
    for (int i = 0; i < 3; i++) flush_queue_add(logs[i]);
    log_dir_fail(dir, EIO, "pread");
    run_flusher();
    CHECK(data_syncs == 0 && mailbox_take(m, messages, 8) == 3 && dir->flusher.reported);
    for (int i = 0; i < 3; i++) {
        CHECK(messages[i].status == LOG_E_OFFLINE && !waiters[i].linked);
        CHECK(log_flushed_offset(logs[i]) == 0);
    }
    mailbox_free(m);
    let_go_many(3);
}

static _Atomic int syncs;
static _Atomic bool other_ended;
/* Like a kernel that reports a failure only once, to the first caller. */
static int telling_syncfs(int fd) {
    (void)fd;
    if (atomic_fetch_add(&syncs, 1) > 0) return 0;
    for (int i = 0; i < 200 && !atomic_load(&other_ended); i++) usleep(1000);
    errno = EIO;
    return -1;
}
static void *flush_besides(void *result) {
    while (atomic_load(&syncs) == 0) usleep(100);
    *(int *)result = log_dir_flush(dir);
    atomic_store(&other_ended, true);
    return NULL;
}

/* Two threads sync the directory at the same time: a failed write counts for neither. */
static void fail_both(void) {
    static struct disk disk;
    dir->syncfs_problem = NULL;
    open_many(12, config_of(1 << 20));
    for (int i = 0; i < 12; i++) append_to(i, 1);
    disk = *log_dir_disk(dir);
    disk.syncfs = telling_syncfs;
    log_dir_set_disk(dir, &disk);
    pthread_t other;
    int besides = 0;
    CHECK(pthread_create(&other, NULL, flush_besides, &besides) == 0);
    CHECK(log_dir_flush(dir) == LOG_E_IO);
    CHECK(pthread_join(other, NULL) == 0 && besides == LOG_E_OFFLINE);
    for (int i = 0; i < 12; i++) CHECK(log_flushed_offset(logs[i]) == 0);
    let_go_many(12);
}

/* Due removals are executed; on a nearly full disk all removals. */
static void remove_what_is_due(void) {
    for (int hurry = 0; hurry < 2; hurry++) {
        for (int i = 0; i < 4; i++) {
            char name[8];
            snprintf(name, sizeof name, "gone%d", i);
            played_write(dir, name, "x", 1);
            log_dir_remove_later(dir, name, i < 2 ? 0 : 600000);
        }
        atomic_store(&dir->short_of_space, hurry);
        run_flusher();
        lock_acquire(&dir->flush_lock);
        while (dir->jobs > 0) lock_condition_wait(&dir->jobs_done, &dir->flush_lock);
        lock_release(&dir->flush_lock);
        CHECK(played_size(dir, "gone0") == -1 && played_size(dir, "gone1") == -1);
        CHECK((played_size(dir, "gone2") == -1) == (hurry == 1));
        CHECK((played_size(dir, "gone3") == -1) == (hurry == 1));
        CHECK((dir->removals == NULL) == (hurry == 1));
    }
}

static _Atomic int refusals;
static int refusing_openat(int folder, const char *path, int flags, mode_t mode) {
    if (atomic_fetch_sub(&refusals, 1) <= 0) return openat(folder, path, flags, mode);
    errno = EMFILE;
    return -1;
}

/* Sleeping threads wake up for new requests, and retry rejected ones. */
static void flush_soon(void) {
    struct mailbox *m = mailbox_new(8);
    struct message message;
    static struct disk disk;
    disk = *log_dir_disk(dir);
    disk.openat = refusing_openat;
    open_one(config_of(1 << 20));
    fill(1, 1000);
    usleep(5000); /* They are asleep. */
    struct log_waiter w = {.mailbox = m, .offset = 0, .wait_for = LOG_WAIT_FLUSHED};
    CHECK(!log_wait(one, &w));
    while (mailbox_take(m, &message, 1) == 0) usleep(500);
    CHECK(message.status == 0 && log_flushed_offset(one) == 1);
    fill(1, 1000);
    flush_queue_add_lazy(one);
    while (log_flushed_offset(one) < 2) usleep(500);
    log_dir_set_disk(dir, &disk);
    log_mark(&one->flush.files_marks);
    fill(1, 1000);
    atomic_store(&refusals, 4);
    flush_queue_add(one);
    while (log_flushed_offset(one) < 3) usleep(500);
    CHECK(atomic_load(&refusals) < 0 && !log_dir_offline(dir));
    while (atomic_load(&one->references) > 1) usleep(500);
    mailbox_free(m);
    log_release(one);
}

int main(int argc, char **argv) {
    static const struct scene scenes[] = {
        {"all", bring_all_to_disk},       {"segments", bring_many_segments},
        {"open", close_what_is_too_many}, {"fail", fail_to_flush},
        {"names", fail_to_flush_names},   {"indexes", fail_to_flush_indexes},
        {"hold", hold_the_point},         {"room", wait_for_room},
        {"few", flush_few},               {"many", flush_many},
        {"each", flush_each},             {"settle", settle},
        {"asked", flush_what_was_asked},  {"large", flush_large_groups},
        {"failed", fail_all},             {"due", remove_what_is_due},
        {"soon", flush_soon},             {"crowd", relieve},
        {"both", fail_both}};
    bool still = argc == 3 && strcmp(argv[2], "soon") != 0;
    return play_scenes(argc, argv, scenes, sizeof scenes / sizeof *scenes, still);
}
