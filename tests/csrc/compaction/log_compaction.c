/* Compaction, call by call: retained records, statistics, and the state after a failed call.
 * Usage: log_compaction DIRECTORY SCENE. Exits with 0, or with 1 and a line on stderr. */
#include "compaction/pass.h"
#include "log/single_log.h"

enum { CONTENT_BYTES = 4096, DAY = 86400000 };

static struct log_config config;
static const char *where;

/* Make a batch with one record per letter: upper case has the value, lower case is its
 * tombstone. */
static size_t make_keyed(uint8_t *p, const char *keys, const char *value, int64_t time) {
    uint8_t records[1024];
    size_t n = 0;
    int32_t count = 0;
    for (const char *k = keys; *k != 0; k++, count++) {
        bool dead = *k >= 'a';
        size_t len = dead ? 0 : strlen(value);
        n += put_uvarint(records + n, zigzag_encode((int64_t)(7 + len)));
        records[n++] = 0;
        records[n++] = 0;
        records[n++] = (uint8_t)(2 * count);
        records[n++] = 2;
        records[n++] = (uint8_t)(dead ? *k - 'a' + 'A' : *k);
        records[n++] = (uint8_t)(dead ? 1 : 2 * len);
        memcpy(records + n, value, len);
        n += len;
        records[n++] = 0;
    }
    size_t len = scene_batch(p, records, n, time, -1, -1);
    put_i32(p + BATCH_LAST_OFFSET_DELTA_AT, count - 1);
    put_i32(p + BATCH_RECORD_COUNT_AT, count);
    scene_seal(p, len);
    return len;
}

static void put(const char *keys, const char *value, int64_t time) {
    struct batch_summary summary = {0};
    size_t len = make_keyed(made, keys, value, time);
    CHECK(batch_parse(made, len, &summary.header) == 0);
    CHECK(log_append(one, made, len, &summary, -1, NOW, &appended) == 0);
}

static void seal(void) { CHECK(log_seal(one, NOW) == 0); }

static int64_t take(const uint8_t **p) {
    uint64_t bits;
    size_t n = get_uvarint(*p, *p + 10, 10, &bits);
    CHECK(n > 0);
    *p += n;
    return zigzag_decode(bits);
}

static size_t describe(const uint8_t **p, const struct batch_header *h, char *text) {
    int64_t len = take(p);
    const uint8_t *end = *p + len;
    (*p)++;
    take(p);
    int64_t delta = take(p);
    CHECK(take(p) == 1);
    char key = (char)*(*p)++;
    int64_t value = take(p);
    int n = sprintf(text, " %lld:%c=%.*s", (long long)(h->base_offset + delta), key,
                    value < 0 ? 1 : (int)value, value < 0 ? "-" : (const char *)*p);
    *p = end;
    return (size_t)n;
}

/* Return "offset:key=value" of all readable records, and the segments. */
static const char *content(void) {
    static char text[CONTENT_BYTES];
    static uint8_t bytes[1 << 16];
    size_t n = (size_t)snprintf(text, sizeof text, "[%s]", bases());
    for (int64_t at = log_start_offset(one); at < log_end_offset(one);) {
        struct log_range range;
        CHECK(log_read(one,
                       &(struct log_read_request){
                           .offset = at, .bytes_max = 1 << 20, .at_least_one = true},
                       &range) == 0);
        CHECK(pread(range.fd, bytes, (size_t)range.length, range.position) == range.length);
        struct batch_header h;
        for (int32_t i = 0; i < range.length; i += (int32_t)batch_bytes(&h)) {
            CHECK(batch_parse(bytes + i, (size_t)(range.length - i), &h) == 0);
            CHECK(batch_check_crc(bytes + i, &h) == 0);
            const uint8_t *p = bytes + i + BATCH_HEADER_BYTES;
            for (int32_t r = 0; r < h.record_count; r++) n += describe(&p, &h, text + n);
            if (h.record_count == 0)
                n += (size_t)snprintf(text + n, sizeof text - n, " %lld:()",
                                      (long long)batch_last_offset(&h));
        }
        at = range.next_offset;
        log_range_release(&range);
    }
    CHECK(n < sizeof text);
    return text;
}

