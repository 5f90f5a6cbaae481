"""The internal topics of the coordinators: their names, and the settings of their replication.

Owns: nothing.
Invariants: these names are written nowhere else in pylog.
Source: Kafka's Topic and its GroupCoordinatorConfig, TransactionLogConfig, ShareCoordinatorConfig.
"""

OFFSETS = "__consumer_offsets"
TRANSACTIONS = "__transaction_state"
SHARE_STATE = "__share_group_state"
# topic -> setting with its replication factor
FACTORS = {OFFSETS: "offsets.topic.replication.factor",
           TRANSACTIONS: "transaction.state.log.replication.factor",
           SHARE_STATE: "share.coordinator.state.topic.replication.factor"}
NAMES = frozenset(FACTORS)
