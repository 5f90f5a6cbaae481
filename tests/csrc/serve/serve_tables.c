/* Lookup tables of serve: topics with grants, nodes, misses; and responses that grow, copies
 * shared by readers. Usage: serve_tables SCENE. Exits with 0, or with 1 and a line on stderr. */
#include <errno.h>

#include "segment/segment.h"
#include "serve/shared_reads.h"
#include "os/prometheus_text.h"
#include "tables/grants.h"
#include "serve/grant_requests.h"
#include "tables/broker_endpoints.h"
#include "serve/response.h"
#include "watched.h"

/* ---- ranges of a simulated file ---- */

enum { FILE_BYTES = 1 << 18 };

static uint8_t file[FILE_BYTES];
static struct {
    size_t read_bytes_max; /* limit of one read */
    ssize_t fails_at;      /* reads from this position on return 0, -1: never */
    bool cold;
    int reads, released, segments;
} played;

ssize_t __wrap_log_range_read(const struct log_range *range, void *to, size_t len, int64_t at);
ssize_t __wrap_log_range_read(const struct log_range *range, void *to, size_t len, int64_t at) {
    (void)range;
    played.reads++;
    if (played.fails_at >= 0 && at >= played.fails_at) return played.fails_at % 2 == 0 ? 0 : -EIO;
    size_t n = len < played.read_bytes_max ? len : played.read_bytes_max;
    memcpy(to, file + at, n);
    return (ssize_t)n;
}
void __wrap_log_range_release(struct log_range *range);
void __wrap_log_range_release(struct log_range *range) { played.released += range->length > 0; }
bool __wrap_log_range_read_cached(const struct log_range *range, uint8_t *to);
bool __wrap_log_range_read_cached(const struct log_range *range, uint8_t *to) {
    played.reads++;
    if (played.cold) return false;
    memcpy(to, file + range->position, (size_t)range->length);
    return true;
}
void __wrap_segment_retain(struct segment *s);
void __wrap_segment_retain(struct segment *s) {
    (void)s;
    played.segments++;
}
void __wrap_segment_release(struct segment *s);
void __wrap_segment_release(struct segment *s) {
    (void)s;
    played.segments--;
}

static void open_file(void) {
    for (size_t i = 0; i < FILE_BYTES; i++) file[i] = (uint8_t)(i * 131 >> 3);
    memset(&played, 0, sizeof played);
    played.read_bytes_max = FILE_BYTES;
    played.fails_at = -1;
}

static struct segment *segments(int i) { return (struct segment *)(uintptr_t)(0x1000 * (i + 1)); }

static struct log_range range_at(int64_t position, int32_t length) {
    return (struct log_range){.segment = segments(0), .position = position, .length = length};
}

/* ---- responses ---- */

static void an_answer_grows_with_what_is_put_into_it(void) {
    struct reply r;
    reply_init(&r);
    reply_i32(&r, 0);
    reply_i8(&r, -2);
    reply_i16(&r, -3);
    reply_i64(&r, -4);
    reply_uvarint(&r, 300);
    for (int i = 0; i < 1000; i++) reply_bytes(&r, file + i, 7);
    reply_finish(&r);
    CHECK(!r.failed && r.len == 17 + 7000 && r.cap >= r.len);
    CHECK(get_u32(r.bytes) == r.len - 4 && (int8_t)r.bytes[4] == -2);
    CHECK(get_i16(r.bytes + 5) == -3 && get_i64(r.bytes + 7) == -4);
    for (int i = 0; i < 1000; i++) CHECK(memcmp(r.bytes + 17 + 7 * i, file + i, 7) == 0);
    reply_clear(&r);
    CHECK(r.bytes == NULL && r.len == 0 && !r.failed);
    /* Exactly this many bytes; and too few for the size field. */
    reply_bytes(&r, file, 100000);
    CHECK(r.cap == 100000 && r.len == 100000);
    reply_clear(&r);
    reply_bytes(&r, file, 3);
    reply_finish(&r);
    CHECK(r.failed);
    reply_clear(&r);
    reply_bytes(&r, file, 4);
    reply_finish(&r);
    CHECK(!r.failed && get_u32(r.bytes) == 0);
    /* More than the largest frame fails without an attempt; later calls do nothing. */
    CHECK(reply_reserve(&r, INT32_MAX) == NULL && r.failed && reply_reserve(&r, 1) == NULL);
    reply_clear(&r);
    blocks_left = 0;
    reply_i32(&r, 1);
    blocks_left = -1;
    CHECK(r.failed && r.len == 0 && reply_reserve(&r, 1) == NULL);
    reply_clear(&r);
}