static struct log_clean_rules rules;
static struct log_clean_stats figures;

/* Run a whole pass in steps of this many bytes. */
static int pass(int64_t step_bytes, size_t map_slots) {
    struct offset_map map;
    struct log_clean *c;
    CHECK(offset_map_init(&map, map_slots * KEYMAP_SLOT_BYTES, 0.9));
    int result = log_clean_begin(one, &map, &rules, &c);
    if (result == 0) {
        while ((result = log_clean_step(c, step_bytes)) == 1) {}
        log_clean_stats(c, &figures);
        log_clean_end(c);
    }
    offset_map_free(&map);
    return result;
}

static void begin_log(void) {
    played_remove(where, "t-0");
    config = scene_config(1 << 20, 100);
    config.cleanup_compact = true;
    config.cleanup_delete = false;
    rules = (struct log_clean_rules){.now_ms = NOW, .delete_retention_ms = DAY, .first_dirty = 0,
                                     .inflated_bytes_max = 1 << 20, .segment_bytes = 1 << 20};
    open_one(config);
}

/* Three sealed segments and the active one. */
static void make_three(void) {
    begin_log();
    put("ABC", "one", 10);
    put("D", "one", 20);
    seal();
    put("A", "two", 30);
    put("bE", "two", 40);
    seal();
    put("C", "three", 50);
    put("F", "three", 60);
    seal();
    put("A", "last", 70);
}

static const char *const CLEANED =
    "[0 9] 3:D=one 4:A=two 5:B=- 6:E=two 7:C=three 8:F=three 9:A=last";

/* ---- the survey before a pass ---- */

static void look(void) {
    struct log_clean_estimate l;
    make_three();
    int64_t first = one->view.segments[0]->bytes, second = one->view.segments[1]->bytes,
            third = one->view.segments[2]->bytes;
    log_clean_estimate(one, &rules, &l);
    CHECK(l.clean_bytes == 0 && l.dirty_bytes == first + second + third && l.first_dirty == 0);
    CHECK(l.cleanable_end == 9 && l.first_dirty_timestamp == 10);
    rules.first_dirty = 4;
    log_clean_estimate(one, &rules, &l);
    CHECK(l.clean_bytes == first && l.dirty_bytes == second + third && l.first_dirty == 4);
    CHECK(l.first_dirty_timestamp == 30);
    rules.first_dirty = 5; /* inside a segment, which is dirty as a whole */
    log_clean_estimate(one, &rules, &l);
    CHECK(l.clean_bytes == first && l.dirty_bytes == second + third && l.first_dirty == 5);
    rules.first_dirty = 100;
    log_clean_estimate(one, &rules, &l);
    CHECK(l.dirty_bytes == 0 && l.first_dirty == 9 && l.first_dirty_timestamp == -1);
    /* Recent segments wait, and so do all later ones; clean segments are surveyed again. */
    rules.first_dirty = 0;
    rules.min_compaction_lag_ms = NOW - 40;
    log_clean_estimate(one, &rules, &l);
    CHECK(l.cleanable_end == 7 && l.dirty_bytes == first + second);
    rules.min_compaction_lag_ms = NOW - 39;
    log_clean_estimate(one, &rules, &l);
    CHECK(l.cleanable_end == 4 && l.dirty_bytes == first);
    rules.first_dirty = 7;
    log_clean_estimate(one, &rules, &l);
    CHECK(l.cleanable_end == 7 && l.dirty_bytes == 0);
    rules.first_dirty = 0;
    rules.min_compaction_lag_ms = 0;
    CHECK(log_move_start(one, 4, NOW) == 0);
    log_clean_estimate(one, &rules, &l);
    CHECK(l.first_dirty == 4 && l.dirty_bytes == second + third);
    let_go();
}

