/* The api keys that native code knows by name, and the versions of the two requests that it serves
 * itself. What is advertised stands in pylog/protocol/api.py: Reactors refuses to start with a
 * version that is not among these, and tests/native/test_api_keys.py compares the two. */
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

/* What a version brought stands where it makes a difference. */
enum {
    PRODUCE_VERSION_MIN = 3, /* record batches of magic 2 (KIP-98) */
    PRODUCE_VERSION_MAX = 13,
    FETCH_VERSION_MIN = 4, /* isolation level (KIP-98) */
    FETCH_VERSION_MAX = 18
};

#endif
