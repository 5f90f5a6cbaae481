/* Appends: rolls, rollback on a full disk, results, wake-ups. Usage: log_appends DIRECTORY
 * SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "single_log.h"

static struct log_config config_of(int32_t segment_bytes) {
    return scene_config(segment_bytes, 1 << 20);
}

/* ---- rolls ---- */

static void roll_by_bytes(void) {
    open_one(config_of(2 * SMALL));
    fill(2, 1);
    CHECK(segments_begin("0") && log_flush(one) == 0 && !log_marked(&one->flush.files_marks));
    fill(1, 1);
    CHECK(segments_begin("0 2") && played_asked_some_time(dir) == 1);
    CHECK(log_marked(&one->flush.files_marks));
    /* A batch longer than a segment gets its own segment. */
    CHECK(append((struct played_batch){.time = 1, .value_bytes = 300}) == 0);
    CHECK(segments_begin("0 2 3"));
    fill(1, 1);
    CHECK(segments_begin("0 2 3 4"));
    struct log_dir_stats figures;
    log_dir_read_stats(dir, &figures);
    CHECK(figures.rolls == 3);
    /* A roll seals the segment: indexes are complete, the producers' state is written. */
    struct segment *s = one->view.segments[0];
    CHECK(atomic_load(&s->sealed) && s->tail == NULL);
    CHECK(played_size(dir, file_of(0, "index")) == 0);
    CHECK(played_size(dir, file_of(0, "timeindex")) == 12);
    CHECK(played_size(dir, file_of(2, "snapshot")) == 10);
    let_go();
    /* The first segment of a log has producer state as well. */
    CHECK(log_dir_rename(dir, "t-0", "before") == 0);
    open_one(config_of(SMALL / 2));
    fill(2, 1);
    CHECK(segments_begin("0 1") && log_end_offset(one) == 2);
    let_go();
}

static void roll_by_time(void) {
    struct log_config config = config_of(1 << 20);
    config.segment_ms = 1000;
    open_one(config);
    CHECK(append((struct played_batch){.time = 5000}) == 0);
    CHECK(append((struct played_batch){.time = 6000}) == 0);
    CHECK(append((struct played_batch){.time = 1}) == 0 && segments_begin("0"));
    CHECK(append((struct played_batch){.time = 6001}) == 0 && segments_begin("0 3"));
    CHECK(append((struct played_batch){.time = 7001}) == 0 && segments_begin("0 3"));
    CHECK(append((struct played_batch){.time = 7002}) == 0 && segments_begin("0 3 5"));
    /* With log append time, these times count. */
    config.log_append_time = true;
    log_set_config(one, &config);
    CHECK(append((struct played_batch){.time = 1}) == 0 && segments_begin("0 3 5 6"));
    CHECK(append((struct played_batch){.time = 99999}) == 0 && segments_begin("0 3 5 6"));
    let_go();
}

/* For records without timestamps the segment's own age counts. */
static void roll_without_times(void) {
    struct log_config config = config_of(1 << 20);
    config.segment_ms = 1000;
    open_one(config);
    CHECK(append((struct played_batch){.time = -1}) == 0);
    struct segment *s = one->view.segments[0];
    CHECK(s->created_ms == NOW && s->first_timestamp == -1);
    s->created_ms = NOW - 1000;
    CHECK(append((struct played_batch){.time = -1}) == 0 && segments_begin("0"));
    s->created_ms = NOW - 1001;
    CHECK(append((struct played_batch){.time = -1}) == 0 && segments_begin("0 2"));
    /* The jitter makes it earlier. */
    s = one->view.segments[1];
    s->jitter_ms = 400;
    s->created_ms = NOW - 600;
    CHECK(append((struct played_batch){.time = -1}) == 0 && segments_begin("0 2"));
    s->created_ms = NOW - 601;
    CHECK(append((struct played_batch){.time = -1}) == 0 && segments_begin("0 2 4"));
    let_go();
}

static void roll_by_indexes(void) {
    struct log_config config = scene_config(1 << 20, 0);
    config.segment_index_bytes = 96; /* 12 offsets, 8 times */
    open_one(config);
    fill(8, 1);
    CHECK(segments_begin("0"));
    fill(1, 9);
    CHECK(segments_begin("0 8"));
    for (int i = 0; i < 12; i++) CHECK(append((struct played_batch){.time = 1}) == 0);
    CHECK(segments_begin("0 8"));
    CHECK(append((struct played_batch){.time = 1}) == 0 && segments_begin("0 8 21"));
    let_go();
}