static void clean(int64_t step_bytes) {
    make_three();
    int64_t before = one->view.size_bytes, bytes = before - one->view.segments[3]->bytes;
    CHECK(pass(step_bytes, 100) == 0 && strcmp(content(), CLEANED) == 0);
    CHECK(figures.end_offset == 9 && figures.segments_before == 3 && figures.segments_after == 1);
    CHECK(figures.bytes_mapped == bytes && figures.bytes_read == bytes);
    CHECK(figures.batches_read == 6 && figures.batches_kept == 5);
    CHECK(figures.records_read == 9 && figures.records_kept == 6 && figures.bytes_damaged == 0);
    struct segment *s = one->view.segments[0];
    CHECK(figures.bytes_written == atomic_load(&s->bytes) && atomic_load(&s->sealed));
    CHECK(one->view.size_bytes == before - bytes + figures.bytes_written);
    CHECK(played_size(dir, file_of(0, "log")) == figures.bytes_written);
    CHECK(played_size(dir, file_of(4, "log")) == -1 && played_size(dir, file_of(7, "log")) == -1);
    CHECK(played_size(dir, file_of(0, "timeindex")) > 0 && !s->removed);
    CHECK(log_flushed_offset(one) >= 9 && ends_are(0, 10, 10, 10));
    /* Clean segments are not mapped again; nothing changes. */
    rules.first_dirty = 9;
    CHECK(pass(step_bytes, 100) == 1 && strcmp(content(), CLEANED) == 0);
    put("X", "y", 80);
    seal();
    put("D", "z", 90);
    CHECK(pass(step_bytes, 100) == 0 && figures.bytes_mapped < figures.bytes_read);
    CHECK(figures.end_offset == 11 && figures.segments_before == 2 && figures.segments_after == 1);
    CHECK(figures.batches_kept == figures.batches_read - 1);
    leave();
}

static void clean_in_one(void) { clean(1 << 30); }
static void clean_in_steps(void) { clean(0); }

/* As many neighbours are merged as fit into one segment. */
static void join(void) {
    make_three();
    int64_t first = one->view.segments[0]->bytes, second = one->view.segments[1]->bytes,
            third = one->view.segments[2]->bytes;
    rules.segment_bytes = (int32_t)(first + second - 1);
    CHECK(pass(1 << 30, 100) == 0);
    CHECK(segments_begin(second + third < first + second ? "0 4 9" : "0 4 7 9"));
    leave();
    make_three();
    rules.segment_bytes = (int32_t)(first + second);
    CHECK(pass(1 << 30, 100) == 0 && segments_begin("0 7 9") && figures.segments_after == 2);
    leave();
    make_three();
    rules.segment_bytes = 1;
    CHECK(pass(1 << 30, 100) == 0 && segments_begin("0 4 7 9") && figures.segments_after == 3);
    leave();
}

/* A full map ends the pass before the batch that does not fit. */
static void fill_the_map(void) {
    make_three();
    CHECK(pass(1 << 30, 5) == 0 && figures.end_offset < 9 && figures.end_offset > 0);
    int64_t end = figures.end_offset;
    rules.first_dirty = end;
    CHECK(pass(1 << 30, 100) == 0 && figures.end_offset == 9);
    const char *left = strchr(content(), ' ');
    CHECK(strcmp(left, strchr(CLEANED, ' ')) == 0);
    leave();
    /* A single batch with more keys than that would stop every pass. */
    make_three();
    CHECK(pass(1 << 30, 3) == LOG_E_MEMORY);
    leave();
}

