/* Any bytes as a leader's response to a follower: parsing it whole and in pieces gives the same
 * result, every step consumes only available bytes, and a large count cannot continue without
 * bytes. */
#include <stdlib.h>
#include <string.h>

#include "format/hash.h"
#include "replica/fetch_response.h"

static void require(int holds) {
    if (!holds) { abort(); }
}

struct outcome {
    uint32_t hash;
    int last;
    size_t used;
};

static void note(struct outcome *o, const void *bytes, size_t len) {
    o->hash = hash_bytes(o->hash, bytes, len);
}

static void note_step(struct outcome *o, const struct fetch_response *a, int step) {
    note(o, &step, sizeof step);
    if (step == RESPONSE_OPENED) {
        note(o, &a->correlation_id, sizeof a->correlation_id);
        note(o, &a->session_id, sizeof a->session_id);
        note(o, &a->error_code, sizeof a->error_code);
    } else if (step == RESPONSE_PARTITION || step == RESPONSE_PARTITION_END) {
        const struct fetch_response_partition *p = &a->partition;
        note(o, a->topic_id, sizeof a->topic_id);
        note(o, &p->index, sizeof p->index);
        note(o, &p->high_watermark, sizeof p->high_watermark);
        note(o, &p->records_bytes, sizeof p->records_bytes);
        note(o, &p->diverging_end, sizeof p->diverging_end);
        note(o, &p->diverging_epoch, sizeof p->diverging_epoch);
        note(o, &p->leader_epoch, sizeof p->leader_epoch);
    }
}

/* In pieces of at most `piece` new bytes; the caller passes unconsumed bytes again. */
static struct outcome take(const uint8_t *frame, size_t len, size_t piece) {
    struct fetch_response a;
    struct outcome o = {HASH_SEED, RESPONSE_MORE, 0};
    size_t shown = 0, idle = 0;
    fetch_response_begin(&a, len);
    while (o.last != RESPONSE_END && o.last != RESPONSE_BAD) {
        size_t used, have = shown - o.used;
        /* A copy that ends where the bytes end, so that the sanitizer detects reads beyond it. */
        uint8_t *copy = malloc(have + 1);
        memcpy(copy, frame + o.used, have);
        o.last = fetch_response_step(&a, copy, have, &used);
        free(copy);
        require(used <= have);
        o.used += used;
        if (o.last == RESPONSE_RECORDS) {
            size_t left = shown - o.used;
            size_t took = a.records_left < left ? (size_t)a.records_left : left;
            require(took > 0);
            fetch_response_consume(&a, took);
            o.used += took;
        } else if (o.last == RESPONSE_MORE) {
            if (shown == len) break; /* The frame is complete: no more bytes follow. */
            shown = len - shown < piece ? len : shown + piece;
        } else {
            note_step(&o, &a, o.last);
        }
        require(a.left == len - o.used);
        idle = used > 0 || o.last == RESPONSE_MORE || o.last == RESPONSE_RECORDS ? 0 : idle + 1;
        require(idle < 4);
    }
    require(o.last == RESPONSE_BAD || o.last == RESPONSE_END);
    require(o.last != RESPONSE_END || o.used == len);
    return o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) { return 0; }
    struct outcome whole = take(data + 1, size - 1, size);
    struct outcome pieces = take(data + 1, size - 1, 1 + data[0] % 64);
    require(whole.last == pieces.last && whole.hash == pieces.hash);
    return 0;
}
