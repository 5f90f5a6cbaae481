/* Logs are opened and released while other threads flush and maintain their directory. Usage:
 * log_lifetimes DIRECTORY SCENE ROUNDS. Exits with 0, or with 1 and a line on stderr. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log_manager/log_manager.h"
#include "log_scenes.h"

enum { LOGS = 10, BATCHES = 20, NOW = 1000 };

static struct log_dir *directory;
static const uint8_t TOPIC_ID[16] = {1};
static int rounds;

static size_t make_batch(uint8_t *p, int64_t base_offset) {
    const uint8_t record[] = {18, 0, 0, 0, 1, 8, 'a', 'b', 'c', 'd'};
    size_t len = scene_batch(p, record, sizeof record, NOW, -1, -1);
    put_i64(p, base_offset);
    return len;
}

/* Not a clean start: all batches are checked. */
static struct log *open_log(int partition, int64_t start) {
    const struct log_config config = scene_config(500, 100);
    const struct log_checkpoint checkpoint = {.log_start_offset = start, .high_watermark = -1};
    struct log *log;
    CHECK(log_open(directory, "t", partition, TOPIC_ID, &config, &checkpoint, NOW, &log) == 0);
    return log;
}

static void append(struct log *log, int count) {
    CHECK(log_become_leader(log, 0, 1) == 0);
    for (int i = 0; i < count; i++) {
        uint8_t batch[128];
        struct batch_summary summary = {0};
        struct log_appended out;
        size_t len = make_batch(batch, 0);
        CHECK(batch_parse(batch, len, &summary.header) == 0);
        CHECK(log_append(log, batch, len, &summary, 0, NOW, &out) == 0);
    }
}

static void check_ends(struct log *log, int64_t end) {
    CHECK(log_end_offset(log) == end);
    CHECK(log_flushed_offset(log) <= end && log_recovery_point(log) <= end);
    CHECK(log_start_offset(log) <= log_high_watermark(log) && log_high_watermark(log) <= end);
}

static void let_go(struct log *log) {
    log_abandon(log);
    log_release(log);
}

/* ---- a flush that begins during a recovery and ends after it ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool begun, syncing, ended, opened;
} flush = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void say(bool *what) {
    pthread_mutex_lock(&flush.lock);
    *what = true;
    pthread_cond_broadcast(&flush.changed);
    pthread_mutex_unlock(&flush.lock);
}

static void await(const bool *this, const bool *or_this) {
    pthread_mutex_lock(&flush.lock);
    while (!*this && !*or_this) pthread_cond_wait(&flush.changed, &flush.lock);
    pthread_mutex_unlock(&flush.lock);
}

static int waiting_fdatasync(int fd) {
    say(&flush.syncing);
    await(&flush.opened, &flush.opened);
    return fdatasync(fd);
}

static void *flush_once(void *unused) {
    (void)unused;
    CHECK(log_dir_flush(directory) == 0);
    say(&flush.ended);
    return NULL;
}

static bool is_segment(int fd) {
    char name[64], path[512];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, path, sizeof path);
    return n > 4 && memcmp(path + n - 4, ".log", 4) == 0;
}

static ssize_t flushing_pread(int fd, void *bytes, size_t len, off_t at) {
    if (!flush.begun && is_segment(fd)) {
        flush.begun = true;
        CHECK(pthread_create(&flush.thread, NULL, flush_once, NULL) == 0);
        await(&flush.syncing, &flush.ended);
    }
    return pread(fd, bytes, len, at);
}

/* A log in recovery has no final end offset: nothing of it may be saved in a checkpoint. */
static void recovered(void) {
    struct log *log = open_log(0, -1);
    append(log, BATCHES);
    let_go(log);
    struct disk disk = *disk_of(DISK_SYSTEM);
    disk.pread = flushing_pread;
    disk.fdatasync = waiting_fdatasync;
    log_dir_set_disk(directory, &disk);
    log = open_log(0, -1);
    CHECK(flush.begun);
    say(&flush.opened);
    pthread_join(flush.thread, NULL);
    log_dir_set_disk(directory, disk_of(DISK_SYSTEM));
    check_ends(log, BATCHES);
    CHECK(log_dir_flush(directory) == 0 && log_flushed_offset(log) == BATCHES);
    let_go(log);
}

/* ---- a flush during a copy that begins before its log start ---- */

static struct log *copy;

static int following_fsync(int fd) {
    uint8_t batch[128];
    size_t len = make_batch(batch, 90);
    put_i32(batch + 23, 19); /* 90 to 109 */
    scene_seal(batch, len);
    if (log_end_offset(copy) == 100) {
        /* The copy lacks the second batch: it ends before the flush's offset. */
        put_u32(batch + 17, 0);
        size_t taken;
        CHECK(log_append_as_follower(copy, batch, len, NOW, &taken) == LOG_E_CORRUPT);
        CHECK(taken == 0);
    }
    return fsync(fd);
}

static void followed(void) {
    copy = open_log(0, 100);
    CHECK(log_end_offset(copy) == 100);
    struct disk disk = *disk_of(DISK_SYSTEM);
    disk.fsync = following_fsync;
    log_dir_set_disk(directory, &disk);
    CHECK(log_flush(copy) == 0);
    log_dir_set_disk(directory, disk_of(DISK_SYSTEM));
    CHECK(log_flushed_offset(copy) <= log_end_offset(copy));
    let_go(copy);
}

/* ---- many threads ---- */

static _Atomic bool over;

static void *flush_all(void *unused) {
    (void)unused;
    while (!atomic_load(&over)) {
        int result = log_dir_flush(directory);
        CHECK(result == 0 || result == LOG_E_OFFLINE);
    }
    return NULL;
}

static void *settle_all(void *unused) {
    (void)unused;
    while (!atomic_load(&over)) (void)log_dir_close_files(directory);
    return NULL;
}

static void *open_and_let_go(void *argument) {
    int partition = (int)(intptr_t)argument;
    for (int round = 0; round < rounds; round++) {
        struct log *log = open_log(partition, -1);
        check_ends(log, round);
        append(log, 1);
        check_ends(log, round + 1);
        let_go(log);
    }
    return NULL;
}

static void together(void) {
    pthread_t openers[LOGS], others[2];
    CHECK(pthread_create(&others[0], NULL, flush_all, NULL) == 0);
    CHECK(pthread_create(&others[1], NULL, settle_all, NULL) == 0);
    for (intptr_t i = 0; i < LOGS; i++)
        CHECK(pthread_create(&openers[i], NULL, open_and_let_go, (void *)i) == 0);
    for (int i = 0; i < LOGS; i++) pthread_join(openers[i], NULL);
    atomic_store(&over, true);
    for (int i = 0; i < 2; i++) pthread_join(others[i], NULL);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"recovered", recovered}, {"followed", followed}, {"together", together}};
    int error;
    CHECK(argc == 4);
    struct iopool *pool = iopool_new(2, 64, NULL, NULL);
    directory = log_dir_new(argv[1], pool, &error);
    CHECK(directory != NULL);
    rounds = atoi(argv[3]);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(scenes[i].name, argv[2]) == 0) {
            scenes[i].play();
            puts("ok");
        }
    log_dir_free(directory);
    iopool_free(pool);
    return 0;
}