/* A tombstone stays for a while, counted from the first pass that sees it. */
static void bury(void) {
    make_three();
    CHECK(pass(1 << 30, 100) == 0);
    rules.first_dirty = 9;
    put("G", "x", 80);
    seal();
    put("H", "x", 90);
    rules.now_ms = NOW + DAY - 1;
    CHECK(pass(1 << 30, 100) == 0 && strstr(content(), "5:B=-") != NULL);
    rules.first_dirty = 10;
    put("I", "x", 80);
    seal();
    rules.now_ms = NOW + DAY;
    CHECK(pass(1 << 30, 100) == 0 && strstr(content(), "5:B=-") == NULL);
    CHECK(strstr(content(), "6:E=two") != NULL);
    leave();
}

static void refuse(void) {
    begin_log();
    CHECK(pass(100, 10) == 1);
    put("A", "x", 10);
    CHECK(pass(100, 10) == 1);
    log_abandon(one);
    CHECK(pass(100, 10) == LOG_E_DELETED);
    let_go();
    make_three();
    struct offset_map map;
    struct log_clean *c;
    CHECK(offset_map_init(&map, 100 * KEYMAP_SLOT_BYTES, 0.9));
    CHECK(log_clean_begin(one, &map, &rules, &c) == 0 && log_clean_step(c, 0) == 1);
    CHECK(log_truncate(one, 8, -1) == 0); /* the data it read no longer exists */
    int result;
    while ((result = log_clean_step(c, 0)) == 1) {}
    CHECK(result == LOG_E_WOULD_BLOCK);
    log_clean_end(c);
    offset_map_clear(&map);
    CHECK(log_clean_begin(one, &map, &rules, &c) == 0 && log_clean_step(c, 0) == 1);
    log_dir_fail(dir, EIO, "read");
    CHECK(log_clean_step(c, 0) == LOG_E_OFFLINE);
    log_clean_end(c);
    offset_map_free(&map);
    CHECK(pass(100, 10) == LOG_E_OFFLINE);
    let_go();
}

/* The last batch of a new segment stays, possibly empty, so that the next segment continues
 * there. */
static void keep_the_end(void) {
    begin_log();
    put("A", "one", 10);
    put("B", "one", 20);
    put("C", "one", 30);
    seal();
    put("AC", "two", 40);
    seal();
    put("D", "last", 50);
    rules.segment_bytes = 1;
    CHECK(pass(1 << 30, 100) == 0);
    CHECK(strcmp(content(), "[0 3 5] 1:B=one 2:() 3:A=two 4:C=two 5:D=last") == 0);
    CHECK(figures.batches_kept == 3 && figures.batches_read == 4);
    CHECK(atomic_load(&one->view.segments[0]->flush_done));
    CHECK(segment_largest_of(one->view.segments[0]).timestamp == 20);
    leave();
}

/* A segment without removable records is not rewritten. */
static void leave_alone(void) {
    struct stat before, after;
    begin_log();
    put("A", "one", 10);
    put("B", "one", 20);
    seal();
    put("C", "last", 50);
    CHECK(fstatat(dir->fd, file_of(0, "log"), &before, 0) == 0);
    struct segment *s = one->view.segments[0];
    played_note();
    CHECK(pass(1 << 30, 100) == 0 && figures.segments_after == 1 && figures.records_kept == 2);
    CHECK(fstatat(dir->fd, file_of(0, "log"), &after, 0) == 0 && after.st_ino == before.st_ino);
    CHECK(one->view.segments[0] == s && strstr(played.notes, "rename") == NULL);
    CHECK(played_size(dir, file_of(0, "log.cleaned")) == -1);
    leave();
}

