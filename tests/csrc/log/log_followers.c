/* Batches appended as a group, batches from a leader, and bytes that are not batches. Usage:
 * log_followers DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "single_log.h"

static struct log_config config_of(int32_t segment_bytes) {
    return scene_config(segment_bytes, 100);
}

/* ---- groups ---- */

enum { PARTS = 6, ROOM = 400 };
static uint8_t bytes[PARTS * ROOM];
static struct batch_summary summaries[PARTS];
static struct log_append_part parts[PARTS];

/* Place a batch directly after the others in memory, or after a gap. */
static void put(int i, bool gap, struct played_batch b) {
    uint8_t *at = i == 0 ? bytes : parts[i - 1].batch + parts[i - 1].len + gap;
    memset(&summaries[i], 0, sizeof summaries[i]);
    parts[i] = (struct log_append_part){.batch = at, .summary = &summaries[i], .result = 77};
    b.value_bytes = 10;
    parts[i].len = played_make(at, b);
    CHECK(batch_parse(at, parts[i].len, &summaries[i].header) == 0);
}

static uint32_t writes_for(int count) {
    uint32_t before = played.counts[PWRITE];
    log_append_batches(one, parts, (uint32_t)count, -1, NOW);
    return played.counts[PWRITE] - before;
}

static bool got(int i, int64_t base, int64_t last) {
    const struct log_appended *out = &parts[i].out;
    return parts[i].result == 0 && out->base_offset == base && out->last_offset == last &&
           !out->duplicate && out->log_start_offset == 0 && get_i64(parts[i].batch) == base;
}

static void write_together(void) {
    open_one(config_of(1 << 20));
    for (int i = 0; i < 3; i++) put(i, false, (struct played_batch){.time = i, .records = 2});
    CHECK(writes_for(3) == 2); /* the first batch sets the segment's start time */
    for (int i = 0; i < 3; i++) CHECK(got(i, 2 * i, 2 * i + 1));
    for (int i = 0; i < 3; i++) put(i, false, (struct played_batch){.time = i, .producer = i + 1});
    CHECK(writes_for(3) == 1 && log_end_offset(one) == 9);
    for (int i = 0; i < 3; i++) CHECK(got(i, 6 + i, 6 + i));
    /* Consecutive batches of one producer share a write; batches with gaps need one write each. */
    for (int i = 0; i < 3; i++)
        put(i, false, (struct played_batch){.time = i, .producer = i == 1 ? 9 : 8,
                                            .sequence = i == 2});
    CHECK(writes_for(3) == 1 && parts[2].result == 0 && log_end_offset(one) == 12);
    for (int i = 0; i < 3; i++) put(i, i == 2, (struct played_batch){.time = i});
    CHECK(writes_for(3) == 2 && log_end_offset(one) == 15);
    struct mailbox *m = mailbox_new(8);
    struct message messages[4];
    struct log_waiter w = {.mailbox = m, .offset = 15, .wait_for = LOG_WAIT_HIGH_WATERMARK};
    CHECK(!log_wait(one, &w));
    struct log_range range;
    CHECK(read_bytes(0, 1 << 20, &range) == 12 * SMALL && range.next_offset == 15);
    CHECK(log_size_bytes(one) == 12 * SMALL);
    struct log_stats f;
    log_read_stats(one, &f);
    CHECK(f.produce_requests == 12 && f.produce_failures == 0 && f.batches_in == 12);
    CHECK(f.records_in == 15 && f.bytes_in == 12 * SMALL);
    for (int i = 0; i < 2; i++) put(i, false, (struct played_batch){.time = i});
    CHECK(writes_for(2) == 1 && mailbox_take(m, messages, 4) == 1 && !w.linked);
    mailbox_free(m);
    let_go();
}

