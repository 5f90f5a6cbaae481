"""Broker lifecycle: registration, heartbeats, fencing, controlled shutdown.

Owns: nothing; the time is passed in.
Invariants: a broker's epoch is the offset of its registration, and requests with another epoch are
  rejected; a broker is unfenced once it has read its registration; while a process is alive, no
  other takes its broker id; a new broker must support every finalized feature; a broker leaves the
  ISRs together with the record that gives the reason.
Source: KIP-631, KIP-841, KIP-858, KIP-966; Kafka's ClusterControlManager and
  ReplicationControlManager; error codes and the order of checks as Kafka 4.4's.
"""

from collections import namedtuple

from pylog.metadata.controller.broker_heartbeats import Heartbeats
from pylog.metadata.controller.partitions import elections
from pylog.metadata.controller.partitions.partition_change import Rules
from pylog.metadata.image.feature_levels import METADATA_VERSION
from pylog.metadata.image.image import Image
from pylog.protocol import messages
from pylog.protocol.api_error import Refusal
from pylog.protocol.errors import ErrorCode

# Kafka stores this level in the quorum's own log, and its brokers need not report it.
QUORUM_FEATURE = "kraft.version"
OLDEST_REGISTRATION = 2  # earlier versions have no log directories
CORDONING = 30  # the first metadata.version with cordoned directories in registrations
FENCE, UNFENCE = 1, -1

State = namedtuple("State", ("is_fenced", "is_stopping", "may_stop"))
State.__doc__ = "The response to a heartbeat: is the broker fenced, and may its process end?"