static void short_ranges_are_read_and_long_ones_are_sent(void) {
    struct reply r;
    struct log_range range = range_at(5, REPLY_COPY_BYTES_MAX);
    reply_init(&r);
    reply_i32(&r, 0);
    played.read_bytes_max = 1000;
    reply_range(&r, &range);
    CHECK(range.length == 0 && range.segment == NULL && played.released == 1);
    CHECK(r.part_count == 0 && r.len == 4 + REPLY_COPY_BYTES_MAX && r.file_bytes == 0);
    CHECK(memcmp(r.bytes + 4, file + 5, REPLY_COPY_BYTES_MAX) == 0);
    range = range_at(7, REPLY_COPY_BYTES_MAX + 1);
    reply_range(&r, &range);
    CHECK(range.length == 0 && range.segment == NULL && played.released == 1);
    CHECK(r.part_count == 1 && r.parts[0].bytes_end == r.len && r.parts[0].copy == NULL);
    CHECK(r.parts[0].range.position == 7 && r.file_bytes == REPLY_COPY_BYTES_MAX + 1);
    range = range_at(0, 0);
    const int reads = played.reads;
    reply_range(&r, &range);
    CHECK(r.part_count == 1 && played.reads == reads);
    reply_finish(&r);
    CHECK(!r.failed && get_u32(r.bytes) == r.len + r.file_bytes - 4);
    reply_clear(&r);
    CHECK(played.released == 2);
    /* The total of copied bytes is limited; further ranges are sent from the file. */
    played.read_bytes_max = FILE_BYTES;
    for (int i = 0; i < REPLY_COPIED_BYTES_MAX / REPLY_COPY_BYTES_MAX; i++) {
        range = range_at(0, REPLY_COPY_BYTES_MAX);
        reply_range(&r, &range);
    }
    CHECK(r.part_count == 0 && r.copied_bytes == REPLY_COPIED_BYTES_MAX);
    range = range_at(0, 1);
    reply_range(&r, &range);
    CHECK(r.part_count == 1 && r.file_bytes == 1);
    reply_clear(&r);
}

static void a_range_that_cannot_be_read_fails_its_answer(void) {
    struct reply r;
    reply_init(&r);
    for (int i = 0; i < 2; i++) {
        struct log_range range = range_at(0, 3000);
        played.read_bytes_max = 1000;
        played.fails_at = 2000 - i;
        reply_range(&r, &range);
        CHECK(r.failed && range.length == 0 && played.released == 2 * i + 1);
        /* It accepts nothing more, but releases what it gets. */
        range = range_at(0, REPLY_COPY_BYTES_MAX + 1);
        const int reads = played.reads;
        reply_range(&r, &range);
        CHECK(r.part_count == 0 && played.released == 2 * i + 2 && played.reads == reads);
        reply_clear(&r);
    }
    struct log_range range = range_at(0, REPLY_COPY_BYTES_MAX + 1);
    blocks_left = 0;
    reply_range(&r, &range);
    blocks_left = -1;
    CHECK(r.failed && r.part_count == 0 && played.released == 5);
    reply_clear(&r);
}

static void an_answer_has_a_limited_number_of_parts(void) {
    struct reply r;
    reply_init(&r);
    for (int i = 0; i <= REPLY_PARTS_MAX; i++) {
        CHECK(!r.failed && r.part_count == (uint32_t)i);
        struct log_range range = range_at(i, REPLY_COPY_BYTES_MAX + 1);
        reply_range(&r, &range);
    }
    CHECK(r.failed && r.part_count == REPLY_PARTS_MAX && played.released == 1);
    for (int i = 0; i < REPLY_PARTS_MAX; i++) CHECK(r.parts[i].range.position == i);
    reply_clear(&r);
    CHECK(played.released == REPLY_PARTS_MAX + 1);
}

static struct copy *copy_of(int32_t length) {
    struct copy *copy = malloc(sizeof *copy + (size_t)length);
    copy->references = 1;
    copy->length = length;
    memcpy(copy->bytes, file, (size_t)length);
    return copy;
}