static void roll_within_the_settings(void) {
    struct log_config config = config_of(SMALL);
    config.segment_jitter_ms = 1;
    open_one(config);
    CHECK(one->view.segment_count == 0); /* not before the first append */
    fill(3, 1);
    CHECK(segments_begin("0 1 2"));
    for (int i = 0; i < 3; i++) CHECK(one->view.segments[i]->jitter_ms == 0);
    /* If the new segment cannot be created, nothing is appended. */
    played_fail(OPENAT, ".log", EMFILE, 2);
    CHECK(append((struct played_batch){.time = 4}) == LOG_E_MEMORY);
    CHECK(segments_begin("0 1 2") && !atomic_load(&one->view.segments[2]->sealed));
    CHECK(ends_are(0, 3, 3, 3));
    short_of.starved_after = 0;
    short_of.starved = 1;
    CHECK(append((struct played_batch){.time = 4}) == LOG_E_MEMORY && segments_begin("0 1 2"));
    short_of.starved = 0;
    fill(1, 4);
    CHECK(segments_begin("0 1 2 3"));
    let_go();
}

/* ---- writes ---- */

static void write_whole(void) {
    open_one(config_of(1 << 20));
    fill(1, 1);
    played_fail(PWRITE, ".log", EINTR, 2);
    fill(1, 1);
    played_shorten(PWRITE, ".log", 7);
    fill(1, 1);
    CHECK(played_size(dir, file_of(0, "log")) == 3 * SMALL && ends_are(0, 3, 3, 3));
    struct log_range range;
    CHECK(read_bytes(0, 1 << 20, &range) == 3 * SMALL && range.next_offset == 3);
    CHECK(atomic_load(&one->view.segments[0]->dirty));
    CHECK(log_size_bytes(one) == 3 * SMALL);
    /* A batch that does not fit leaves nothing behind. */
    struct played_fault half = {.skip = 1, .times = 1, .error = ENOSPC, .of = ".log"};
    atomic_store(&one->view.segments[0]->allocated, 5000);
    played.faults[PWRITE] = half;
    CHECK(append((struct played_batch){.time = 2}) == 0);
    CHECK(append((struct played_batch){.time = 2}) == LOG_E_FULL);
    CHECK(atomic_load(&one->view.segments[0]->allocated) == 5000);
    CHECK(ends_are(0, 4, 4, 4) && !log_dir_offline(dir));
    let_go();
}

static int tearing_writes;
static ssize_t tearing_pwrite(int fd, const void *bytes, size_t len, off_t at) {
    if (tearing_writes++ == 0) return pwrite(fd, bytes, 20, at);
    errno = ENOSPC;
    return tearing_writes == 2 ? -1 : 0;
}

/* A torn write is truncated. */
static size_t largest_write, writes;
static ssize_t noting_pwrite(int fd, const void *from, size_t bytes, off_t at) {
    writes += bytes > 4096; /* index writes do not count */
    largest_write = bytes > largest_write ? bytes : largest_write;
    return pwrite(fd, from, bytes, at);
}

static void write_in_pieces(void) {
    enum { RECORD_BYTES = 5 << 19 };
    static uint8_t record[RECORD_BYTES], large[RECORD_BYTES + 100], read[RECORD_BYTES + 100];
    static struct disk disk;
    open_one(config_of(1 << 20)); /* leaves no space to preallocate */
    fill(1, 1);
    disk = *log_dir_disk(dir);
    disk.pwrite = noting_pwrite;
    log_dir_set_disk(dir, &disk);
    for (size_t i = 0; i < RECORD_BYTES; i++) record[i] = (uint8_t)(i >> 7);
    struct batch_summary summary = {0};
    size_t len = scene_batch(large, record, RECORD_BYTES, 2, -1, -1);
    CHECK(batch_parse(large, len, &summary.header) == 0);
    CHECK(log_append(one, large, len, &summary, -1, NOW, &appended) == 0);
    CHECK(writes == 3 && largest_write == 1 << 20 && ends_are(0, 2, 2, 2));
    int fd = openat(dir->fd, file_of(1, "log"), O_RDONLY);
    CHECK(fd >= 0 && pread(fd, read, len, 0) == (ssize_t)len && memcmp(read, large, len) == 0);
    close(fd);
    let_go();
}

