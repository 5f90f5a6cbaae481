/* A log moves to another directory, gets another name, or another role. Usage: log_moves
 * DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "log/single_log.h"

static const char *const NAME = "t-0.0123456789abcdef0123456789abcdef-future";

static struct log_dir *target;
static struct log *copy;
static int64_t damaged;

static struct log_config config_of(int32_t segment_bytes) {
    return scene_config(segment_bytes, 100);
}

/* Open the copy in its own directory, on the same disk. */
static void open_copy(void) {
    static const uint8_t id[16] = {1};
    char path[512];
    const struct log_config config = config_of(10 * SMALL);
    const struct log_checkpoint checkpoint = from_nothing();
    snprintf(path, sizeof path, "%s/other", dir->path);
    target = played_directory(path, pool);
    played_still(target);
    CHECK(log_open_as(target, NAME, id, &config, &checkpoint, NOW, &copy) == 0);
    log_become_follower(copy, 0);
}

static void drop_copy(void) {
    played_asked(target);
    played_asked_some_time(target);
    CHECK(atomic_load(&copy->references) == 1);
    log_release(copy);
    log_dir_free(target);
}

static void make_source(int count) {
    open_one(config_of(10 * SMALL));
    fill(count, 1000);
}

/* Compare the logs byte by byte from the copy's start. */
static void check_copied(void) {
    static uint8_t a[1 << 14], b[1 << 14];
    CHECK(log_end_offset(copy) == log_end_offset(one));
    for (uint32_t i = 0; i < copy->view.segment_count; i++) {
        char path[300];
        int64_t base = copy->view.segments[i]->base_offset;
        snprintf(path, sizeof path, "%s/%020lld.log", NAME, (long long)base);
        ssize_t n = played_read(target, path, a, sizeof a);
        CHECK(n > 0 && played_read(dir, file_of(base, "log"), b, sizeof b) == n);
        CHECK(memcmp(a, b, (size_t)n) == 0);
    }
}

static void copy_all(void) {
    make_source(25);
    open_copy();
    int rounds = 0, result;
    while ((result = log_copy(one, copy, 1, NOW, &damaged)) == 1) {
        CHECK(damaged == 0);
        rounds++;
    }
    CHECK(result == 0 && rounds == 3); /* one segment each */
    check_copied();
    CHECK(log_copy(one, copy, 1 << 20, NOW, &damaged) == 0);
    fill(12, 2000);
    CHECK(log_copy(one, copy, 1 << 20, NOW, &damaged) == 0);
    check_copied();
    CHECK(log_is_leader(one) && !log_is_leader(copy) && log_flushed_offset(copy) == 0);
    fill(1, 3000);
    CHECK(log_hand_over(one, copy, NOW, &damaged) == 0 && damaged == 0);
    check_copied();
    CHECK(log_flushed_offset(copy) == 38 && !log_is_leader(one));
    CHECK(append((struct played_batch){.time = 1}) == LOG_E_NOT_LEADER);
    drop_copy();
    let_go();
}

static void copy_from_the_start(void) {
    make_source(25);
    CHECK(log_move_start(one, 13, NOW) == 0);
    open_copy();
    CHECK(log_copy(one, copy, 1 << 20, NOW, &damaged) == 0 && log_end_offset(copy) == 25);
    int64_t triples[6];
    CHECK(log_segments(copy, triples, 2) == 2);
    drop_copy();
    let_go();
}

static void copy_damage(void) {
    make_source(25);
    CHECK(log_flush(one) == 0);
    uint8_t wrong = 99;
    played_change(dir, file_of(10, "log"), 3 * SMALL + 70, &wrong, 1);
    open_copy();
    int64_t all = 0;
    int result;
    while ((result = log_copy(one, copy, 1, NOW, &damaged)) == 1) all += damaged;
    CHECK(result == 0 && all + damaged == SMALL);
    check_copied();
    drop_copy();
    let_go();
}