static void copies_are_part_of_an_answer_or_of_its_bytes(void) {
    struct reply r;
    struct copy *copy = copy_of(5000);
    struct log_range range = range_at(0, REPLY_SHARED_BYTES_MIN - 1);
    reply_init(&r);
    copy_retain(copy);
    reply_copy(&r, &range, copy);
    CHECK(r.part_count == 0 && r.len == REPLY_SHARED_BYTES_MIN - 1 && copy->references == 1);
    CHECK(memcmp(r.bytes, file, r.len) == 0 && range.length == 0 && played.released == 1);
    range = range_at(0, REPLY_SHARED_BYTES_MIN);
    copy_retain(copy);
    reply_copy(&r, &range, copy);
    CHECK(r.part_count == 1 && r.parts[0].copy == copy && copy->references == 2);
    CHECK(r.parts[0].range.length == REPLY_SHARED_BYTES_MIN && range.length == 0);
    CHECK(r.copied_bytes == 2 * REPLY_SHARED_BYTES_MIN - 1 && played.released == 2);
    reply_clear(&r);
    CHECK(copy->references == 1);
    /* Beyond the limit of copied bytes the file is sent. */
    for (int i = 0; i < 2; i++) {
        r.copied_bytes = REPLY_COPIED_BYTES_MAX - 2000 + (uint32_t)i;
        range = range_at(0, 2000);
        copy_retain(copy);
        reply_copy(&r, &range, copy);
        CHECK(r.part_count == 1 && (r.parts[0].copy == copy) == (i == 0));
        CHECK(r.copied_bytes == REPLY_COPIED_BYTES_MAX - (uint32_t)(i == 0 ? 0 : 1999));
        CHECK(copy->references == (i == 0 ? 2u : 1u));
        reply_clear(&r);
    }
    blocks_left = 0;
    range = range_at(0, 2000);
    copy_retain(copy);
    reply_copy(&r, &range, copy);
    blocks_left = -1;
    CHECK(r.failed && copy->references == 1 && r.part_count == 0);
    range = range_at(0, 2000);
    copy_retain(copy);
    reply_copy(&r, &range, copy);
    CHECK(copy->references == 1 && r.part_count == 0);
    reply_clear(&r);
    copy_release(copy);
}

/* ---- copies ---- */

static struct copies copies;

static struct copy *take(struct log_range range, bool many) {
    return copies_take(&copies, &range, many);
}

static void check_copy(struct copy *copy, int64_t position, int32_t length) {
    CHECK(copy != NULL && copy->length == length);
    CHECK(memcmp(copy->bytes, file + position, (size_t)length) == 0);
    copy_release(copy);
}

static void what_a_second_reader_wants_is_read_once(void) {
    struct log_range other;
    copies_init(&copies);
    CHECK(take(range_at(10, 100), false) == NULL && played.reads == 0 && played.segments == 1);
    check_copy(take(range_at(10, 100), false), 10, 100);
    CHECK(played.reads == 1 && copies.bytes == 100);
    /* The same for readers of the same or less; a reader of more causes a new read. */
    check_copy(take(range_at(10, 100), false), 10, 100);
    check_copy(take(range_at(10, 50), true), 10, 100);
    CHECK(played.reads == 1);
    check_copy(take(range_at(10, 101), false), 10, 101);
    CHECK(played.reads == 2 && copies.bytes == 101 && played.segments == 1);
    /* In another segment, or after a truncation, it is a different range. */
    other = range_at(10, 100);
    other.truncations = 1;
    CHECK(copies_take(&copies, &other, false) == NULL && copies.bytes == 0);
    check_copy(copies_take(&copies, &other, false), 10, 100);
    other.segment = segments(1);
    CHECK(copies_take(&copies, &other, false) == NULL);
    /* With several known readers, the first read makes a copy. */
    check_copy(take(range_at(500, 10), true), 500, 10);
    copies_clear(&copies);
    CHECK(copies.bytes == 0 && played.segments == 0);
}

static void copies_that_cannot_be_had(void) {
    copies_init(&copies);
    CHECK(take(range_at(0, COPY_BYTES_MAX + 1), true) == NULL && played.segments == 0);
    check_copy(take(range_at(0, COPY_BYTES_MAX), true), 0, COPY_BYTES_MAX);
    copies_clear(&copies);
    played.cold = true;
    CHECK(take(range_at(0, 10), true) == NULL && played.reads == 2 && copies.bytes == 0);
    played.cold = false;
    blocks_left = 0;
    CHECK(take(range_at(0, 10), true) == NULL && played.reads == 2);
    blocks_left = -1;
    check_copy(take(range_at(0, 10), false), 0, 10);
    copies_clear(&copies);
}