def check_epoch(image: Image, broker_id: int, broker_epoch: int) -> None:
    """Raise Refusal if the epoch is not the broker's current one."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise Refusal(ErrorCode.STALE_BROKER_EPOCH,
                      f"No broker registration found for broker id {broker_id}")
    if broker.epoch != broker_epoch:
        raise Refusal(ErrorCode.STALE_BROKER_EPOCH,
                      f"Expected broker epoch {broker.epoch}, but got broker epoch {broker_epoch}")


# ---- registration -------------------------------------------------------------------------------


def register(rules: Rules, heartbeats: Heartbeats, request, cluster_id: str, now_ns: int):
    """Decide a BrokerRegistrationRequest, in steps. Returns (records, the broker's epoch).

    Raises Refusal: INCONSISTENT_CLUSTER_ID, DUPLICATE_BROKER_REGISTRATION, INVALID_REGISTRATION,
    UNSUPPORTED_VERSION.
    """
    image = rules.image
    if request.cluster_id != cluster_id:
        raise Refusal(ErrorCode.INCONSISTENT_CLUSTER_ID,
                      f"Expected cluster ID {cluster_id}, but got cluster ID {request.cluster_id}")
    before = image.brokers.get(request.broker_id)
    is_same = before is not None and before.incarnation_id == bytes(request.incarnation_id)
    if before is not None and not is_same and heartbeats.is_alive(before.id, now_ns):
        # A live process must not lose its broker id to another.
        raise Refusal(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            "Another broker is registered with that broker id. If the broker was recently "
            "restarted this should self-resolve once the heartbeat manager expires the broker's "
            "session.")
    if request.is_migrating_zk_broker:
        raise Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED,
                      "Controller does not support registering ZK brokers.")
    _check_directories(image, request)
    _check_features(image, request)
    records: list = []
    if not is_same:
        # Applies to an unregistered broker too: it is in no ISR any more, but may be an ELR.
        records = yield from _restarted(
            rules, request.broker_id, before is not None
            and request.previous_broker_epoch == before.epoch)
    amended = before if is_same else None
    epoch = image.offset + 1 if amended is None else amended.epoch
    records.append(_registration(request, epoch, amended))
    return records, epoch


def _check_directories(image: Image, request) -> None:
    found = [bytes(directory) for directory in request.log_dirs]
    if not found:
        raise Refusal(ErrorCode.INVALID_REGISTRATION, "No directories specified in request")
    if len(set(found)) < len(found):
        raise Refusal(ErrorCode.INVALID_REGISTRATION, "Duplicate directory ID in request")
    for broker in image.brokers.values():
        if broker.id != request.broker_id:
            for directory in found:
                if directory in broker.directories:
                    raise Refusal(ErrorCode.INVALID_REGISTRATION,
                                  f"Broker {broker.id} is already registered with directory "
                                  f"{directory.hex()}")
    for directory in found:
        if directory < (100).to_bytes(16, "big"):
            raise Refusal(ErrorCode.INVALID_REGISTRATION,
                          f"Reserved directory ID in request: {directory.hex()}")


def _check_features(image: Image, request) -> None:
    """Raise Refusal if the broker does not support every finalized feature."""
    ranges = {feature.name: (feature.min_supported_version, feature.max_supported_version)
              for feature in request.features}
    if METADATA_VERSION not in ranges:
        raise Refusal(ErrorCode.INVALID_REGISTRATION,
                      "Request features do not contain 'metadata.version'")
    for name, level in image.features.items():
        low, high = ranges.get(name, (0, 0))
        if not low <= level <= high and not (name == QUORUM_FEATURE and name not in ranges):
            raise Refusal(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version "
                f"{level} of {name}. The broker wants a version between {low} and {high}, "
                "inclusive.")


def _restarted(rules: Rules, broker_id: int, is_clean: bool):
    """Return the partition records for a new process with a known broker id, in steps."""
    image = rules.image
    if not rules.keeps_eligible or is_clean:
        return (yield from elections.moved(
            rules, elections.in_sync_on(image, broker_id), leaving=broker_id))
    # The broker did not stop cleanly: records that it had acknowledged may be lost.
    records = yield from elections.moved(
        rules, elections.in_sync_on(image, broker_id), crashed=broker_id)
    return records + (yield from elections.moved(
        rules, elections.eligible_on(image, broker_id), crashed=broker_id))


def _registration(request, epoch: int, amended):
    new = messages.RegisterBrokerRecord
    return new(
        broker_id=request.broker_id, incarnation_id=request.incarnation_id, broker_epoch=epoch,
        end_points=[new.BrokerEndpoint(
            name=listener.name, host=listener.host, port=listener.port,
            security_protocol=listener.security_protocol) for listener in request.listeners],
        features=[new.BrokerFeature(
            name=feature.name, min_supported_version=feature.min_supported_version,
            max_supported_version=feature.max_supported_version) for feature in request.features],
        rack=request.rack, log_dirs=sorted(request.log_dirs),
        fenced=amended is None or amended.fenced,
        in_controlled_shutdown=amended is not None and amended.in_controlled_shutdown)


# ---- heartbeats ---------------------------------------------------------------------------------


def needs_decision(image: Image, heartbeats: Heartbeats, request) -> bool:
    """Return True if a heartbeat changes the broker's state in the cluster. Raises Refusal."""
    check_epoch(image, request.broker_id, request.broker_epoch)
    broker = image.brokers[request.broker_id]
    if request.want_shut_down or heartbeats.is_stopping(broker.id) or _offline(broker, request) \
            or cordoned(image, broker.id, request.cordoned_log_dirs):
        return True
    if broker.fenced:
        return not request.want_fence and heartbeats.is_caught_up(
            broker.id, request.current_metadata_offset)
    return request.want_fence


def process_heartbeat(rules: Rules, heartbeats: Heartbeats, request):
    """Decide a BrokerHeartbeatRequest, in steps. Returns (records, State); raises Refusal."""
    image, broker_id = rules.image, request.broker_id
    check_epoch(image, broker_id, request.broker_epoch)
    broker, records = image.brokers[broker_id], []
    if broker.fenced:
        if request.want_shut_down:
            state = State(True, False, True)
        elif not request.want_fence and heartbeats.is_caught_up(
                broker_id, request.current_metadata_offset):
            records, state = (yield from unfenced(rules, broker_id)), State(False, False, False)
        else:
            state = State(True, False, False)
    elif request.want_fence or request.want_shut_down or heartbeats.is_stopping(broker_id):
        records, state = yield from _leaving(rules, heartbeats, broker, request)
    else:
        state = State(False, False, False)
    offline = _offline(broker, request)
    if offline:
        records = records + (yield from _without_directories(rules, broker, offline))
    return records + cordoned(image, broker_id, request.cordoned_log_dirs), state


def _leaving(rules, heartbeats, broker, request):
    broker_id, image = broker.id, rules.image
    leads = elections.leads_any(image, broker_id)
    if heartbeats.is_stopping(broker_id):
        # A controlled shutdown cannot be cancelled by later heartbeats.
        if leads or not heartbeats.may_stop(image, broker_id):
            return [], State(False, True, False)
        return (yield from fenced(rules, broker_id)), State(True, False, True)
    if request.want_fence or not leads:
        return (yield from fenced(rules, broker_id)), State(True, False, request.want_shut_down)
    # The ISR changes and the record with their reason are appended together.
    records = [] if broker.in_controlled_shutdown else [_change(broker, in_controlled_shutdown=1)]
    records += yield from elections.moved(
        rules, elections.in_sync_on(image, broker_id), leaving=broker_id)
    return records, State(False, True, False)


def unfenced(rules: Rules, broker_id: int):
    """Return the records that unfence a broker and elect it for partitions without leader; in
    steps.
    """
    records = [_change(rules.image.brokers[broker_id], fenced=UNFENCE)]
    return records + (yield from elections.moved(
        rules, elections.without_leader(rules.image), coming=broker_id))


def fenced(rules: Rules, broker_id: int):
    """Return the records that fence a broker and move its leadership and ISRs, in steps. The ISR
    changes and the record with their reason are appended together.
    """
    records = yield from elections.moved(
        rules, elections.in_sync_on(rules.image, broker_id), leaving=broker_id)
    records.append(_change(rules.image.brokers[broker_id], fenced=FENCE))
    return records


def _change(broker, **fields):
    return messages.BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, **fields)