static void copy_with_faults(void) {
    make_source(25);
    open_copy();
    short_of.starved = 1;
    CHECK(log_copy(one, copy, 1 << 20, NOW, &damaged) == LOG_E_MEMORY);
    short_of.starved = 1;
    CHECK(log_hand_over(one, copy, NOW, &damaged) == LOG_E_MEMORY && log_is_leader(one));
    played_fail(PWRITE, "future/00000000000000000010.log", ENOSPC, 1);
    CHECK(log_copy(one, copy, 1 << 20, NOW, &damaged) == LOG_E_FULL && log_end_offset(copy) == 10);
    played_fail(PWRITE, "future/00000000000000000010.log", ENOSPC, 1);
    CHECK(log_hand_over(one, copy, NOW, &damaged) == LOG_E_FULL && log_is_leader(one));
    CHECK(log_copy(one, copy, 1 << 20, NOW, &damaged) == 0);
    check_copied();
    /* The guarantees of the recovery point must hold for the copy too. */
    played_fail(PWRITE, "epoch", ENOSPC, 1);
    CHECK(log_hand_over(one, copy, NOW, &damaged) == LOG_E_FULL && log_is_leader(one));
    fill(1, 2000);
    played_fail(FDATASYNC, "future", EIO, 1);
    CHECK(log_hand_over(one, copy, NOW, &damaged) == LOG_E_IO && log_is_leader(one));
    CHECK(log_dir_offline(target) && !log_dir_offline(dir));
    log_abandon(one);
    CHECK(log_hand_over(one, copy, NOW, &damaged) == LOG_E_DELETED);
    CHECK(log_copy(one, copy, 1 << 20, NOW, &damaged) == LOG_E_DELETED);
    drop_copy();
    let_go();
}

static void name_anew(void) {
    make_source(3);
    CHECK(log_rename(one, "u-7") == 0 && strcmp(one->partition->name, "u-7") == 0);
    CHECK(played_size(dir, "t-0") == -1 && played_size(dir, "u-7") >= 0);
    uint32_t syncs = played.counts[FSYNC];
    CHECK(log_rename(one, "t-0") == 0 && played.counts[FSYNC] == syncs + 1);
    fill(8, 2000);
    CHECK(played_size(dir, file_of(10, "log")) == SMALL);
    played_fail(RENAMEAT, "t-0", ENOSPC, 1);
    CHECK(log_rename(one, "u-7") == LOG_E_FULL && strcmp(one->partition->name, "t-0") == 0);
    short_of.starved = 1;
    CHECK(log_rename(one, "u-7") == LOG_E_MEMORY && played_size(dir, "t-0") >= 0);
    /* A rename that cannot be synced now is undone. */
    log_dir_set_open_files(dir, 100);
    played_fail(OPENAT, ".", EMFILE, 9);
    played.faults[OPENAT].of = NULL;
    CHECK(log_rename(one, "u-7") == LOG_E_MEMORY && strcmp(one->partition->name, "t-0") == 0);
    played_heal();
    CHECK(played_size(dir, "t-0") >= 0 && played_size(dir, "u-7") == -1);
    CHECK(!log_dir_offline(dir));
    played_fail(FSYNC, NULL, EIO, 1);
    CHECK(log_rename(one, "u-7") == LOG_E_IO && log_dir_offline(dir));
    let_go();
}

/* ---- roles ---- */

