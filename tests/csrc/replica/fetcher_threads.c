/* Fetchers under all operations of the control plane: partitions come and go, connections break
 * and are replaced, logs are flushed, while this program plays the leader. No memory leaks, and
 * every log contains the leader's records in order. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log_manager/log_manager.h"
#include "log/log_scenes.h"
#include "transport/transport.h"
#include "replica/fetcher_pool.h"

enum { NOW = 1000, PARTITIONS = 6, THREADS = 2, HEAD_BYTES = 17, FRAME_BYTES_MAX = 1 << 16 };

static const uint8_t topic_id[16] = "a topic's own id";
static struct log *logs[PARTITIONS];
static struct fetch_partition *followed[PARTITIONS];

/* ---- a leader with one record at every offset ---- */

static bool receive_all(int fd, uint8_t *to, size_t len) {
    while (len > 0) {
        ssize_t n = read(fd, to, len);
        if (n <= 0) return false;
        to += n;
        len -= (size_t)n;
    }
    return true;
}

static size_t make_batch(uint8_t *p, int64_t offset) {
    static const uint8_t record[] = {14, 0, 0, 0, 1, 2, 'v', 0};
    size_t len = scene_batch(p, record, sizeof record, NOW, -1, -1);
    put_i64(p, offset);
    return len;
}

static size_t answer_partition(uint8_t *p, int32_t index, int64_t offset) {
    uint8_t batch[128], *begin = p;
    size_t len = make_batch(batch, offset);
    put_i32(p, index);
    put_i16(p + 4, 0);
    put_i64(p + 6, offset);
    put_i64(p + 14, offset);
    put_i64(p + 22, 0);
    p[30] = 0; /* no aborted transactions */
    put_i32(p + 31, -1);
    p += 35;
    p += put_uvarint(p, len + 1);
    memcpy(p, batch, len);
    p += len;
    *p++ = 0;
    return (size_t)(p - begin);
}

/* Answer the partitions of a full request; sessions are never opened. */
static size_t answer(const uint8_t *request, size_t len, uint8_t *out) {
    struct cursor c = {request + 8, request + len};
    const uint8_t *skipped;
    cursor_take(&c, (size_t)cursor_i16(&c), &skipped);
    cursor_take(&c, 1 + HEAD_BYTES, &skipped); /* tags, waits and limits, session id */
    (void)cursor_i32(&c);
    uint64_t topics = cursor_uvarint(&c) - 1;
    CHECK(topics <= 1);
    uint8_t *p = out + 4;
    memcpy(p, request + 4, 4);
    p[4] = 0;
    memset(p + 5, 0, 10);
    p += 15;
    p += put_uvarint(p, topics + 1);
    for (uint64_t i = 0; i < topics; i++) {
        CHECK(cursor_take(&c, 16, &skipped));
        memcpy(p, skipped, 16);
        p += 16;
        uint64_t count = cursor_uvarint(&c) - 1;
        p += put_uvarint(p, count + 1);
        for (uint64_t k = 0; k < count; k++) {
            int32_t index = cursor_i32(&c);
            (void)cursor_i32(&c);
            int64_t offset = cursor_i64(&c);
            CHECK(cursor_take(&c, 4 + 8 + 4 + 1, &skipped));
            p += answer_partition(p, index, offset);
        }
        *p++ = 0;
    }
    *p++ = 0;
    put_i32(out, (int32_t)(p - out - 4));
    return (size_t)(p - out);
}

static void *lead(void *argument) {
    int fd = (int)(intptr_t)argument;
    static _Thread_local uint8_t request[FRAME_BYTES_MAX], out[FRAME_BYTES_MAX];
    uint8_t size[4];
    while (receive_all(fd, size, 4)) {
        size_t len = get_u32(size);
        CHECK(len <= sizeof request);
        if (!receive_all(fd, request, len)) break;
        size_t n = answer(request, len, out);
        if (send(fd, out, n, MSG_NOSIGNAL) != (ssize_t)n) break;
    }
    close(fd);
    return NULL;
}

static pthread_t leaders[4096];
static int leader_count;