static void answer_each(void) {
    open_one(config_of(1 << 20));
    fill(1, 1);
    put(0, false, (struct played_batch){.time = 1, .producer = 4});
    put(1, false, (struct played_batch){.time = 1, .producer = 5, .sequence = 0});
    CHECK(writes_for(2) == 1 && got(0, 1, 1) && got(1, 2, 2));
    /* Duplicate; out of order; of another length; good. */
    put(0, false, (struct played_batch){.time = 1, .producer = 4});
    put(1, false, (struct played_batch){.time = 1, .producer = 5, .sequence = 9});
    put(2, false, (struct played_batch){.time = 1});
    put(3, false, (struct played_batch){.time = 1, .producer = 5, .sequence = 1});
    parts[2].len--;
    CHECK(writes_for(4) == 1);
    CHECK(parts[0].result == 0 && parts[0].out.duplicate && parts[0].out.base_offset == 1);
    CHECK(parts[1].result == LOG_E_SEQUENCE && parts[2].result == LOG_E_CORRUPT && got(3, 3, 3));
    struct log_stats f;
    log_read_stats(one, &f);
    CHECK(f.produce_requests == 7 && f.produce_failures == 2 && f.batches_in == 4);
    /* All but the first batch of a continuing group. */
    put(0, false, (struct played_batch){.time = 1});
    put(1, false, (struct played_batch){.time = 1, .producer = 4});
    put(2, false, (struct played_batch){.time = 1, .producer = 6});
    CHECK(writes_for(3) == 2 && got(0, 4, 4) && parts[1].out.duplicate && got(2, 5, 5));
    log_become_follower(one, 1);
    CHECK(log_become_leader(one, 2, 1) == 0);
    put(0, false, (struct played_batch){.time = 1});
    CHECK(writes_for(1) == 1 && got(0, 6, 6) && parts[0].out.leadership_losses == 1);
    CHECK(parts[0].out.append_time_ms == -1 && get_i32(bytes + BATCH_LEADER_EPOCH_AT) == 2);
    struct log_config config = config_of(1 << 20);
    config.log_append_time = true;
    log_set_config(one, &config);
    put(0, false, (struct played_batch){.time = 1});
    put(1, false, (struct played_batch){.time = 1});
    CHECK(writes_for(2) == 1 && got(1, 8, 8) && parts[1].out.append_time_ms == NOW);
    CHECK(get_i64(parts[1].batch + BATCH_MAX_TIMESTAMP_AT) == NOW);
    log_become_follower(one, 3);
    CHECK(writes_for(2) == 0 && parts[0].result == LOG_E_NOT_LEADER);
    CHECK(parts[1].result == LOG_E_NOT_LEADER && log_end_offset(one) == 9);
    let_go();
}

static void roll_between(void) {
    struct log_config config = config_of(4 * SMALL);
    config.flush_messages = 3;
    open_one(config);
    fill(1, 1);
    for (int i = 0; i < 6; i++) put(i, false, (struct played_batch){.time = i});
    CHECK(writes_for(6) >= 3 && segments_begin("0 4") && log_end_offset(one) == 7);
    for (int i = 0; i < 6; i++) CHECK(got(i, 1 + i, 1 + i));
    CHECK(played_asked(dir) == 1);
    /* If a segment cannot be created, only the batches that need it are rejected. */
    played_fail(OPENAT, "008.log", ENOSPC, 1);
    for (int i = 0; i < 2; i++) put(i, false, (struct played_batch){.time = i});
    CHECK(writes_for(2) == 1 && got(0, 7, 7) && parts[1].result == LOG_E_FULL);
    CHECK(segments_begin("0 4") && log_end_offset(one) == 8);
    let_go();
}

static ssize_t tight_pwrite(int fd, const void *from, size_t len, off_t at) {
    if (len <= SMALL) return pwrite(fd, from, len, at);
    errno = ENOSPC;
    return -1;
}

/* If the group does not fit, single batches may. */
static void write_alone_when_short(void) {
    open_one(config_of(1 << 20));
    fill(1, 1);
    struct disk disk = *log_dir_disk(dir);
    disk.pwrite = tight_pwrite;
    log_dir_set_disk(dir, &disk);
    for (int i = 0; i < 3; i++) put(i, false, (struct played_batch){.time = i, .producer = i + 1});
    log_append_batches(one, parts, 3, -1, NOW);
    for (int i = 0; i < 3; i++) CHECK(got(i, 1 + i, 1 + i));
    CHECK(played_size(dir, file_of(0, "log")) == 4 * SMALL);
    /* A batch whose producer cannot be stored is missing, and so are all batches written with
     * it. */
    disk.pwrite = played_pwrite;
    log_dir_set_disk(dir, &disk);
    for (int i = 0; i < 3; i++) put(i, false, (struct played_batch){.time = i, .producer = i + 20});
    short_of.starved = 1;
    log_append_batches(one, parts, 3, -1, NOW);
    CHECK(parts[0].result == LOG_E_MEMORY && got(1, 4, 4) && got(2, 5, 5));
    CHECK(log_end_offset(one) == 6);
    played_fail(PWRITE, ".log", EIO, 1);
    for (int i = 0; i < 2; i++) put(i, false, (struct played_batch){.time = i});
    log_append_batches(one, parts, 2, -1, NOW);
    CHECK(parts[0].result == LOG_E_IO && parts[1].result == LOG_E_OFFLINE);
    let_go();
}