static void change_roles(void) {
    struct mailbox *m = mailbox_new(8);
    struct message message;
    CHECK(open_with(config_of(1 << 20), from_nothing()) == 0);
    CHECK(!log_is_leader(one) && log_leader_epoch(one) == -1 && log_leadership_losses(one) == 0);
    CHECK(log_failed(one) == LOG_E_NOT_LEADER && !log_is_readable(one));
    CHECK(log_lead_replicas(one, 3, 2) == 0 && log_in_sync_count(one) == 2);
    CHECK(log_failed(one) == 0 && log_leader_epoch(one) == 3 && log_last_epoch(one) == 3);
    fill(4, 1);
    CHECK(ends_are(0, 0, 0, 4) && log_high_watermark_is_current(one));
    log_advance_high_watermark(one, 2);
    CHECK(ends_are(0, 2, 2, 4));
    log_advance_high_watermark(one, 1);
    CHECK(ends_are(0, 2, 2, 4));
    log_advance_high_watermark(one, 9);
    CHECK(ends_are(0, 4, 4, 4));
    /* The same epoch again changes nothing; another epoch restarts the leadership. */
    fill(2, 1);
    CHECK(log_lead_replicas(one, 3, 3) == 0 && log_in_sync_count(one) == 3);
    CHECK(log_high_watermark_is_current(one) && ends_are(0, 4, 4, 6));
    CHECK(log_lead_replicas(one, 5, 3) == 0 && !log_high_watermark_is_current(one));
    log_advance_high_watermark(one, 6);
    CHECK(log_high_watermark_is_current(one));
    struct log_waiter w = {.mailbox = m, .token = 42, .offset = 9, .wait_for = LOG_WAIT_END};
    CHECK(!log_wait(one, &w) && w.linked);
    log_become_follower(one, 6);
    CHECK(mailbox_take(m, &message, 1) == 1 && message.status == LOG_E_NOT_LEADER && !w.linked);
    CHECK(message.token == 42 && message.data == &w && message.kind == MESSAGE_WAKE);
    CHECK(log_leadership_losses(one) == 1 && log_leader_epoch(one) == 6 && !log_is_leader(one));
    /* A waiter at a log without leadership is notified at once, unless it also waits as a
     * follower. */
    CHECK(!log_wait(one, &w) && !w.linked && mailbox_take(m, &message, 1) == 1);
    CHECK(message.status == LOG_E_NOT_LEADER);
    w.as_follower = true;
    CHECK(!log_wait(one, &w) && w.linked && mailbox_take(m, &message, 1) == 0);
    log_unwait(one, &w);
    log_unwait(one, &w);
    CHECK(!w.linked && atomic_load(&one->wait.counts[LOG_WAIT_END]) == 0);
    log_set_readable(one, true);
    CHECK(log_is_readable(one));
    log_become_follower(one, 7);
    CHECK(!log_is_readable(one) && log_leadership_losses(one) == 1);
    CHECK(log_become_leader(one, 8, 1) == 0 && ends_are(0, 6, 6, 6));
    log_set_throttled(one, true, false);
    CHECK(log_is_throttled_leading(one) && !log_is_throttled_following(one));
    log_set_throttled(one, false, true);
    CHECK(!log_is_throttled_leading(one) && log_is_throttled_following(one));
    log_abandon(one);
    CHECK(log_become_leader(one, 9, 1) == LOG_E_DELETED && log_failed(one) == LOG_E_DELETED);
    mailbox_free(m);
    let_go();
}

/* Several waiters at an end offset: each is woken when the offset passes its own. */
static void wake_in_turn(void) {
    struct mailbox *m = mailbox_new(64);
    struct message messages[16];
    struct log_waiter w[6];
    open_one(config_of(1 << 20));
    fill(1, 1);
    for (int i = 0; i < 6; i++) {
        w[i] = (struct log_waiter){.mailbox = m, .token = (uint64_t)i, .offset = i,
                                   .wait_for = LOG_WAIT_END};
        CHECK(log_wait(one, &w[i]) == (i == 0) && w[i].linked == (i > 0));
    }
    CHECK(atomic_load(&one->wait.counts[LOG_WAIT_END]) == 5);
    log_unwait(one, &w[3]); /* in the middle */
    fill(1, 1);
    CHECK(mailbox_take(m, messages, 16) == 1 && messages[0].token == 1);
    log_unwait(one, &w[5]);
    fill(2, 1);
    CHECK(mailbox_take(m, messages, 16) == 1 && messages[0].token == 2 && w[4].linked);
    CHECK(atomic_load(&one->wait.counts[LOG_WAIT_END]) == 1);
    fill(1, 1);
    CHECK(mailbox_take(m, messages, 16) == 1 && messages[0].token == 4);
    CHECK(one->wait.lists[LOG_WAIT_END] == NULL && messages[0].status == 0);
    CHECK(atomic_load(&one->wait.counts[LOG_WAIT_END]) == 0);
    mailbox_free(m);
    let_go();
}

int main(int argc, char **argv) {
    static const struct scene scenes[] = {
        {"copy", copy_all},   {"start", copy_from_the_start}, {"damage", copy_damage},
        {"faults", copy_with_faults}, {"name", name_anew},    {"roles", change_roles},
        {"wake", wake_in_turn}};
    return play_scenes(argc, argv, scenes, sizeof scenes / sizeof *scenes, true);
}
