/* API keys that native code uses, and the supported versions of Produce and Fetch, which it
 * serves itself. pylog/protocol/api.py has the advertised versions: Reactors refuses to start
 * with a version outside these ranges, and tests/native/server/test_api_keys.py compares both
 * files. */
#ifndef PYLOG_API_KEYS_H
#define PYLOG_API_KEYS_H

enum {
    API_PRODUCE = 0,
    API_FETCH = 1,
    API_JOIN_GROUP = 11,
    API_SYNC_GROUP = 14,
    API_SASL_HANDSHAKE = 17,
    API_VERSIONS = 18,
    API_SASL_AUTHENTICATE = 36,
    API_CONSUMER_GROUP_HEARTBEAT = 68
};

/* Later versions are explained where the code depends on them. */
enum {
    PRODUCE_VERSION_MIN = 3, /* record batches of magic 2 (KIP-98) */
    PRODUCE_VERSION_MAX = 13,
    FETCH_VERSION_MIN = 4, /* isolation level (KIP-98) */
    FETCH_VERSION_MAX = 18
};

#endif