/* ---- batches from a leader ---- */

static void begin_to_follow(struct log_checkpoint checkpoint) {
    CHECK(open_with(config_of(1 << 20), checkpoint) == 0);
    log_become_follower(one, 0);
}

static void take_as_it_is(void) {
    size_t taken = 77;
    begin_to_follow(from_nothing());
    struct mailbox *m = mailbox_new(8);
    struct message message;
    struct log_waiter w = {.mailbox = m, .offset = 7, .wait_for = LOG_WAIT_END,
                           .as_follower = true};
    CHECK(!log_wait(one, &w));
    CHECK(follow((struct played_batch){.base = 5, .time = 1, .records = 3, .leader_epoch = 2},
                 &taken) == 0);
    CHECK(mailbox_take(m, &message, 1) == 1 && message.status == 0 && !w.linked);
    mailbox_free(m);
    CHECK(taken == 68 && ends_are(0, 0, 0, 8) && segments_begin("0") && log_last_epoch(one) == 2);
    CHECK(follow((struct played_batch){.base = 7, .time = 1}, &taken) == LOG_E_RANGE && taken == 0);
    CHECK(follow((struct played_batch){.base = 8, .time = 1, .leader_epoch = 1}, &taken) == 0);
    CHECK(log_last_epoch(one) == 1 || log_last_epoch(one) == 2);
    size_t len = played_make(made, (struct played_batch){.base = 9, .time = 1});
    made[len - 1] ^= 1;
    CHECK(log_append_as_follower(one, made, len, NOW, &taken) == LOG_E_CORRUPT && taken == 0);
    made[16] = 1;
    CHECK(log_append_as_follower(one, made, len, NOW, &taken) == LOG_E_CORRUPT);
    /* Two batches, the second truncated; then one followed by an invalid one. */
    len = played_make(made, (struct played_batch){.base = 9, .time = 1});
    size_t both = len + played_make(made + len, (struct played_batch){.base = 10, .time = 1});
    CHECK(log_append_as_follower(one, made, both - 1, NOW, &taken) == 0 && taken == len);
    CHECK(log_end_offset(one) == 10);
    CHECK(log_append_as_follower(one, made + len, len, NOW, &taken) == 0 && taken == len);
    played_make(made, (struct played_batch){.base = 11, .time = 1});
    played_make(made + len, (struct played_batch){.base = 11, .time = 1});
    CHECK(log_append_as_follower(one, made, both, NOW, &taken) == LOG_E_RANGE && taken == len);
    CHECK(log_end_offset(one) == 12);
    CHECK(follow((struct played_batch){.base = LOG_OFFSET_MAX + 1, .time = 1}, &taken) ==
          LOG_E_RANGE);
    CHECK(log_become_leader(one, 3, 1) == 0);
    CHECK(follow((struct played_batch){.base = 12, .time = 1}, &taken) == LOG_E_NOT_LEADER);
    log_abandon(one);
    CHECK(follow((struct played_batch){.base = 12, .time = 1}, &taken) == LOG_E_DELETED);
    let_go();
}

