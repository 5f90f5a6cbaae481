/* Appenders, readers, waiters, a flusher, upkeep, a cleaner that merges segments, role changes
 * without truncation, and a thread that truncates indexes, concurrently on a few logs; then the
 * directory fails. Every reader must see each offset once and in order, every waiter must be
 * woken. Exits with 0, or with 1 and a line on stderr. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "compaction/pass.h"
#include "log_manager/log_manager.h"
#include "log_scenes.h"

enum { LOGS_MAX = 64, APPENDERS = 3, READERS = 3, WAITERS = 3 };

struct setting {
    const char *path;
    struct log_dir *dir;
    struct log *logs[LOGS_MAX];
    int batches, count;
    _Atomic int appenders_left;
};
struct worker {
    struct setting *setting;
    int number;
    pthread_t thread;
};

static size_t make_batch(uint8_t *p, int64_t producer_id, int32_t sequence, int64_t timestamp) {
    uint8_t record[] = {0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 8, 'a', 'b', 'c', 'd', 0};
    record[0] = (uint8_t)((sizeof record - 1) << 1);
    put_i32(record + 5, (int32_t)producer_id);
    put_i32(record + 9, sequence);
    return scene_batch(p, record, sizeof record, timestamp, producer_id, sequence);
}

static void *append(void *argument) {
    struct worker *w = argument;
    struct setting *setting = w->setting;
    struct batch_rules rules = {.batch_bytes_max = 1 << 20,
                                .inflated_bytes_max = 1 << 20,
                                .timestamp_before_max_ms = INT64_MAX,
                                .timestamp_after_max_ms = INT64_MAX,
                                .walk_records = true};
    for (int i = 0; i < setting->batches; i++) {
        uint8_t batch[128];
        struct batch_summary summary;
        struct log_appended out;
        size_t len = make_batch(batch, w->number, i, 1000 + i);
        CHECK(batch_check(batch, len, &rules, NULL, &summary) == 0);
        for (int k = 0; k < setting->count; k++) {
            CHECK(log_append(setting->logs[k], batch, len, &summary, 0, 1000, &out) == 0);
            CHECK(!out.duplicate && out.last_offset == out.base_offset);
            if (i % 64 != 0) continue;
            int64_t base = out.base_offset;
            CHECK(log_append(setting->logs[k], batch, len, &summary, 0, 1000, &out) == 0);
            CHECK(out.duplicate && out.base_offset == base);
        }
    }
    atomic_fetch_sub(&setting->appenders_left, 1);
    return NULL;
}

static void *read_all(void *argument) {
    struct worker *w = argument;
    struct setting *setting = w->setting;
    struct log *log = setting->logs[w->number % setting->count];
    int64_t at = 0, end = (int64_t)setting->batches * APPENDERS;
    uint8_t *buffer = malloc(1 << 16);
    while (at < end) {
        struct log_range range;
        CHECK(log_read(log,
                       &(struct log_read_request){.offset = at,
                                                  .bound = LOG_BOUND_HIGH_WATERMARK,
                                                  .bytes_max = 1 << (8 + w->number),
                                                  .at_least_one = true},
                       &range) == 0);
        if (range.length > 0) {
            CHECK(range.length <= 1 << 16);
            CHECK(pread(range.fd, buffer, (size_t)range.length, range.position) == range.length);
            for (int32_t p = 0; p < range.length;) {
                struct batch_header h;
                CHECK(batch_parse(buffer + p, (size_t)(range.length - p), &h) == 0);
                CHECK(h.base_offset == at && batch_check_crc(buffer + p, &h) == 0);
                at++;
                p += (int32_t)batch_bytes(&h);
            }
            CHECK(range.next_offset == at);
            CHECK(log_range_cached(&range) >= 0 && log_bytes_from(log, at, LOG_BOUND_END) >= 0);
            /* Like a reader of old data that is not the only one. */
            posix_fadvise(range.fd, range.position, range.length, POSIX_FADV_DONTNEED);
            (void)log_range_is_cold(&range);
            (void)log_range_warm(&range);
            int64_t free_bytes, total_bytes;
            if (at % 64 < 8) CHECK(log_dir_upkeep(setting->dir, &free_bytes, &total_bytes));
        }
        log_range_release(&range);
    }
    free(buffer);
    return NULL;
}

