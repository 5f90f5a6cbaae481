"""Kafka's error codes, and the exceptions of the protocol layer.

Owns: the error table. A code is an int with a name, a message, and a flag for retriable errors.
Invariants: codes are Kafka 4.4's, each once; `ErrorCode.X == n` for the plain number n.
Source: the error table of Apache Kafka 4.4.0 (codes, names, retriable flags; the messages are
  ours).
"""

from __future__ import annotations

from pylog._native.protocol.message import EncodeError, ProtocolError

TYPE_CHECKING = False  # Importing typing would add 6 ms to startup.
if TYPE_CHECKING:
    from typing import Self

__all__ = ["EncodeError", "Error", "ErrorCode", "ProtocolError", "UnsupportedVersion"]


class UnsupportedVersion(ProtocolError):
    """The message does not have this version."""


class Error(int):
    """One row of the table."""

    name: str
    retriable: bool
    message: str

    def __new__(cls, code: int, message: str, retriable: bool = False) -> Self:
        self = super().__new__(cls, code)
        self.message = message
        self.retriable = retriable
        return self

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"{self.name}({int(self)})"


RETRY = True


class ErrorCode:
    """The table: `ErrorCode.NOT_LEADER_OR_FOLLOWER`, `ErrorCode.of(6)`."""

    UNKNOWN_SERVER_ERROR = Error(-1, "The broker failed in a way it did not expect.")
    NONE = Error(0, "No error.")
    OFFSET_OUT_OF_RANGE = Error(1, "The offset lies outside the log.")
    CORRUPT_MESSAGE = Error(2, "A batch fails its checksum or is malformed.", RETRY)
    UNKNOWN_TOPIC_OR_PARTITION = Error(3, "No such topic or partition here.", RETRY)
    INVALID_FETCH_SIZE = Error(4, "The fetch size makes no sense.")
    LEADER_NOT_AVAILABLE = Error(5, "The partition has no leader at the moment.", RETRY)
    NOT_LEADER_OR_FOLLOWER = Error(6, "This broker is not the leader, or no replica at all.", RETRY)
    REQUEST_TIMED_OUT = Error(7, "The request ran out of time.", RETRY)
    BROKER_NOT_AVAILABLE = Error(8, "The broker is not available.")
    REPLICA_NOT_AVAILABLE = Error(9, "The replica is not available.", RETRY)
    MESSAGE_TOO_LARGE = Error(10, "The batch is larger than max.message.bytes.")
    STALE_CONTROLLER_EPOCH = Error(11, "Another controller has taken over.")
    OFFSET_METADATA_TOO_LARGE = Error(12, "The metadata of the committed offset is too long.")
    NETWORK_EXCEPTION = Error(13, "The connection ended before the answer came.", RETRY)
    COORDINATOR_LOAD_IN_PROGRESS = Error(14, "The coordinator is still loading.", RETRY)
    COORDINATOR_NOT_AVAILABLE = Error(15, "No coordinator is available at the moment.", RETRY)
    NOT_COORDINATOR = Error(16, "Another broker is the coordinator.", RETRY)
    INVALID_TOPIC_EXCEPTION = Error(17, "The topic's name is not allowed.")
    RECORD_LIST_TOO_LARGE = Error(18, "The batch is larger than a segment.")
    NOT_ENOUGH_REPLICAS = Error(19, "Fewer in-sync replicas than min.insync.replicas.", RETRY)
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = Error(
        20, "Appended, but to fewer in-sync replicas than min.insync.replicas.", RETRY
    )
    INVALID_REQUIRED_ACKS = Error(21, "acks is none of -1, 0 and 1.")
    ILLEGAL_GENERATION = Error(22, "The group is in another generation.")
    INCONSISTENT_GROUP_PROTOCOL = Error(
        23, "The member shares no protocol with the group, or brought none."
    )
    INVALID_GROUP_ID = Error(24, "The group id is not allowed.")
    UNKNOWN_MEMBER_ID = Error(25, "The group has no such member.")
    INVALID_SESSION_TIMEOUT = Error(26, "The session timeout lies outside the broker's limits.")
    REBALANCE_IN_PROGRESS = Error(27, "The group rebalances; the member has to join again.")
    INVALID_COMMIT_OFFSET_SIZE = Error(28, "The offset commit is too large.")
    TOPIC_AUTHORIZATION_FAILED = Error(29, "Not authorized for the topic.")
    GROUP_AUTHORIZATION_FAILED = Error(30, "Not authorized for the group.")
    CLUSTER_AUTHORIZATION_FAILED = Error(31, "Not authorized for the cluster.")
    INVALID_TIMESTAMP = Error(32, "A timestamp is too far from the broker's clock.")
    UNSUPPORTED_SASL_MECHANISM = Error(33, "The SASL mechanism is not enabled.")
    ILLEGAL_SASL_STATE = Error(34, "The request does not fit the state of the authentication.")
    UNSUPPORTED_VERSION = Error(35, "The broker does not serve this version.")
    TOPIC_ALREADY_EXISTS = Error(36, "A topic of this name exists.")
    INVALID_PARTITIONS = Error(37, "The number of partitions is not allowed.")
    INVALID_REPLICATION_FACTOR = Error(
        38, "The replication factor is below 1 or above the number of brokers."
    )
    INVALID_REPLICA_ASSIGNMENT = Error(39, "The assignment of replicas is not allowed.")
    INVALID_CONFIG = Error(40, "A setting or its value is not allowed.")
    NOT_CONTROLLER = Error(41, "This broker is not the controller.", RETRY)
    INVALID_REQUEST = Error(42, "The request contradicts itself or the protocol.")
    UNSUPPORTED_FOR_MESSAGE_FORMAT = Error(43, "The log's format does not allow the request.")
    POLICY_VIOLATION = Error(44, "A policy of the broker forbids it.")
    OUT_OF_ORDER_SEQUENCE_NUMBER = Error(45, "The batch does not follow the producer's last one.")
    DUPLICATE_SEQUENCE_NUMBER = Error(46, "The batch was appended before.")
    INVALID_PRODUCER_EPOCH = Error(47, "The producer's epoch is out of date.")
    INVALID_TXN_STATE = Error(48, "The transaction's state does not allow it.")
    INVALID_PRODUCER_ID_MAPPING = Error(
        49, "The producer id does not belong to the transactional id."
    )
    INVALID_TRANSACTION_TIMEOUT = Error(50, "The timeout is above transaction.max.timeout.ms.")
    CONCURRENT_TRANSACTIONS = Error(51, "The transaction is busy with another step.", RETRY)
    TRANSACTION_COORDINATOR_FENCED = Error(52, "A newer transaction coordinator exists.")
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = Error(53, "Not authorized for the transactional id.")
    SECURITY_DISABLED = Error(54, "No authorizer is configured.")
    OPERATION_NOT_ATTEMPTED = Error(55, "Not tried, because another part of the request failed.")
    KAFKA_STORAGE_ERROR = Error(56, "The disk failed.", RETRY)
    LOG_DIR_NOT_FOUND = Error(57, "The broker has no such log directory.")
    SASL_AUTHENTICATION_FAILED = Error(58, "The credentials were not accepted.")
    UNKNOWN_PRODUCER_ID = Error(59, "Nothing is known about the producer id any more.")
    REASSIGNMENT_IN_PROGRESS = Error(60, "The partition is being reassigned.")
    DELEGATION_TOKEN_AUTH_DISABLED = Error(61, "Delegation tokens are not enabled.")
    DELEGATION_TOKEN_NOT_FOUND = Error(62, "No such delegation token.")
    DELEGATION_TOKEN_OWNER_MISMATCH = Error(63, "Neither owner nor renewer of the token.")
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = Error(
        64, "Tokens cannot be asked for over this kind of connection."
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = Error(65, "Not authorized for the delegation token.")
    DELEGATION_TOKEN_EXPIRED = Error(66, "The delegation token has expired.")
    INVALID_PRINCIPAL_TYPE = Error(67, "The kind of principal is not supported.")
    NON_EMPTY_GROUP = Error(68, "The group has members.")
    GROUP_ID_NOT_FOUND = Error(69, "No such group.")
    FETCH_SESSION_ID_NOT_FOUND = Error(70, "No such fetch session.", RETRY)
    INVALID_FETCH_SESSION_EPOCH = Error(71, "The fetch session expects another epoch.", RETRY)
    LISTENER_NOT_FOUND = Error(72, "The leader has no listener of that name.", RETRY)
    TOPIC_DELETION_DISABLED = Error(73, "delete.topic.enable is false.")
    FENCED_LEADER_EPOCH = Error(74, "The client's leader epoch is behind the broker's.", RETRY)
    UNKNOWN_LEADER_EPOCH = Error(75, "The client's leader epoch is ahead of the broker's.", RETRY)
    UNSUPPORTED_COMPRESSION_TYPE = Error(76, "This version does not know the compression.")
    STALE_BROKER_EPOCH = Error(77, "The broker has registered again since.")
    OFFSET_NOT_AVAILABLE = Error(
        78, "The new leader's high watermark has not caught up yet.", RETRY
    )
    MEMBER_ID_REQUIRED = Error(79, "Join again with the member id in this answer.")
    PREFERRED_LEADER_NOT_AVAILABLE = Error(80, "The preferred leader is not available.", RETRY)
    GROUP_MAX_SIZE_REACHED = Error(81, "The group is full.")
    FENCED_INSTANCE_ID = Error(82, "Another member has taken the group instance id.")
    ELIGIBLE_LEADERS_NOT_AVAILABLE = Error(83, "No replica may become leader now.", RETRY)
    ELECTION_NOT_NEEDED = Error(84, "The wanted leader leads already.", RETRY)
    NO_REASSIGNMENT_IN_PROGRESS = Error(85, "The partition is not being reassigned.")
    GROUP_SUBSCRIBED_TO_TOPIC = Error(86, "The group is subscribed to the topic.")
    INVALID_RECORD = Error(87, "A record was refused by the broker's checks.")
    UNSTABLE_OFFSET_COMMIT = Error(88, "An open transaction holds offsets of the group.", RETRY)
    THROTTLING_QUOTA_EXCEEDED = Error(89, "The quota is used up.", RETRY)
    PRODUCER_FENCED = Error(90, "A newer producer has the transactional id.")
    RESOURCE_NOT_FOUND = Error(91, "The resource does not exist.")
    DUPLICATE_RESOURCE = Error(92, "The resource is named twice.")
    UNACCEPTABLE_CREDENTIAL = Error(93, "The credential does not meet the rules.")
    INCONSISTENT_VOTER_SET = Error(94, "Sender or receiver is not among the voters.")
    INVALID_UPDATE_VERSION = Error(95, "The version of the update is not allowed.")
    FEATURE_UPDATE_FAILED = Error(96, "The features could not be updated.")
    PRINCIPAL_DESERIALIZATION_FAILURE = Error(97, "The forwarded principal is unreadable.")
    SNAPSHOT_NOT_FOUND = Error(98, "No such snapshot.")
    POSITION_OUT_OF_RANGE = Error(99, "The position lies outside the snapshot.")
    UNKNOWN_TOPIC_ID = Error(100, "No topic with this id here.", RETRY)
    DUPLICATE_BROKER_REGISTRATION = Error(101, "The broker id is taken.")
    BROKER_ID_NOT_REGISTERED = Error(102, "No broker is registered under the id.")
    INCONSISTENT_TOPIC_ID = Error(103, "The log belongs to another topic id.", RETRY)
    INCONSISTENT_CLUSTER_ID = Error(104, "The cluster has another id.")
    TRANSACTIONAL_ID_NOT_FOUND = Error(105, "No such transactional id.")
    FETCH_SESSION_TOPIC_ID_ERROR = Error(106, "The session mixes topic names and ids.", RETRY)
    INELIGIBLE_REPLICA = Error(107, "A replica of the new ISR may not be in it.")
    NEW_LEADER_ELECTED = Error(108, "The partition changed, and so did its leader.")
    OFFSET_MOVED_TO_TIERED_STORAGE = Error(109, "The offset is in tiered storage only.")
    FENCED_MEMBER_EPOCH = Error(110, "The member was fenced and has to join again.")
    UNRELEASED_INSTANCE_ID = Error(111, "Another member still uses the instance id.")
    UNSUPPORTED_ASSIGNOR = Error(112, "The group does not support the assignor.")
    STALE_MEMBER_EPOCH = Error(113, "The member's epoch is behind; a heartbeat has the new one.")
    MISMATCHED_ENDPOINT_TYPE = Error(114, "The request belongs to another kind of endpoint.")
    UNSUPPORTED_ENDPOINT_TYPE = Error(115, "This kind of endpoint is not served.")
    UNKNOWN_CONTROLLER_ID = Error(116, "No such controller.")
    UNKNOWN_SUBSCRIPTION_ID = Error(117, "The telemetry subscription is out of date.")
    TELEMETRY_TOO_LARGE = Error(118, "The telemetry push is too large.")
    INVALID_REGISTRATION = Error(119, "The controller refuses the registration.")
    TRANSACTION_ABORTABLE = Error(120, "The transaction failed; abort it and go on.")
    INVALID_RECORD_STATE = Error(121, "The record's delivery cannot be acknowledged so.")
    SHARE_SESSION_NOT_FOUND = Error(122, "No such share session.", RETRY)
    INVALID_SHARE_SESSION_EPOCH = Error(123, "The share session expects another epoch.", RETRY)
    FENCED_STATE_EPOCH = Error(124, "The share group's state has another epoch.")
    INVALID_VOTER_KEY = Error(125, "The voter key is not that of the receiver.")
    DUPLICATE_VOTER = Error(126, "The voter is in the set already.")
    VOTER_NOT_FOUND = Error(127, "The voter is not in the set.")
    INVALID_REGULAR_EXPRESSION = Error(128, "The regular expression cannot be compiled.")
    REBOOTSTRAP_REQUIRED = Error(129, "The client's metadata is too old; start from bootstrap.")
    STREAMS_INVALID_TOPOLOGY = Error(130, "The topology is not valid.")
    STREAMS_INVALID_TOPOLOGY_EPOCH = Error(131, "The topology's epoch is not valid.")
    STREAMS_TOPOLOGY_FENCED = Error(132, "The topology's epoch is out of date.")
    SHARE_SESSION_LIMIT_REACHED = Error(133, "There are too many share sessions.", RETRY)
    GROUP_DELETION_FAILED = Error(134, "The group could not be deleted.")
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = Error(
        135, "The description of the topology could not be stored.")
    CONTROLLER_ID_NOT_REGISTERED = Error(136, "The controller id is not registered.")

    @staticmethod
    def of(code: int) -> Error:
        """Return the row of a code. Raises KeyError if Kafka 4.4 does not have it."""
        return TABLE[code]


TABLE: dict[int, Error] = {
    int(row): row for row in vars(ErrorCode).values() if isinstance(row, Error)
}