static void take_back(void) {
    open_one(config_of(1 << 20));
    fill(2, 1);
    struct disk disk = *log_dir_disk(dir);
    disk.pwrite = tearing_pwrite;
    log_dir_set_disk(dir, &disk);
    struct segment *s = one->view.segments[0];
    atomic_store(&s->allocated, 5000);
    CHECK(append((struct played_batch){.time = 2}) == LOG_E_FULL);
    CHECK(tearing_writes == 2 && atomic_load(&s->allocated) == 0);
    CHECK(played_size(dir, file_of(0, "log")) == 2 * SMALL && ends_are(0, 2, 2, 2));
    CHECK(append((struct played_batch){.time = 2}) == LOG_E_FULL && tearing_writes == 3);
    struct log_dir_stats figures;
    log_dir_read_stats(dir, &figures);
    CHECK(figures.shortages == 2 && figures.short_error == ENOSPC && !log_dir_offline(dir));
    let_go();
}

static void fail_to_write(void) {
    open_one(config_of(1 << 20));
    fill(2, 1);
    played_fail(PWRITE, ".log", EIO, 1);
    CHECK(append((struct played_batch){.time = 2}) == LOG_E_IO);
    const char *call;
    CHECK(log_dir_failure(dir, &call) == EIO && strcmp(call, "pwrite") == 0);
    CHECK(append((struct played_batch){.time = 2}) == LOG_E_OFFLINE);
    CHECK(ends_are(0, 2, 2, 2));
    let_go();
}

/* The last segment's file is reopened after it was closed. */
static void open_again(void) {
    open_one(config_of(1 << 20));
    fill(1, 1);
    CHECK(log_flush(one) == 0);
    for (int i = 0; i < 2; i++) {
        lock_acquire(&dir->files_lock);
        segment_cache_evict(dir, 9, UINT32_MAX);
        lock_release(&dir->files_lock);
        CHECK(dir->open_count == 0);
        if (i == 0) played_fail(OPENAT, ".log", EMFILE, 1);
        CHECK(append((struct played_batch){.time = 2}) == (i == 0 ? LOG_E_MEMORY : 0));
        CHECK(log_end_offset(one) == 1 + i && !log_dir_offline(dir));
    }
    let_go();
}

/* ---- results ---- */

static struct log_stats figures(void) {
    struct log_stats f;
    log_read_stats(one, &f);
    return f;
}

static void answer(void) {
    open_one(config_of(1 << 20));
    CHECK(append((struct played_batch){.time = 7, .records = 3, .value_bytes = 10}) == 0);
    CHECK(appended.base_offset == 0 && appended.last_offset == 2 && !appended.duplicate);
    CHECK(appended.append_time_ms == -1 && appended.log_start_offset == 0);
    CHECK(appended.leadership_losses == 0 && get_i64(made) == 0);
    CHECK(get_i32(made + BATCH_LEADER_EPOCH_AT) == 0);
    log_become_follower(one, 1);
    CHECK(append((struct played_batch){.time = 7}) == LOG_E_NOT_LEADER);
    CHECK(log_become_leader(one, 5, 1) == 0 && log_move_start(one, 3, NOW) == 0);
    CHECK(append_as((struct played_batch){.time = 7}, 4) == LOG_E_NOT_LEADER);
    CHECK(append_as((struct played_batch){.time = 7}, 6) == LOG_E_NOT_LEADER);
    CHECK(append_as((struct played_batch){.time = 7, .records = 2}, 5) == 0);
    CHECK(appended.base_offset == 3 && appended.last_offset == 4 &&
          appended.leadership_losses == 1);
    CHECK(appended.log_start_offset == 3 && get_i64(made) == 3);
    CHECK(get_i32(made + BATCH_LEADER_EPOCH_AT) == 5 && log_last_epoch(one) == 5);
    CHECK(append_as((struct played_batch){.time = 7}, 0) == LOG_E_NOT_LEADER);
    struct log_config config = config_of(1 << 20);
    config.log_append_time = true;
    log_set_config(one, &config);
    CHECK(append((struct played_batch){.time = 7}) == 0 && appended.append_time_ms == NOW);
    CHECK(get_i64(made + BATCH_MAX_TIMESTAMP_AT) == NOW);
    CHECK(segment_largest_of(one->view.segments[0]).timestamp == NOW);
    /* A length that differs from the batch's. */
    struct batch_summary summary = {0};
    size_t len = played_make(made, (struct played_batch){.time = 7});
    CHECK(batch_parse(made, len, &summary.header) == 0);
    CHECK(log_append(one, made, len + 1, &summary, -1, NOW, &appended) == LOG_E_CORRUPT);
    CHECK(log_append(one, made, len - 1, &summary, -1, NOW, &appended) == LOG_E_CORRUPT);
    struct log_stats f = figures();
    CHECK(f.produce_requests == 9 && f.produce_failures == 6 && f.batches_in == 3);
    CHECK(f.records_in == 6 && f.bytes_in == SMALL + 2 * 68);
    CHECK(f.start_offset == 3 && f.end_offset == 6 && f.segments == 1 && f.offline == 0);
    log_abandon(one);
    CHECK(append((struct played_batch){.time = 7}) == LOG_E_DELETED);
    let_go();
}