/* Sleep in epoll until the message arrives, by the mailbox's protocol. */
static void take_message(struct mailbox *m, int epoll, struct message *l) {
    struct epoll_event event;
    while (mailbox_take(m, l, 1) == 0) {
        if (!mailbox_arm(m)) continue;
        CHECK(epoll_wait(epoll, &event, 1, 30000) == 1);
        mailbox_disarm(m);
    }
}

static void *wait_all(void *argument) {
    struct worker *w = argument;
    struct setting *setting = w->setting;
    struct log *log = setting->logs[w->number % setting->count];
    struct mailbox *m = mailbox_new(4);
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, mailbox_fd(m), &event) == 0);
    static const uint8_t kinds[] = {LOG_WAIT_HIGH_WATERMARK, LOG_WAIT_FLUSHED, LOG_WAIT_END,
                                    LOG_WAIT_LAST_STABLE};
    int64_t end = (int64_t)setting->batches * APPENDERS;
    for (int64_t at = 0; at < end; at += 7) {
        struct log_waiter waiter = {.mailbox = m, .token = (uint64_t)at, .offset = at};
        waiter.wait_for = kinds[(at / 7 + w->number) % 4];
        if (log_wait(log, &waiter)) continue;
        struct message l;
        take_message(m, epoll, &l);
        const char *call = NULL;
        int failure = log_dir_failure(setting->dir, &call);
        if (l.status != 0)
            fprintf(stderr, "status %d: errno %d in %s\n", l.status, failure,
                    call == NULL ? "nothing" : call);
        CHECK(l.kind == MESSAGE_WAKE && l.token == (uint64_t)at && l.status == 0);
        CHECK(log_end_offset(log) > at);
        if (waiter.wait_for == LOG_WAIT_FLUSHED) CHECK(log_flushed_offset(log) > at);
        log_unwait(log, &waiter);
    }
    struct log_waiter never = {.mailbox = m, .offset = INT64_MAX, .wait_for = LOG_WAIT_END};
    CHECK(!log_wait(log, &never));
    log_unwait(log, &never);
    struct message none;
    CHECK(mailbox_take(m, &none, 1) == 0);
    close(epoll);
    mailbox_free(m);
    return NULL;
}

static void *upkeep(void *argument) {
    struct setting *setting = ((struct worker *)argument)->setting;
    while (atomic_load(&setting->appenders_left) > 0) {
        for (int k = 0; k < setting->count; k++) {
            struct log *log = setting->logs[k];
            int64_t offset, timestamp;
            int32_t epoch;
            CHECK(log_roll_if_due(log, 1000) == 0);
            CHECK(log_apply_retention(log, 1000) >= 0);
            CHECK(log_flush(log) == 0);
            if (k % 8 == 0) CHECK(log_dir_flush(setting->dir) == 0);
            if (k % 16 == 0) CHECK(log_dir_close_files(setting->dir) == 0);
            log_expire_producers(log, 1000);
            CHECK(log_offset_for_time(log, 1001, &offset, &timestamp, &epoch) >= 0);
            log_end_for_epoch(log, 0, &epoch, &offset);
            CHECK(log_segments(log, NULL, 0) < 1u << 20);
        }
        usleep(1000);
    }
    return NULL;
}

/* Truncates index files whose pages are mapped by other threads. */
static void *cut(void *argument) {
    struct setting *setting = ((struct worker *)argument)->setting;
    for (int64_t at = 0; atomic_load(&setting->appenders_left) > 0; at = (at + 17) % 400) {
        int k = (int)at % setting->count;
        const char *kind = at % 2 == 0 ? "index" : "timeindex";
        char path[512];
        struct log_range range;
        int64_t offset, timestamp;
        int32_t epoch;
        snprintf(path, sizeof path, "%s/t-%d/%020d.%s", setting->path, k, 0, kind);
        (void)!truncate(path, 0);
        int result = log_read(setting->logs[k],
                              &(struct log_read_request){.offset = at,
                                                         .bound = LOG_BOUND_HIGH_WATERMARK,
                                                         .bytes_max = 500,
                                                         .at_least_one = true},
                              &range);
        CHECK(result == 0 || result == LOG_E_RANGE);
        if (result == 0) log_range_release(&range);
        CHECK(log_offset_for_time(setting->logs[k], 1001, &offset, &timestamp, &epoch) >= 0);
        usleep(300);
    }
    return NULL;
}