static void copies_have_a_limit_together_and_are_forgotten(void) {
    enum { MANY = 2 * COPIES_MAX };
    int held = 0;
    copies_init(&copies);
    for (int i = 0; i < MANY; i++) {
        struct copy *copy = take(range_at(i, COPY_BYTES_MAX), true);
        held += copy != NULL;
        if (copy != NULL) check_copy(copy, i, COPY_BYTES_MAX);
        CHECK(copies.bytes <= COPIES_BYTES_MAX);
    }
    CHECK(copies.bytes == COPIES_BYTES_MAX && held > COPIES_BYTES_MAX / COPY_BYTES_MAX);
    copies_tick(&copies); /* all were used since the previous tick */
    CHECK(copies.bytes == COPIES_BYTES_MAX);
    copies_tick(&copies);
    CHECK(copies.bytes == 0 && played.segments == 0);
    check_copy(take(range_at(0, 10), true), 0, 10);
    check_copy(take(range_at(1, 20), true), 1, 20);
    copies_tick(&copies);
    CHECK(copies.bytes == 30 && played.segments == 2);
    check_copy(take(range_at(1, 20), false), 1, 20);
    copies_tick(&copies);
    CHECK(copies.bytes == 20 && played.segments == 1);
    copies_tick(&copies);
    CHECK(copies.bytes == 0 && played.segments == 0);
    copies_clear(&copies);
}

static void copies_scene(void) {
    what_a_second_reader_wants_is_read_once();
    open_file();
    copies_that_cannot_be_had();
    open_file();
    copies_have_a_limit_together_and_are_forgotten();
}

static void replies_scene(void) {
    an_answer_grows_with_what_is_put_into_it();
    open_file();
    short_ranges_are_read_and_long_ones_are_sent();
    open_file();
    a_range_that_cannot_be_read_fails_its_answer();
    open_file();
    an_answer_has_a_limited_number_of_parts();
    open_file();
    copies_are_part_of_an_answer_or_of_its_bytes();
}

/* ---- misses ---- */

static void misses_scene(void) {
    struct grant_requests misses = {0};
    struct serve_request r = {.missing_count = 0};
    const struct topic_key ab = {(const uint8_t *)"ab", 2, false},
                           a = {(const uint8_t *)"a", 1, false},
                           ac = {(const uint8_t *)"ac", 2, false};
    uint8_t ids[4][16] = {{1}, {2}, {3}, {[15] = 1}};
    uint32_t at = 0;
    CHECK(grant_requests_add(&misses, &r, ab, GRANT_READ) &&
          grant_requests_add(&misses, &r, a, GRANT_READ));
    for (int i = 0; i < 3; i++)
        CHECK(grant_requests_add(&misses, &r, (struct topic_key){ids[i], 16, true}, GRANT_READ));
    CHECK(r.missing_count == 5 && r.missing[0].name_len == 2 && r.missing[4].name_len == -1);
    CHECK(r.missing[4].partition == -1 && memcmp(r.missing[4].id, ids[2], 16) == 0);
    for (int i = 0; i < 5; i++) r.missing[i].error = (int16_t)(10 + i);
    r.missing[3].error = -1;
    /* From any starting point, it finds the requested name. */
    CHECK(grant_requests_result(&r, ab, &at) == 10 && at == 0);
    CHECK(grant_requests_result(&r, a, &at) == 11 && at == 1);
    CHECK(grant_requests_result(&r, (struct topic_key){ids[2], 16, true}, &at) == 14 && at == 4);
    CHECK(grant_requests_result(&r, ab, &at) == 10 && at == 0);
    CHECK(grant_requests_result(&r, (struct topic_key){ids[1], 16, true}, &at) == 0 && at == 3);
    CHECK(grant_requests_result(&r, ac, &at) == 0 && at == 3);
    CHECK(grant_requests_result(&r, (struct topic_key){ids[3], 16, true}, &at) == 0);
    for (int i = 0; i < GRANT_REQUEST_ROUNDS_MAX; i++) {
        r.missing_count = 1;
        CHECK(grant_requests_retry(&misses, &r) && r.missing_count == 0);
    }
    r.missing_count = 1;
    CHECK(!grant_requests_retry(&misses, &r) && r.missing_count == 1);
    grant_requests_clear(&misses, &r);
    CHECK(r.missing == NULL && r.missing_count == 0 && misses.rounds == 0);
    for (int i = 0; i < SERVE_MISSING_MAX; i++)
        CHECK(grant_requests_add(&misses, &r, a, GRANT_READ));
    CHECK(!grant_requests_add(&misses, &r, a, GRANT_READ) && r.missing_count == SERVE_MISSING_MAX);
    grant_requests_clear(&misses, &r);
    blocks_left = 0;
    CHECK(!grant_requests_add(&misses, &r, a, GRANT_READ) && r.missing_count == 0);
    blocks_left = -1;
    grant_requests_clear(&misses, &r);
}