def unregistered(rules: Rules, broker_id: int):
    """Return the records that unregister a broker, in steps. Raises Refusal."""
    broker = rules.image.brokers.get(broker_id)
    if broker is None:
        raise Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED,
                      f"Broker ID {broker_id} is not currently registered")
    records = yield from elections.moved(
        rules, elections.in_sync_on(rules.image, broker_id), leaving=broker_id)
    records += yield from elections.moved(
        rules, elections.eligible_on(rules.image, broker_id), leaving=broker_id)
    records.append(messages.UnregisterBrokerRecord(
        broker_id=broker_id, broker_epoch=broker.epoch))
    return records


# ---- failed and cordoned directories ------------------------------------------------------------


def _offline(broker, request) -> list:
    offline = {bytes(directory) for directory in request.offline_log_dirs}
    return [directory for directory in broker.directories if directory in offline]


def has_cordons(image: Image) -> bool:
    """Return True if the cluster's metadata.version supports cordoned directories."""
    return image.features.get(METADATA_VERSION, 0) >= CORDONING


def cordoned(image: Image, broker_id: int, directories) -> list:
    """Return the record of a broker's cordoned directories, [] if they are unchanged or unsupported
    by the cluster. directories: ids; None if the broker does not report them.
    """
    broker = image.brokers[broker_id]
    if directories is None or not has_cordons(image):
        return []
    if broker.cordoned is not None and {*map(bytes, directories)} == {*broker.cordoned}:
        return []
    return [_change(broker, cordoned_log_dirs=list(directories))]


def _without_directories(rules: Rules, broker, offline: list):
    def on_them():
        for topic in rules.image.topics.values():
            yield None
            for index, state in enumerate(topic.partitions):
                if broker.id in state.isr and len(state.directories) == len(state.replicas) and (
                        state.directories[state.replicas.index(broker.id)] in offline):
                    yield topic, index

    records = yield from elections.moved(rules, on_them(), leaving=broker.id)
    records.append(_change(broker, log_dirs=[
        directory for directory in broker.directories if directory not in offline]))
    return records