static void answer_again(void) {
    struct played_batch b = {.time = 9, .producer = 5, .records = 2, .sequence = 0};
    open_one(config_of(1 << 20));
    fill(1, 1);
    CHECK(append(b) == 0 && appended.base_offset == 1);
    b.sequence = 2;
    CHECK(append(b) == 0 && appended.base_offset == 3);
    b.sequence = 0;
    b.time = 1000;
    CHECK(append(b) == 0 && appended.duplicate && appended.base_offset == 1);
    CHECK(appended.last_offset == 2 && appended.append_time_ms == 9 && log_end_offset(one) == 5);
    struct log_stats f = figures();
    CHECK(f.produce_requests == 4 && f.produce_failures == 0 && f.batches_in == 3);
    b.sequence = 7;
    CHECK(append(b) == LOG_E_SEQUENCE);
    b.sequence = 4;
    b.epoch = -1;
    CHECK(append(b) == LOG_E_EPOCH && figures().produce_failures == 2);
    /* A batch whose producer state cannot be stored is not appended. */
    for (int i = 0; i < 2; i++) {
        b = (struct played_batch){.time = 9, .producer = 50 + i};
        CHECK(append(b) == 0);
    }
    b.producer = 60;
    short_of.starved = 1;
    CHECK(append(b) == LOG_E_MEMORY && short_of.starved == 0 && log_end_offset(one) == 7);
    CHECK(append(b) == 0 && appended.base_offset == 7 && !appended.duplicate);
    struct log_range range;
    CHECK(read_bytes(0, 1 << 20, &range) == SMALL + 5 * 68 && range.next_offset == 8);
    let_go();
}

/* ---- clients' transactions ---- */

static int append_verified(struct played_batch b, int64_t last_marker, bool from_zero) {
    struct batch_summary summary = {0};
    b.attributes = BATCH_TRANSACTIONAL;
    size_t len = played_make(made, b);
    CHECK(batch_parse(made, len, &summary.header) == 0);
    const struct log_transaction_check check = {last_marker, 0, from_zero};
    struct log_append_part part = {
        .batch = made, .len = len, .summary = &summary, .transaction = &check};
    log_append_batches(one, &part, 1, -1, NOW);
    appended = part.out;
    return part.result;
}

