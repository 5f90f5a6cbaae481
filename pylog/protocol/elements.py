"""Which arrays of a request and its response can be long, and which fields identify their elements.

Owns: the table of elements.
Invariants: every array that may have thousands of elements is in the table; a request can be split
  into chunks, whose responses together equal the response to the whole request; a repeated element
  is dropped or rejected, and never gets its own response.
Source: KafkaApis of Kafka 4.4, for repeated elements.

A path lists the arrays from the message down, each with a colon and the fields that identify its
elements. Of several paths, the path whose first array exists in the version applies.
"""

import sys
from collections import namedtuple

from pylog._native.protocol.request_slices import KEEP, ONCE, TWICE
from pylog.protocol import api, tables

SLICE_ELEMENTS = 256  # Elements per handler call,
SLICE_ELEMENTS_CHANGES = 64  # if each may cause a record,
SLICE_ELEMENTS_COSTLY = 4  # if each returns a page of text.
# A request with fewer bytes than this per element of a chunk is short: it is not split.
BYTES_PER_ELEMENT = 16
# Maximum of elements in a request that is not split, or in other arrays of a chunk. Above Kafka's
# own limits.
WHOLE_MAX = 100_000
FEW_MAX = 10_000  # For elements that cause work, and that no client needs in large numbers.
EVERY = 1 << 20  # Of partitions, if the handler processes a few at a time.

Elements = namedtuple(
    "Elements", ("request_paths", "response_paths", "repeats", "slice_elements",
                 "whole_max", "short_bytes_max"))
Elements.__doc__ = """request_paths, response_paths: paths as [(array, key fields)]. repeats: KEEP
if the last counts; ONCE if Kafka answers each or has a set; TWICE if Kafka rejects them. A body
above
short_bytes_max is parsed in parts."""


def _paths(text: str) -> tuple:
    return tuple([
        tuple([(name, tuple(keys.split(",")) if keys else ())
               for name, _, keys in [level.partition(":") for level in path.split()]])
        for path in text.split("|") if path])


def _row(requested: str, responded: str, repeats=ONCE, slice_elements=SLICE_ELEMENTS,
         whole_max=WHOLE_MAX) -> Elements:
    return Elements(_paths(requested), _paths(responded), repeats, slice_elements, whole_max,
                    slice_elements * BYTES_PER_ELEMENT if requested else sys.maxsize)