/* A segment's offset range is limited by its index format. */
static void follow_far(void) {
    size_t taken;
    begin_to_follow(from_nothing());
    CHECK(follow((struct played_batch){.base = 0, .time = 1}, &taken) == 0);
    CHECK(follow((struct played_batch){.base = INT32_MAX, .time = 1}, &taken) == 0);
    CHECK(segments_begin("0"));
    int64_t end = (int64_t)INT32_MAX + 1;
    CHECK(follow((struct played_batch){.base = end, .time = 1}, &taken) == 0);
    CHECK(segments_begin("0 2147483648"));
    CHECK(follow((struct played_batch){.base = 2 * end - 1, .time = 1}, &taken) == 0);
    CHECK(segments_begin("0 2147483648") && log_end_offset(one) == 2 * end);
    /* Beyond that range from the end, the batch starts a new segment and sets the log's end. */
    CHECK(follow((struct played_batch){.base = 3 * end, .time = 1}, &taken) == 0);
    CHECK(segments_begin("0 2147483648 6442450944") && log_end_offset(one) == 3 * end + 1);
    CHECK(follow((struct played_batch){.base = 3 * end + 1, .time = 1, .records = INT32_MAX},
                 &taken) == 0);
    CHECK(segments_begin("0 2147483648 6442450944"));
    let_go();
}

/* The log start may lie inside a batch, which a replica stores completely. */
static void begin_within(void) {
    size_t taken;
    struct log_checkpoint c = from_nothing();
    c.log_start_offset = 12;
    begin_to_follow(c);
    CHECK(ends_are(12, 12, 12, 12) && segments_begin(""));
    /* A failed write leaves the log unchanged. */
    played_fail(OPENAT, "010.log", ENOSPC, 1);
    CHECK(follow((struct played_batch){.base = 10, .time = 1, .records = 5}, &taken) == LOG_E_FULL);
    CHECK(ends_are(12, 12, 12, 12) && segments_begin("") && log_flushed_offset(one) == 12);
    CHECK(follow((struct played_batch){.base = 10, .time = 1, .records = 5}, &taken) == 0);
    CHECK(ends_are(12, 12, 12, 15) && segments_begin("10") && log_flushed_offset(one) == 10);
    let_go();
}

/* ---- bytes that are not batches ---- */

static void take_damage(void) {
    size_t taken;
    begin_to_follow(from_nothing());
    CHECK(follow((struct played_batch){.base = 0, .time = 1}, &taken) == 0);
    struct mailbox *m = mailbox_new(8);
    struct message message;
    struct log_waiter w = {.mailbox = m, .offset = 1, .wait_for = LOG_WAIT_END,
                           .as_follower = true};
    CHECK(!log_wait(one, &w));
    static const uint8_t rubbish[100] = {1, 2, 3};
    CHECK(log_append_damage(one, rubbish, 100, 0, NOW) == LOG_E_RANGE);
    CHECK(log_append_damage(one, rubbish, 100, 1, NOW) == 0 && log_end_offset(one) == 1);
    CHECK(mailbox_take(m, &message, 1) == 0 && w.linked);
    CHECK(log_append_damage(one, rubbish, 100, 6, NOW) == 0 && log_end_offset(one) == 6);
    CHECK(mailbox_take(m, &message, 1) == 1 && message.status == 0 && !w.linked);
    CHECK(played_size(dir, file_of(0, "log")) == 268 && log_size_bytes(one) == 268);
    played_fail(PWRITE, ".log", ENOSPC, 1);
    CHECK(log_append_damage(one, rubbish, 100, 9, NOW) == LOG_E_FULL && log_end_offset(one) == 6);
    struct log_config config = config_of(300);
    log_set_config(one, &config);
    CHECK(log_append_damage(one, rubbish, 32, 7, NOW) == 0 && segments_begin("0"));
    played_fail(OPENAT, "007.log", ENOSPC, 1);
    CHECK(log_append_damage(one, rubbish, 1, 9, NOW) == LOG_E_FULL);
    CHECK(log_append_damage(one, rubbish, 1, 9, NOW) == 0 && segments_begin("0 7"));
    CHECK(log_become_leader(one, 1, 1) == 0);
    CHECK(log_append_damage(one, rubbish, 1, 9, NOW) == LOG_E_NOT_LEADER);
    log_abandon(one);
    CHECK(log_append_damage(one, rubbish, 1, 9, NOW) == LOG_E_DELETED);
    mailbox_free(m);
    let_go();
}

int main(int argc, char **argv) {
    static const struct scene scenes[] = {
        {"together", write_together}, {"each", answer_each},   {"roll", roll_between},
        {"alone", write_alone_when_short}, {"follow", take_as_it_is}, {"far", follow_far},
        {"within", begin_within},     {"damage", take_damage}};
    return play_scenes(argc, argv, scenes, sizeof scenes / sizeof *scenes, true);
}