static void verify(void) {
    struct played_batch b = {.time = 1, .producer = 8, .sequence = 3}; /* its id is 7 */
    struct log_producer known;
    open_one(config_of(1 << 20));
    CHECK(log_producer_of(one, 7, NOW, &known) && known.epoch == -1 && known.last_marker == -1);
    CHECK(known.transaction_first_offset == -1 && known.coordinator_epoch == -1);
    CHECK(append_verified(b, 5, false) == LOG_E_TXN_STATE);
    CHECK(append_verified(b, -1, true) == LOG_E_SEQUENCE);
    CHECK(append_verified(b, -1, false) == 0 && log_open_transaction(one) == 0);
    b.sequence = 4;
    CHECK(append_verified(b, 99, true) == 0); /* open: no verification needed */
    CHECK(log_producer_of(one, 7, NOW, &known) && known.transaction_first_offset == 0);
    CHECK(known.epoch == 0 && known.last_marker == -1);
    CHECK(ends_are(0, 0, 2, 2));
    CHECK(append_marker(7, 0, true, 3) == 0 && ends_are(0, 3, 3, 3));
    CHECK(log_producer_of(one, 7, NOW, &known) && known.last_marker == 2);
    CHECK(known.transaction_first_offset == -1 && known.coordinator_epoch == 3);
    CHECK(log_open_transaction(one) == -1);
    b.sequence = 5;
    CHECK(append_verified(b, -1, true) == LOG_E_TXN_STATE);
    CHECK(append_verified(b, 2, true) == 0);
    b.sequence = 0;
    b.epoch = 1;
    CHECK(append_verified(b, 1, true) == LOG_E_TXN_STATE);
    CHECK(append_verified(b, 2, true) == 0);
    b.epoch = 0;
    CHECK(append_verified(b, 2, true) == LOG_E_EPOCH);
    CHECK(ends_are(0, 3, 5, 5));
    /* Reads that overlap an abort return it with its first offset. */
    CHECK(append_marker(7, 1, false, 4) == 0 && ends_are(0, 6, 6, 6));
    static const int64_t looks[4][3] = {{0, 6, 1}, {0, 3, 0}, {5, 6, 1}, {6, 7, 0}};
    for (int i = 0; i < 4; i++) {
        struct log_aborted_list found;
        CHECK(log_aborted_between(one, looks[i][0], looks[i][1], 0, 4, &found) == 0);
        CHECK(found.count == looks[i][2] && found.upper == looks[i][1]);
        if (found.count > 0) CHECK(found.at[0].producer_id == 7 && found.at[0].first_offset == 3);
        free(found.at);
    }
    let_go();
}

/* ---- wake-ups and flushes ---- */

static int woken(struct mailbox *m) {
    struct message messages[8];
    return (int)mailbox_take(m, messages, 8);
}

static void wake(void) {
    struct mailbox *m = mailbox_new(64);
    struct log_waiter waiters[4];
    open_one(config_of(1 << 20));
    for (int kind = 0; kind < 4; kind++) {
        waiters[kind] = (struct log_waiter){.mailbox = m, .offset = 1, .wait_for = (uint8_t)kind};
        CHECK(!log_wait(one, &waiters[kind]));
    }
    CHECK(played_asked(dir) == 1); /* requested by the waiter */
    fill(1, 1);
    CHECK(woken(m) == 0 && played_asked(dir) == 1);
    fill(1, 1);
    CHECK(woken(m) == 3 && waiters[LOG_WAIT_FLUSHED].linked && played_asked(dir) == 1);
    CHECK(log_flush(one) == 0 && woken(m) == 1 && !waiters[LOG_WAIT_FLUSHED].linked);
    fill(1, 1);
    CHECK(woken(m) == 0 && played_asked(dir) == 0);
    CHECK(log_wait(one, &waiters[LOG_WAIT_END]) && !waiters[LOG_WAIT_END].linked);
    /* With other replicas only the end offset advances. */
    CHECK(log_lead_replicas(one, 1, 2) == 0);
    for (int kind = 0; kind < 3; kind++) {
        waiters[kind].offset = 3;
        CHECK(!log_wait(one, &waiters[kind]));
    }
    fill(1, 1);
    CHECK(woken(m) == 1 && !waiters[LOG_WAIT_END].linked && waiters[0].linked);
    log_advance_high_watermark(one, 4);
    CHECK(woken(m) == 2 && !waiters[0].linked && !waiters[1].linked);
    mailbox_free(m);
    let_go();
}