/* ---- nodes ---- */

static void nodes_scene(void) {
    char host[] = "host", rack[] = "rack";
    const struct node of[] = {{0, 1, 11, host, rack}, {0, 2, 12, "b", NULL}, {1, 1, 13, "", ""}};
    struct nodes *nodes = nodes_new(of, 3);
    host[0] = rack[0] = 'x'; /* it has its own copy */
    const struct node *found = nodes_find(nodes, 0, 1);
    CHECK(found->port == 11 && strcmp(found->host, "host") == 0);
    CHECK(strcmp(found->rack, "rack") == 0);
    found = nodes_find(nodes, 0, 2);
    CHECK(found->port == 12 && strcmp(found->host, "b") == 0 && found->rack == NULL);
    found = nodes_find(nodes, 1, 1);
    CHECK(found->port == 13 && strcmp(found->host, "") == 0 && strcmp(found->rack, "") == 0);
    CHECK(nodes_find(nodes, 1, 2) == NULL && nodes_find(nodes, 0, 3) == NULL);
    nodes_retain(nodes);
    nodes_release(nodes);
    CHECK(nodes_find(nodes, 0, 1)->port == 11);
    nodes_release(nodes);
    blocks_left = 0;
    CHECK(nodes_new(of, 3) == NULL);
    blocks_left = -1;
    struct node *many = calloc(NODES_MAX + 1, sizeof *many);
    for (int i = 0; i <= NODES_MAX; i++) many[i].host = "h";
    CHECK(nodes_new(many, NODES_MAX + 1) == NULL);
    nodes = nodes_new(many, NODES_MAX);
    CHECK(nodes != NULL);
    nodes_release(nodes);
    free(many);
}

/* ---- metrics text ---- */

static void expositions_scene(void) {
    enum { MANY = 2000 };
    struct exposition e = {0};
    static char labels[64];
    memset(labels, 'l', sizeof labels);
    const size_t ends[] = {sizeof labels};
    const int64_t value = INT64_MIN;
    const struct exposition_rows rows = {labels, ends, 1};
    exposition_put(&e, "", 0);
    CHECK(e.len == 0 && !e.failed);
    for (int i = 0; i < MANY; i++) {
        const size_t before = e.len;
        exposition_integers(&e, "name", 4, &rows, &value, 1);
        CHECK(e.len == before + 4 + 1 + sizeof labels + 2 + 20 + 1);
        CHECK(memcmp(e.bytes + before, "name{llll", 9) == 0);
        CHECK(memcmp(e.bytes + e.len - 23, "} -9223372036854775808\n", 23) == 0);
    }
    exposition_clear(&e);
    CHECK(e.bytes == NULL && e.len == 0 && e.cap == 0);
    /* A piece longer than all before, and one that fits exactly. */
    char *piece = calloc(1, 300000);
    exposition_put(&e, piece, 300000);
    CHECK(e.len == 300000 && e.cap >= e.len);
    exposition_put(&e, piece, e.cap - e.len);
    const size_t full = e.len;
    CHECK(full == e.cap);
    blocks_left = 0;
    exposition_put(&e, "x", 1);
    exposition_thousandths(&e, "n", 1, &rows, &(const int64_t){5}, 1);
    blocks_left = -1;
    CHECK(e.failed && e.len == full);
    exposition_integers(&e, "n", 1, &rows, &value, 1);
    CHECK(e.failed && e.len == full);
    exposition_clear(&e);
    free(piece);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"replies", replies_scene},
                  {"copies", copies_scene},
                  {"misses", misses_scene},
                  {"nodes", nodes_scene},
                  {"expositions", expositions_scene}};
    CHECK(argc == 2);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(scenes[i].name, argv[1]) == 0) {
            open_file();
            scenes[i].play();
            check_given_back();
            puts("ok");
        }
    return 0;
}