/* Segments with an open transaction are not cleaned, nor any later ones. */
static void wait_for_transactions(void) {
    struct log_clean_estimate l;
    begin_log();
    put("A", "one", 10);
    seal();
    put("A", "two", 20);
    struct played_batch b = {.time = 25, .producer = 8, .attributes = BATCH_TRANSACTIONAL};
    CHECK(append(b) == 0);
    put("A", "three", 30);
    seal();
    put("A", "four", 40);
    seal();
    put("A", "last", 50);
    CHECK(ends_are(0, 2, 6, 6));
    log_clean_estimate(one, &rules, &l);
    CHECK(l.cleanable_end == 1 && l.dirty_bytes == one->view.segments[0]->bytes);
    CHECK(append_marker(7, 0, true, 1) == 0 && ends_are(0, 7, 7, 7));
    log_clean_estimate(one, &rules, &l);
    CHECK(l.cleanable_end == 5);
    int failed = 0;
    for (int after = 0; after < 60; after++) {
        struct offset_map map;
        struct log_clean *c = NULL;
        CHECK(offset_map_init(&map, 100 * KEYMAP_SLOT_BYTES, 0.9));
        short_of.starved_after = after;
        short_of.starved = 1;
        int result = log_clean_begin(one, &map, &rules, &c);
        /* A pass that succeeds has all the memory it needed. */
        CHECK((result == 0) == (short_of.starved == 1) && (result == 0 || result == LOG_E_MEMORY));
        short_of.starved = 0;
        failed += result != 0;
        if (result == 0) log_clean_end(c);
        offset_map_free(&map);
    }
    CHECK(failed >= 4);
    log_abandon(one);
    let_go();
}

static void end_with_the_log(void) {
    struct offset_map map;
    struct log_clean *c;
    make_three();
    CHECK(offset_map_init(&map, 100 * KEYMAP_SLOT_BYTES, 0.9));
    CHECK(log_clean_begin(one, &map, &rules, &c) == 0 && log_clean_step(c, 0) == 1);
    log_abandon(one);
    CHECK(log_clean_step(c, 0) == LOG_E_DELETED);
    log_clean_end(c);
    offset_map_free(&map);
    let_go();
}

/* Damage stays byte for byte, preceded by an empty batch if the batch before it is removed. */
static void keep_damage(void) {
    static uint8_t old[4096], fresh[4096];
    begin_log();
    put("A", "one", 10);
    put("B", "one", 20);
    put("C", "one", 30);
    put("D", "one", 40);
    seal();
    put("A", "two", 50);
    seal();
    put("E", "last", 60);
    CHECK(log_flush(one) == 0);
    ssize_t bytes = played_read(dir, file_of(0, "log"), old, sizeof old);
    int64_t len = bytes / 4;
    uint8_t wrong = old[len + 65] ^ 1;
    played_change(dir, file_of(0, "log"), len + 65, &wrong, 1);
    old[len + 65] = wrong;
    CHECK(pass(1 << 30, 100) == 0 && figures.bytes_damaged == len && segments_begin("0 4 5"));
    CHECK(figures.batches_read == 4 && figures.batches_kept == 4 - 1);
    CHECK(played_read(dir, file_of(0, "log"), fresh, sizeof fresh) == bytes - len + 61);
    struct batch_header h;
    CHECK(batch_parse(fresh, 61, &h) == 0 && h.record_count == 0 && h.base_offset == 0);
    CHECK(memcmp(fresh + 61, old + len, (size_t)(3 * len)) == 0);
    CHECK(atomic_load(&one->view.segments[0]->damaged));
    struct log_damage damage[4];
    CHECK(log_dir_fetch_damages(dir, damage, 4) == 1 && damage[0].kind == LOG_DAMAGE_KEPT);
    CHECK(damage[0].offset == 1 && damage[0].position == len && damage[0].bytes == len);
    leave();
}

/* ---- faults ---- */