/* The high watermark waits for this leader's flush, whatever other replicas there are. */
static void hide_unflushed(void) {
    struct mailbox *m = mailbox_new(64);
    struct log_waiter waiter = {.mailbox = m, .wait_for = LOG_WAIT_HIGH_WATERMARK};
    struct log_config config = config_of(1 << 20);
    config.flushed_records_only = true;
    open_one(config);
    CHECK(played_asked(dir) == 0);
    fill(2, 1);
    CHECK(!log_wait(one, &waiter) && ends_are(0, 0, 0, 2) && played_asked(dir) == 1);
    CHECK(woken(m) == 0 && log_flush(one) == 0);
    CHECK(woken(m) == 1 && ends_are(0, 2, 2, 2));
    /* The last stable offset waits as well. */
    CHECK(append_verified((struct played_batch){.time = 1, .producer = 8}, -1, true) == 0);
    CHECK(append_marker(7, 0, true, 3) == 0 && ends_are(0, 2, 2, 4));
    CHECK(log_flush(one) == 0 && ends_are(0, 4, 4, 4));
    drop_asked();
    /* The setting can change at run time, and records that were visible stay visible. */
    fill(1, 1);
    config.flushed_records_only = false;
    log_set_config(one, &config);
    CHECK(ends_are(0, 5, 5, 5) && played_asked(dir) == 1);
    fill(1, 1);
    config.flushed_records_only = true;
    log_set_config(one, &config);
    CHECK(ends_are(0, 6, 6, 6) && played_asked(dir) == 0);
    fill(1, 1);
    CHECK(ends_are(0, 6, 6, 7) && played_asked(dir) == 1);
    /* A new leader epoch does not expose them either. */
    CHECK(log_become_leader(one, 1, 1) == 0 && ends_are(0, 6, 6, 7) && played_asked(dir) == 1);
    CHECK(log_flush(one) == 0 && ends_are(0, 7, 7, 7));
    /* Nor does a leader without other replicas in its metadata, or one that counts unflushed
     * records. */
    for (uint32_t others = 0; others <= 1; others++) {
        struct log_replica named = {.broker = 2, .epoch = 7, .in_sync = true, .maximal = true};
        int32_t epoch = 2 + (int32_t)others;
        int64_t end = 7 + others;
        CHECK(log_lead_replicas(one, epoch, 1 + (int32_t)others) == 0);
        CHECK(log_set_replicas(one, 0, &named, others, 1 + (int32_t)others) == 0);
        fill(1, 1);
        struct log_follower_fetch at = {.broker = 2, .leader_epoch = epoch, .epoch = 7,
                                        .offset = end + 1, .now_ns = 1};
        if (others != 0) CHECK(log_follower_at(one, &at) >= 0);
        CHECK(ends_are(0, end, end, end + 1) && played_asked(dir) == 1);
        CHECK(log_flush(one) == 0 && ends_are(0, end + 1, end + 1, end + 1));
    }
    /* A follower's consumers do not wait for its disk. */
    drop_asked();
    log_become_follower(one, 4);
    log_set_config(one, &config);
    CHECK(played_asked(dir) == 0);
    mailbox_free(m);
    let_go();
}

static void ask_for_flushes(void) {
    struct log_config config = config_of(1 << 20);
    config.flush_messages = 3;
    open_one(config);
    fill(2, 1);
    CHECK(played_asked(dir) == 0);
    fill(1, 1);
    CHECK(played_asked(dir) == 1 && log_flushed_offset(one) == 0);
    CHECK(log_flush(one) == 0 && log_flushed_offset(one) == 3);
    fill(2, 1);
    CHECK(played_asked(dir) == 0);
    CHECK(append((struct played_batch){.records = 1, .time = 1}) == 0 && played_asked(dir) == 1);
    /* Rejected batches request no flush. */
    CHECK(append_as((struct played_batch){.time = 1}, 9) == LOG_E_NOT_LEADER);
    CHECK(played_asked(dir) == 0);
    /* A replica counts with its flushed records, so other brokers wait for its flush. */
    config.flush_messages = INT64_MAX;
    config.flush_before_fetch = true;
    log_set_config(one, &config);
    fill(1, 1);
    CHECK(played_asked(dir) == 0);
    CHECK(log_lead_replicas(one, 1, 2) == 0 && played_asked(dir) == 1);
    fill(1, 1);
    CHECK(played_asked(dir) == 1);
    let_go();
}

int main(int argc, char **argv) {
    static const struct scene scenes[] = {
        {"bytes", roll_by_bytes},   {"time", roll_by_time}, {"timeless", roll_without_times},
        {"index", roll_by_indexes}, {"made", roll_within_the_settings},
        {"write", write_whole},     {"back", take_back},    {"fail", fail_to_write},
        {"answer", answer},         {"again", answer_again}, {"verify", verify},
        {"wake", wake},             {"ask", ask_for_flushes}, {"hide", hide_unflushed},
        {"open", open_again},
        {"pieces", write_in_pieces}};
    return play_scenes(argc, argv, scenes, sizeof scenes / sizeof *scenes, true);
}