static void attach(struct fetchers *fs, int thread) {
    int pair[2];
    CHECK(leader_count < 4096);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    CHECK(fcntl(pair[0], F_SETFL, O_NONBLOCK) == 0);
    CHECK(pthread_create(&leaders[leader_count++], NULL, lead, (void *)(intptr_t)pair[1]) == 0);
    struct transport to = {.calls = &transport_plain, .fd = pair[0]};
    CHECK(fetchers_attach(fs, thread, 1, &to, 17, (uint64_t)leader_count));
}

/* ---- the control plane ---- */

static void follow(struct fetchers *fs, int i, uint64_t token) {
    followed[i] = fetchers_follow(fs, logs[i], topic_id, i, 1, 0, token);
    CHECK(followed[i] != NULL);
}

static void leave(struct fetchers *fs, int i) {
    fetchers_unfollow(fs, followed[i]);
    fetch_partition_release(followed[i]);
}

static void take_notices(struct fetchers *fs) {
    struct fetchers_notice notices[8];
    uint32_t count;
    while ((count = fetchers_take(fs, notices, 8)) > 0)
        for (uint32_t i = 0; i < count; i++) CHECK(notices[i].kind == FETCHERS_LOST);
}

static void disturb(struct fetchers *fs, int rounds) {
    struct fetch_partition_stats figures;
    for (int round = 0; round < rounds; round++) {
        int i = round % PARTITIONS;
        struct pollfd ready = {fetchers_fd(fs), POLLIN, 0};
        poll(&ready, 1, 1);
        take_notices(fs);
        fetch_partition_read_stats(followed[i], &figures);
        CHECK(figures.state >= FETCH_PARTITION_FETCHING && figures.state <= FETCH_PARTITION_LEFT);
        if (round % 3 == 0) {
            leave(fs, i);
            follow(fs, i, (uint64_t)round);
        }
        if (round % 17 == 0) {
            CHECK(fetchers_detach(fs, round % THREADS, 1));
            attach(fs, round % THREADS);
        }
        fetchers_set_broker_epoch(fs, round);
    }
}

static void check(struct log *log) {
    struct log_range range;
    int64_t end = log_end_offset(log);
    CHECK(end > 0);
    for (int64_t at = 0; at < end; at = range.next_offset) {
        CHECK(log_read(log,
                       &(struct log_read_request){
                           .offset = at, .bytes_max = 1 << 20, .at_least_one = true},
                       &range) == 0);
        CHECK(range.first_offset == at && range.length > 0);
        log_range_release(&range);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    int error, rounds = atoi(argv[3]);
    struct iopool *pool = iopool_new(2, 64, NULL, NULL);
    struct log_dir *directory = log_dir_new(argv[1], pool, &error);
    CHECK(directory != NULL);
    struct log_config config = scene_config(1 << 16, 4096);
    struct log_checkpoint checkpoint = {.log_start_offset = -1, .high_watermark = -1};
    struct fetchers_config settings = {.threads = THREADS, .replica_id = 2, .wait_ms_max = 100,
                                       .bytes_min = 1, .bytes_max = 1 << 20,
                                       .partition_bytes_max = 1 << 16, .backoff_ms_max = 100,
                                       .answer_ms_max = 10000,
                                       .flush_first = strcmp(argv[2], "flushed") == 0};
    struct fetchers *fs = fetchers_new(&settings);
    CHECK(fs != NULL && fetchers_start(fs) == 0);
    for (int i = 0; i < PARTITIONS; i++) {
        CHECK(log_open(directory, "t", i, topic_id, &config, &checkpoint, NOW, &logs[i]) == 0);
        log_become_follower(logs[i], 0);
        follow(fs, i, 0);
    }
    for (int thread = 0; thread < THREADS; thread++) attach(fs, thread);
    disturb(fs, rounds);
    for (int i = 0; i < PARTITIONS; i++)
        while (log_end_offset(logs[i]) < 3) usleep(1000);
    fetchers_stop(fs);
    for (int i = 0; i < PARTITIONS; i++) leave(fs, i);
    fetchers_free(fs);
    for (int i = 0; i < leader_count; i++) pthread_join(leaders[i], NULL);
    for (int i = 0; i < PARTITIONS; i++) {
        check(logs[i]);
        log_release(logs[i]);
    }
    log_dir_free(directory);
    iopool_free(pool);
    puts("ok");
    return 0;
}