ELEMENTS: dict[int, Elements] = {
    api.LIST_OFFSETS: _row("topics:name partitions:partition_index", "topics:name partitions",
                           TWICE),
    api.METADATA: _row("topics:topic_id,name", "topics:name,topic_id partitions"),
    api.OFFSET_COMMIT: _row("topics:name,topic_id partitions:partition_index",
                            "topics:name,topic_id partitions", KEEP),
    api.OFFSET_FETCH: _row(
        "groups:group_id topics:name,topic_id partition_indexes|topics:name partition_indexes",
        "groups:group_id topics:name,topic_id partitions|topics:name partitions"),
    api.FIND_COORDINATOR: _row("coordinator_keys", "coordinators"),
    api.DESCRIBE_GROUPS: _row("groups", "groups:group_id members"),
    api.CONSUMER_GROUP_DESCRIBE: _row("group_ids", "groups:group_id members"),
    api.SHARE_GROUP_DESCRIBE: _row("group_ids", "groups:group_id members"),
    api.STREAMS_GROUP_DESCRIBE: _row("group_ids", "groups:group_id members"),
    api.DESCRIBE_SHARE_GROUP_OFFSETS: _row(
        "groups:group_id topics:topic_name partitions",
        "groups:group_id topics:topic_name partitions"),
    api.ALTER_SHARE_GROUP_OFFSETS: _row("topics:topic_name partitions:partition_index",
                                        "responses:topic_name partitions", KEEP,
                                        SLICE_ELEMENTS_CHANGES),
    api.DELETE_SHARE_GROUP_OFFSETS: _row("topics:topic_name", "responses", ONCE,
                                         SLICE_ELEMENTS_CHANGES),
    api.LIST_GROUPS: _row("", "groups"),
    api.DELETE_TOPICS: _row("topics:name,topic_id|topic_names", "responses", TWICE,
                            SLICE_ELEMENTS_CHANGES),
    api.DELETE_RECORDS: _row("topics:name partitions:partition_index", "topics:name partitions",
                             KEEP, SLICE_ELEMENTS_CHANGES),
    api.OFFSET_FOR_LEADER_EPOCH: _row("topics:topic partitions:partition",
                                      "topics:topic partitions"),
    # A request's changes of a transaction are all or nothing.
    api.ADD_PARTITIONS_TO_TXN: _row("", "results_by_topic_v3_and_below:name results_by_partition"),
    api.WRITE_TXN_MARKERS: _row("", "markers:producer_id topics:name partitions"),
    api.TXN_OFFSET_COMMIT: _row("", "topics:name,topic_id partitions"),
    api.DESCRIBE_ACLS: _row("", "resources:resource_type,resource_name,pattern_type acls"),
    api.CREATE_ACLS: _row("creations", "results", KEEP, SLICE_ELEMENTS_CHANGES, FEW_MAX),
    api.DELETE_ACLS: _row("filters", "filter_results", KEEP, SLICE_ELEMENTS_COSTLY, FEW_MAX),
    api.DESCRIBE_CONFIGS: _row("resources:resource_type,resource_name", "results",
                               slice_elements=SLICE_ELEMENTS_COSTLY),
    api.ALTER_CONFIGS: _row("resources:resource_type,resource_name", "responses", TWICE,
                            SLICE_ELEMENTS_CHANGES),
    api.ALTER_REPLICA_LOG_DIRS: _row("dirs:path topics:name partitions",
                                     "results:topic_name partitions", KEEP, SLICE_ELEMENTS_CHANGES),
    api.DESCRIBE_LOG_DIRS: _row("", "results:log_dir topics:name partitions", whole_max=EVERY),
    api.CREATE_PARTITIONS: _row("topics:name", "results", TWICE, SLICE_ELEMENTS_CHANGES),
    api.DELETE_GROUPS: _row("groups_names", "results", ONCE, SLICE_ELEMENTS_CHANGES),
    api.ELECT_LEADERS: _row("topic_partitions:topic partitions",
                            "replica_election_results:topic partition_result"),
    api.INCREMENTAL_ALTER_CONFIGS: _row("resources:resource_type,resource_name", "responses",
                                        TWICE, SLICE_ELEMENTS_CHANGES),
    api.ALTER_PARTITION_REASSIGNMENTS: _row("topics:name partitions:partition_index",
                                            "responses:name partitions", TWICE,
                                            SLICE_ELEMENTS_CHANGES),
    api.LIST_PARTITION_REASSIGNMENTS: _row("topics:name partition_indexes",
                                           "topics:name partitions"),
    api.OFFSET_DELETE: _row("topics:name partitions:partition_index", "topics:name partitions"),
    api.DESCRIBE_CLIENT_QUOTAS: _row("", "entries", whole_max=FEW_MAX),
    api.ALTER_CLIENT_QUOTAS: _row("entries", "entries", KEEP, SLICE_ELEMENTS_CHANGES, FEW_MAX),
    api.DESCRIBE_USER_SCRAM_CREDENTIALS: _row("users:name", "results", TWICE),
    # Kafka rejects a user who appears twice in either array, so it needs the whole request.
    api.ALTER_USER_SCRAM_CREDENTIALS: _row("", "results", whole_max=FEW_MAX),
    api.DESCRIBE_QUORUM: _row("", "topics", whole_max=FEW_MAX),
    api.DESCRIBE_PRODUCERS: _row("topics:name partition_indexes",
                                 "topics:name partitions:partition_index active_producers",
                                 slice_elements=SLICE_ELEMENTS_COSTLY),
    api.DESCRIBE_TRANSACTIONS: _row("transactional_ids", "transaction_states"),
    api.LIST_TRANSACTIONS: _row("", "transaction_states"),
    api.LIST_CONFIG_RESOURCES: _row("", "config_resources"),
    api.DESCRIBE_TOPIC_PARTITIONS: _row("", "topics", whole_max=EVERY),
}

_NOTHING = _row("", "")


def of(api_key: int) -> Elements:
    return ELEMENTS.get(api_key, _NOTHING)


def path_of(paths: tuple, kind: str, api_key: int, version: int):
    """Return the path of `paths` that exists in this version of a "request" or "response", or None.
    """
    fields = {field.name: field for field in tables.message(tables.name_of(kind, api_key)).fields}
    for path in paths:
        if tables.contains(fields[path[0][0]].versions, version):
            return path
    return None


def repeats(row: Elements, request) -> bool:
    """Return True if a request repeats an element that must be answered once."""
    if row.repeats == ONCE:
        for path in row.request_paths:
            if _repeats(request, path, 0):
                return True
    return False


def _repeats(holder, path: tuple, number: int) -> bool:
    name, keys = path[number]
    rows = getattr(holder, name)
    if not rows:
        return False
    number += 1
    if len(rows) > 1:
        if not keys:
            if len(set(rows)) < len(rows):
                return True
        elif len({tuple([getattr(row, key) for key in keys]) for row in rows}) < len(rows):
            return True
    if number < len(path):
        for row in rows:
            if _repeats(row, path, number):
                return True
    return False