/* A pass that lacked a resource is repeated with the same result. */
static void clean_short(void) {
    static const struct {
        enum played_call call;
        int error, times;
    } shorts[] = {{OPENAT, EMFILE, 3},    {PWRITE, ENOSPC, 1}, {PREAD, ENOMEM, 1},
                  {FTRUNCATE, ENOSPC, 1}, {RENAMEAT, ENOSPC, 1}};
    for (size_t i = 0; i < sizeof shorts / sizeof *shorts; i++)
        for (int skip = 0;; skip++) {
            make_three();
            played.faults[shorts[i].call] =
                (struct played_fault){shorts[i].error, skip, shorts[i].times, NULL, 0};
            int result, tries = 0;
            while ((result = pass(100, 100)) != 0 && !log_dir_offline(dir)) {
                CHECK(result == LOG_E_FULL || result == LOG_E_MEMORY);
                CHECK(tries++ < 6);
            }
            bool met = played.faults[shorts[i].call].times < shorts[i].times;
            played_heal();
            /* Partly replaced files are a separate case: see below. */
            if (!log_dir_offline(dir)) CHECK(strcmp(content(), CLEANED) == 0);
            bool offline = log_dir_offline(dir);
            CHECK(!offline || shorts[i].call == RENAMEAT);
            leave();
            if (!met || offline) break;
        }
}

static void clean_starved(void) {
    for (int after = 0;; after++) {
        make_three();
        short_of.starved_after = after;
        short_of.starved = 1;
        struct offset_map map;
        struct log_clean *c;
        int result = LOG_E_MEMORY;
        if (offset_map_init(&map, 100 * KEYMAP_SLOT_BYTES, 0.9)) {
            result = log_clean_begin(one, &map, &rules, &c);
            if (result == 0) {
                while ((result = log_clean_step(c, 100)) == 1) {}
                log_clean_end(c);
            }
            offset_map_free(&map);
        }
        bool met = short_of.starved == 0;
        short_of.starved = 0;
        CHECK(result == 0 || result == LOG_E_MEMORY);
        if (result != 0) CHECK(pass(100, 100) == 0);
        CHECK(strcmp(content(), CLEANED) == 0 && !log_dir_offline(dir));
        leave();
        if (!met) break;
        CHECK(after < 200);
    }
}

/* After any permanent failure, a start finds each key's newest value exactly once. */
static void clean_broken(void) {
    static const enum played_call calls[] = {OPENAT, PREAD,    PWRITE,   FTRUNCATE,
                                             FSYNC,  RENAMEAT, FDATASYNC, UNLINKAT};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int skip = 0;; skip++) {
            make_three();
            CHECK(log_flush(one) == 0);
            played.faults[calls[i]] = (struct played_fault){EIO, skip, 1000, NULL, 0};
            int result = pass(100, 100);
            bool met = played.faults[calls[i]].times < 1000;
            CHECK(met || result == 0);
            if (result != 0) CHECK(log_dir_offline(dir));
            played_heal();
            leave();
            log_dir_free(dir);
            dir = played_directory(where, pool);
            played_still(dir);
            struct log_checkpoint c = from_nothing();
            c.recovery_point = 9;
            CHECK(open_with(config, c) == 0 && ends_are(0, 0, 0, 10));
            const char *found = content();
            for (const char *want = strchr(CLEANED, ' '); want != NULL; want = strchr(want, ' ')) {
                char row[32];
                size_t len = strcspn(++want, " ");
                snprintf(row, sizeof row, " %.*s", (int)len, want);
                CHECK(strstr(found, row) != NULL);
            }
            leave();
            if (!met) break;
        }
}

int main(int argc, char **argv) {
    static const struct scene scenes[] = {
        {"look", look},       {"one", clean_in_one},  {"steps", clean_in_steps},
        {"join", join},       {"map", fill_the_map},  {"bury", bury},
        {"refuse", refuse},   {"short", clean_short}, {"starved", clean_starved},
        {"broken", clean_broken}, {"end", keep_the_end}, {"leave", leave_alone},
        {"wait", wait_for_transactions}, {"deleted", end_with_the_log},
        {"damage", keep_damage}};
    where = argv[1];
    return play_scenes(argc, argv, scenes, sizeof scenes / sizeof *scenes, true);
}
