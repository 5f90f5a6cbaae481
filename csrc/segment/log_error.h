/* Errors of logs, their segments and directories. */
#ifndef PYLOG_LOG_ERROR_H
#define PYLOG_LOG_ERROR_H

#include <stdbool.h>
#include <stdint.h>

enum log_error {                  /* negative results; log_error_code maps them to Kafka's codes */
                 LOG_E_IO = -101, /* 56 KAFKA_STORAGE_ERROR; errno in log_dir_failure */
                 LOG_E_OFFLINE = -102,  /* 56: the log directory failed earlier */
                 LOG_E_RANGE = -103,    /* 1 OFFSET_OUT_OF_RANGE */
                 LOG_E_SEQUENCE = -104, /* 45 OUT_OF_ORDER_SEQUENCE_NUMBER */
                 LOG_E_EPOCH = -105,    /* 47 INVALID_PRODUCER_EPOCH */
                 LOG_E_DUPLICATE =
                     -106, /* 46; duplicates older than the remembered batches, as in Kafka */
                 LOG_E_NOT_LEADER = -107, /* 6 */
                 LOG_E_DELETED = -108,    /* 3 UNKNOWN_TOPIC_OR_PARTITION */
                 LOG_E_FULL =
                     -109, /* 56: no space left; nothing was appended, the log stays readable */
                 LOG_E_MEMORY = -110,
                 LOG_E_CORRUPT = -111,   /* 2: a batch on disk does not parse */
                 LOG_E_TXN_STATE = -112, /* 48 */
                 LOG_E_WOULD_BLOCK =
                     -113, /* only from log_read with nowait: a required page is not cached */
                 LOG_E_NOT_REPLICA = -114 /* 75: the leader has no such replica */
};
int16_t log_error_code(int error);

static inline bool log_is_error(int result) { /* a log_error, not -errno */
    return result <= LOG_E_IO && result >= LOG_E_NOT_REPLICA;
}

/* -errno or a log_error: out of space, memory or descriptors */
bool log_error_is_shortage(int result);

#endif
