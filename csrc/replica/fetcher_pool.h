/* Replica fetchers: native threads that replicate the leaders' logs to followers.
 *
 * Each thread has its own connection to each leader of its partitions, with one Fetch in flight,
 * in an incremental fetch session (KIP-227): each request acknowledges the data of the last
 * response. Fetchers do not run on reactors because validating and writing a large response
 * takes milliseconds.
 *
 * The control plane sets the leader, opens connections (fetchers_attach passes a connection
 * after TLS and SASL) and makes the decisions that a fetcher cannot make: where to truncate a
 * log, and where to restart it. A fetcher reports to it by notices, at most one pending per kind
 * and partition. A faulty leader therefore costs neither memory nor a busy loop: a partition
 * that cannot continue waits for a backoff time or for fetchers_resume.
 *
 * Threads: only the control plane calls these functions, except that any thread may read
 * positions. */
#ifndef PYLOG_FETCHER_POOL_H
#define PYLOG_FETCHER_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "log/log.h"
#include "os/roles.h"

enum { FETCHERS_THREADS_MAX = 64, FETCHERS_CLIENT_ID_BYTES_MAX = 64 };

struct fetchers;
struct fetch_partition;
struct throttle;

struct fetchers_config {
    int threads;
    int32_t replica_id;
    int32_t wait_ms_max, bytes_min; /* max.wait.ms and min.bytes of a Fetch */
    int32_t bytes_max, partition_bytes_max;
    int32_t backoff_ms_max; /* after errors: starts at BACKOFF_MS_FIRST, doubles up to this */
    int32_t answer_ms_max;  /* request timeout; then the connection counts as lost */
    /* Send an offset only after it is on disk, so that the acknowledgement survives a power
     * loss. */
    bool flush_first;
    /* Limits throttled replicas that are behind; must outlive the fetchers. NULL: no limit. */
    struct throttle *throttle;
};

/* Returns NULL with errno set on failure. Does not start threads. */
struct fetchers *fetchers_new(const struct fetchers_config *config);
/* Returns 0 or a negative errno. */
int fetchers_start(struct fetchers *fs);
/* Stops the threads: no data is appended after this call. */
void fetchers_stop(struct fetchers *fs);
/* After fetchers_stop. */
void fetchers_free(struct fetchers *fs);
/* Leaders get it with the next request; -1: not registered. */
void fetchers_set_broker_epoch(struct fetchers *fs, int64_t broker_epoch);
/* Returns the index of the thread that follows this partition. */
int fetchers_thread_of(const struct fetchers *fs, const uint8_t topic_id[16], int32_t index);

/* Starts to replicate from this leader to `log`. The caller gets one reference, and releases it
 * with fetchers_unfollow and fetch_partition_release. `token` identifies the partition in notices.
 * Returns NULL if out of memory. */
struct fetch_partition *fetchers_follow(struct fetchers *fs, struct log *log,
                                        const uint8_t topic_id[16], int32_t index,
                                        int32_t leader_id, int32_t leader_epoch, uint64_t token);
/* Call once. Data in flight may still be appended until the thread has processed the message. */
void fetchers_unfollow(struct fetchers *fs, struct fetch_partition *p);
/* After FETCHERS_DIVERGED, _OUT_OF_RANGE or _FAILED: continues from the log's end, which the
 * caller has moved. */
void fetchers_resume(struct fetchers *fs, struct fetch_partition *p);
void fetch_partition_release(struct fetch_partition *p);

/* Replication progress; any thread may read it. */
struct fetch_partition_stats {
    int64_t lag;        /* records behind the leader's high watermark; -1: no answer yet */
    int64_t answered_ns; /* CLOCK_MONOTONIC of the last successful response, 0: none */
    int state;           /* enum fetch_partition_state */
};
enum fetch_partition_state {
    FETCH_PARTITION_FETCHING,
    FETCH_PARTITION_BACKING_OFF, /* until the backoff time ends */
    FETCH_PARTITION_WAITING,     /* for fetchers_resume */
    FETCH_PARTITION_LEFT
};
void fetch_partition_read_stats(const struct fetch_partition *p, struct fetch_partition_stats *out);

struct transport;
/* Gives the thread a copy of *to as its connection to the leader, which it now owns, and closes
 * the previous connection. `version` of Fetch: RESPONSE_VERSION_MIN to _MAX. `serial` identifies
 * the connection in FETCHERS_LOST. Returns false if out of memory, and closes the connection. */
bool fetchers_attach(struct fetchers *fs, int thread, int32_t leader_id,
                     const struct transport *to, int16_t version, uint64_t serial);
/* Closes the connection without a notice. Returns false if out of memory: call again. */
bool fetchers_detach(struct fetchers *fs, int thread, int32_t leader_id);

/* ---- notices ---- */
enum fetchers_notice_kind {
    FETCHERS_REFUSED = 1,  /* `code` is a Kafka error; retries by itself after a backoff */
    FETCHERS_DIVERGED,     /* leader's `epoch` ends at `end_offset`; waits for fetchers_resume */
    FETCHERS_OUT_OF_RANGE, /* the leader does not have the next offset; waits for fetchers_resume */
    FETCHERS_FAILED,       /* `code` is a log_error of the local log; waits for fetchers_resume */
    FETCHERS_LOST          /* connection `serial` is lost; `code`: errno, or EPROTO */
};
struct fetchers_notice {
    uint32_t kind; /* enum fetchers_notice_kind */
    int32_t code, epoch;
    /* The current leader according to the sender; -1: not included. */
    int32_t leader_id, leader_epoch;
    int64_t end_offset;
    uint64_t token; /* from fetchers_follow, or the serial of a connection */
};
/* A descriptor that is readable when notices are available. */
int fetchers_fd(const struct fetchers *fs);
/* Returns up to `max` notices. After 0, the descriptor becomes readable again with the next
 * notice. */
uint32_t fetchers_take(struct fetchers *fs, struct fetchers_notice *out, uint32_t max);

struct fetchers_stats {
    uint64_t requests, answers, bytes_in, batches_bytes, refusals, connections_lost;
};
void fetchers_read_stats(const struct fetchers *fs, struct fetchers_stats *out);

#endif