/* All keys differ: no record may be lost when neighbouring segments are merged. */
static void *clean(void *argument) {
    struct setting *setting = ((struct worker *)argument)->setting;
    struct offset_map map;
    CHECK(offset_map_init(&map, 1 << 20, 0.9));
    while (atomic_load(&setting->appenders_left) > 0) {
        for (int k = 0; k < setting->count; k++) {
            struct log_clean_rules rules = {.segment_bytes = 100000, .inflated_bytes_max = 1 << 20};
            struct log_clean *pass = NULL;
            offset_map_clear(&map);
            int result = log_clean_begin(setting->logs[k], &map, &rules, &pass);
            CHECK(result >= 0);
            if (result == 1) continue;
            while ((result = log_clean_step(pass, 5000)) == 1) {}
            CHECK(result == 0);
            log_clean_end(pass);
        }
        usleep(1000);
    }
    offset_map_free(&map);
    return NULL;
}

static void fail(struct setting *setting) {
    struct mailbox *m = mailbox_new(4);
    struct log_waiter waiter = {.mailbox = m, .offset = INT64_MAX - 1, .wait_for = LOG_WAIT_END};
    struct message l;
    CHECK(!log_wait(setting->logs[0], &waiter));
    CHECK(log_delete(setting->logs[0], 0) == 0);
    CHECK(mailbox_take(m, &l, 1) == 1 && l.status == LOG_E_DELETED);
    CHECK(!log_wait(setting->logs[0], &waiter)); /* woken immediately, never "reached" */
    CHECK(mailbox_take(m, &l, 1) == 1 && l.status == LOG_E_DELETED && !waiter.linked);
    CHECK(!log_wait(setting->logs[1], &waiter));
    log_become_follower(setting->logs[1], 1);
    CHECK(mailbox_take(m, &l, 1) == 1 && l.status == LOG_E_NOT_LEADER);
    mailbox_free(m);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    int error;
    struct setting setting = {
        .batches = atoi(argv[2]), .count = atoi(argv[3]), .appenders_left = APPENDERS};
    setting.path = argv[1];
    struct iopool *pool = iopool_new(2, 64, NULL, NULL);
    setting.dir = log_dir_new(argv[1], pool, &error);
    CHECK(setting.dir != NULL && setting.count <= LOGS_MAX);
    log_dir_set_open_files(setting.dir, 4);
    const struct log_config config = scene_config(20000, 200);
    struct log_checkpoint checkpoint = {.log_start_offset = -1, .high_watermark = -1};
    uint8_t id[16] = {1};
    for (int k = 0; k < setting.count; k++) {
        CHECK(log_open(setting.dir, "t", k, id, &config, &checkpoint, 0, &setting.logs[k]) == 0);
        CHECK(log_become_leader(setting.logs[k], 0, 1) == 0);
    }
    struct {
        void *(*run)(void *);
        int count;
    } parts[] = {
        {append, APPENDERS}, {read_all, READERS}, {wait_all, WAITERS},
        {upkeep, 1},         {clean, 1},          {cut, 1}};
    struct worker workers[16];
    int n = 0;
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++)
        for (int i = 0; i < parts[part].count; i++, n++) {
            workers[n] = (struct worker){.setting = &setting, .number = i};
            CHECK(pthread_create(&workers[n].thread, NULL, parts[part].run, &workers[n]) == 0);
        }
    for (int i = 0; i < n; i++) pthread_join(workers[i].thread, NULL);
    fail(&setting);
    for (int k = 1; k < setting.count; k++) CHECK(log_close_clean(setting.logs[k], 0) == 0);
    for (int k = 0; k < setting.count; k++) log_release(setting.logs[k]);
    log_dir_free(setting.dir);
    iopool_free(pool);
    puts("ok");
    return 0;
}
