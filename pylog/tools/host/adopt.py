"""`brokerd adopt`: check if brokerd can open the directories of a stopped Kafka.

Owns: nothing; reads files only, except for the move that --execute performs.
Invariants: nothing is written without --execute; a directory that a running broker uses is refused;
  a Kafka feature that brokerd lacks (a custom authorizer, tiered storage, replicas elsewhere) is
  reported as a failure with advice, never skipped.
Source: docs/migrate/kafka-node.md; Kafka 4.4's directories and metadata records on disk.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pylog._native.records import batch
from pylog.config import ConfigError, Settings
from pylog.config import internal_topics
from pylog.config.listeners import SASL_PROTOCOLS, TLS_PROTOCOLS, Listener
from pylog.log.checkpoint_files import CLEAN_SHUTDOWN, free_name, sync_directory
from pylog.log.log_directories import LOCK, locked
from pylog.log.errors import StartError
from pylog.log.partition_logs import topic_id_in
from pylog.metadata import meta_properties
from pylog.metadata.image import snapshot
from pylog.metadata.image.record_versions import NEWEST_VERSION, OLDEST_VERSION
from pylog.metadata.image.image import ACCESS_RULE, Image, MetadataError, is_known
from pylog.metadata.log.metadata_log import MetadataBatch
from pylog.metadata.image.loader import Tail
from pylog.protocol.counts import counted
from pylog.protocol import records
from pylog.security.authorization.access import authorizer_of
from pylog.security.sasl.sasl import Mechanisms
from pylog.tools.cli.finding import FAIL, OK, WARN, Finding

METADATA = "__cluster_metadata-0"
PARTITION = re.compile(r"[a-zA-Z0-9._-]{1,249}-\d+")
ADD_PARTITIONS_TO_TXN = 24
FILES = ("ssl.keystore.location", "ssl.truststore.location", "ssl.crl.location")
UNKNOWN = ("this version of brokerd does not know them: remove them, then restart Kafka with a "
           "short metadata.log.max.snapshot.interval.ms: brokerd reads from the newest snapshot on")


def settings_of(path: str | None, overrides: list[str]) -> tuple[Settings, list[Finding]]:
    """Return Kafka's settings that brokerd accepts, and a failure for each rejected one.

    Raises ConfigError if the rejected setting is not named, OSError.
    """
    texts: dict[str, str] = {}

    def seen(given: dict[str, str]) -> dict[str, str]:
        texts.update(given)
        return {}

    try:
        return Settings.load(path, overrides, derive=seen), []
    except ConfigError as error:
        refused = error
    found = []
    while True:
        named = [name for name in texts if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])",
                                                     str(refused))]
        if not named:
            raise refused
        # Parse again without the rejected setting, to find further ones.
        name = min(named, key=str(refused).index)
        del texts[name]
        found.append(Finding("settings", name, FAIL, str(refused),
                             "change or remove it in a copy of Kafka's file"))
        try:
            return Settings(dict(texts)), found
        except ConfigError as error:
            refused = error


def adopt(settings: Settings, execute: bool) -> list[Finding]:
    """Return all findings, in the order of the checks. Raises OSError."""
    found = [Finding("settings", "", WARN, warning) for warning in settings.warnings]
    if settings["authorizer.class.name"]:
        try:
            authorizer_of(settings, lambda: 0)
        except ConfigError as error:
            found.append(Finding("settings", "authorizer.class.name", FAIL, str(error),
                                 "access would not be controlled as before"))
    found += _listeners(settings)
    directories = list(_directories(settings))
    found += directories
    if _fails(directories):
        return found
    directories = list(_metadata_location(settings, execute and not _fails(found)))
    found += directories
    if _fails(directories):
        return found
    image, findings = _metadata(settings)
    found += findings
    if image is not None:
        found += _topics(image, settings)
    return found


def _fails(found: list[Finding]) -> bool:
    return any(finding.status == FAIL for finding in found)


def _listeners(settings: Settings) -> Iterator[Finding]:
    """Report everything that would prevent a listener from starting, not only the first error."""
    for listener in settings.all_listeners:
        if listener.protocol in TLS_PROTOCOLS and listener in settings.listeners:
            yield from _tls_of(settings, listener)
        if listener.protocol in SASL_PROTOCOLS:
            yield from _logins_of(settings, listener.name)


def _tls_of(settings: Settings, listener: Listener) -> Iterator[Finding]:
    # Imported here: it loads OpenSSL.
    from pylog._native.server.tls import TlsServer
    from pylog.security.tls import listener_tls

    get, missing = listener_tls.getter(settings, listener), False
    for name in FILES:
        if get(name) and not os.access(get(name), os.R_OK):
            missing = True
            yield Finding("listener", listener.name, FAIL, f"{name}: {get(name)} cannot be read",
                          "copy it to this machine, readable for brokerd's user")
    if missing:
        return
    try:
        listener_tls.use(TlsServer(), settings, listener)
    except ConfigError as error:
        yield Finding("listener", listener.name, FAIL, str(error), "no client could connect to it")


def _logins_of(settings: Settings, listener: str) -> Iterator[Finding]:
    mechanisms = Mechanisms(settings, dict, lambda: 0, lambda: 0)
    try:
        offered = mechanisms.offered(listener)
    except ConfigError as error:
        yield Finding("listener", listener, FAIL, str(error), "name those that brokerd has")
        return
    for mechanism in offered:
        try:
            mechanisms.check_login(listener, mechanism)
        except ConfigError as error:
            yield Finding("listener", listener, FAIL, str(error),
                          f"no client could log in with {mechanism}")


def _directories(settings: Settings) -> Iterator[Finding]:
    clusters = set()
    for path in settings.log_dirs:
        if not os.path.exists(os.path.join(path, meta_properties.FILE)):
            yield Finding("directory", path, FAIL, f"it holds no {meta_properties.FILE}",
                          "log.dirs must name Kafka's directories, all of them")
            continue
        try:
            # No lock file means no running broker, and creating one would be a write.
            if os.path.exists(os.path.join(path, LOCK)):
                os.close(locked(os.path.join(path, LOCK)))
            entry = meta_properties.properties_of(path)
        except StartError as error:
            yield Finding("directory", path, FAIL, str(error), "stop Kafka first")
            continue
        clusters.add(entry["cluster.id"])
        if entry.get("node.id") != str(settings["node.id"]):
            yield Finding("directory", path, FAIL, f"it is of node.id {entry.get('node.id')}",
                          f"set node.id={entry.get('node.id')}")
        elif os.path.exists(os.path.join(path, CLEAN_SHUTDOWN)):
            yield Finding("directory", path, OK, f"cluster {entry['cluster.id']}, cleanly stopped")
        else:
            yield Finding("directory", path, WARN, "Kafka was not stopped cleanly",
                          "the first start recovers its logs, as Kafka would")
    if len(clusters) > 1:
        yield Finding("directory", "", FAIL, f"different clusters: {', '.join(sorted(clusters))}")


def _metadata_location(settings: Settings, execute: bool) -> Iterator[Finding]:
    """Find the metadata log: brokerd keeps it in the first directory, Kafka in any."""
    wanted = os.path.join(settings.log_dirs[0], METADATA)
    if os.path.isdir(wanted):
        return
    directories = [path for path in (str(settings["metadata.log.dir"] or ""),
                                     *settings.log_dirs[1:])
                   if path and os.path.isdir(os.path.join(path, METADATA))]
    if not directories:
        yield Finding("metadata", "", FAIL, f"there is no {METADATA}",
                      "a broker without the controller role: adopt the controller's directory too")
        return
    source = os.path.join(directories[0], METADATA)
    if not execute:
        yield Finding("metadata", source, FAIL, "it is not in the first of log.dirs",
                      f"--execute moves it to {wanted}; for Kafka, take metadata.log.dir out then")
        return
    scratch = f"{wanted}.adopted"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(source, scratch)
    for name in os.listdir(scratch):
        with open(os.path.join(scratch, name), "rb") as file:
            os.fsync(file.fileno())
    sync_directory(scratch)
    os.rename(scratch, wanted)
    sync_directory(settings.log_dirs[0])
    # Move Kafka's copy away: two metadata logs would be two histories.
    os.rename(source, free_name(f"{source}.moved"))
    yield Finding("metadata", wanted, OK, f"moved from {source}",
                  "for Kafka, take metadata.log.dir out of its settings")


# ---- the metadata log ------------------------------------------------------------------------


def _batches(folder: str) -> Iterator[MetadataBatch]:
    """Read the metadata log from files, as metadata.local does. Raises ValueError if it is damaged.
    """
    newest, end = snapshot.newest(folder), 0
    if newest is not None:
        path, end, epoch = newest
        yield MetadataBatch(end - 1, epoch, snapshot.read(path))
    for name in sorted(os.listdir(folder)):
        if not re.fullmatch(r"\d{20}\.log", name):
            continue
        with open(os.path.join(folder, name), "rb") as file:
            data = memoryview(file.read())
        for position, head in batch.walk(data):
            last = head.base_offset + head.last_offset_delta
            if last < end or not head.record_count:
                continue
            rows = [] if head.attributes & batch.CONTROL else [
                records.decode_record(row[3] or b"")[1] for row in batch.records(data[position:])]
            yield MetadataBatch(last, head.leader_epoch, rows)


def _metadata(settings: Settings) -> tuple[Image | None, list[Finding]]:
    kinds: Counter[str] = Counter()

    def known_batches() -> Iterator[MetadataBatch]:
        for read in _batches(os.path.join(settings.log_dirs[0], METADATA)):
            kinds.update(type(record).__name__ for record in read.records)
            yield read._replace(records=[
                record for record in read.records if is_known(type(record).__name__)])

    try:
        tail = Tail(Image())
        tail.replay(known_batches())
        image = tail.newest
    except (MetadataError, ValueError) as error:
        return None, [Finding("metadata", "", FAIL, f"it cannot be read: {error}",
                              "start Kafka once and stop it cleanly")]
    found = []
    rules = sum(kind == ACCESS_RULE for kind, _ in image.security)
    if rules and not settings["authorizer.class.name"]:
        found.append(Finding(
            "metadata", "", WARN, f"ACLs ({rules}) without an authorizer.class.name",
            "every client may do everything, as in Kafka"))
    for kind, count in sorted(kinds.items()):
        # A record that only removes such an entry is harmless.
        if not is_known(kind) and not kind.startswith("Remove"):
            found.append(Finding("metadata", "", FAIL, f"{kind} ({counted(count, 'record')})",
                                 UNKNOWN))
    level = image.features.get("metadata.version", 0)
    known = OLDEST_VERSION <= level <= NEWEST_VERSION
    found.append(Finding(
        "metadata", "", OK if known else FAIL,
        f"metadata.version {level}, {counted(len(image.topics), 'topic')}, "
        + counted(sum(len(topic.partitions) for topic in image.topics.values()), "partition"),
        "" if known else f"brokerd knows {OLDEST_VERSION} to {NEWEST_VERSION}"))
    others = sorted(image.brokers.keys() - {settings["node.id"]})
    if others:
        found.append(Finding(
            "metadata", "", WARN, f"brokers {', '.join(map(str, others))} are registered too",
            "once brokerd runs: pylog cluster forget, for brokers that will not return"))
    return image, found


# ---- partitions ------------------------------------------------------------------------------


def _topics(image: Image, settings: Settings) -> list[Finding]:
    directories: dict[str, str] = {}
    for path in settings.log_dirs:
        for name in os.listdir(path):
            if PARTITION.fullmatch(name) and name != METADATA:
                directories[name] = path
    elsewhere: list[str] = []
    missing: list[str] = []
    others: list[str] = []
    old: list[str] = []
    node = settings["node.id"]
    for topic in image.topics.values():
        for index, state in enumerate(topic.partitions):
            name = f"{topic.name}-{index}"
            where = directories.pop(name, None)
            if node not in state.replicas or not (
                    state.leader == node or node in (state.isr or state.eligible_leader_replicas)):
                elsewhere.append(name)
            elif where is None:
                missing.append(name)
            elif topic_id_in(os.path.join(where, name)) not in (None, topic.id):
                others.append(name)
            elif _is_old(os.path.join(where, name)):
                old.append(name)
    tiered = [name for (_, name), values in image.configs.items()
              if values.get("remote.storage.enable") == "true"]
    found = [
        *_some("replicas", elsewhere, FAIL, "are led by other brokers, and would be offline",
               "move them here first: kafka-reassign-partitions.sh"),
        *_some("partitions", missing, FAIL, "have no directory and would start empty",
               "name all of Kafka's directories in log.dirs"),
        *_some("partitions", others, FAIL, "have a directory of another topic of that name",
               "brokerd would rename it and start empty"),
        *_some("partitions", old, FAIL, "begin with records older than Kafka 0.11's format",
               "let them expire, or copy the topic; Kafka 4 cannot read them either"),
        *_some("topics", tiered, FAIL, "have tiered storage, which brokerd lacks", ""),
        *_some("partitions", list(directories), WARN, "belong to no topic",
               "brokerd renames their directories to *-stray"),
    ]
    if internal_topics.TRANSACTIONS in image.topics:
        from pylog.protocol.api import SERVED

        if ADD_PARTITIONS_TO_TXN not in SERVED:
            found.append(Finding(
                "topics", internal_topics.TRANSACTIONS, WARN, "transactions are not served yet",
                "end them in Kafka first: an open transaction blocks read_committed consumers"))
    return found or [Finding("partitions", "", OK, "all of them are in log.dirs")]


def _some(check: str, names: list[str], status: str, what: str, advice: str) -> list[Finding]:
    if not names:
        return []
    shown = ", ".join(sorted(names)[:5]) + (" ..." if len(names) > 5 else "")
    return [Finding(check, shown, status, f"{len(names)} {what}", advice)]


def _is_old(folder: str) -> bool:
    """Return True if the first batch has magic 0 or 1."""
    first = min((name for name in os.listdir(folder) if re.fullmatch(r"\d{20}\.log", name)),
                default=None)
    if first is None:
        return False
    with open(os.path.join(folder, first), "rb") as file:
        head = file.read(batch.MAGIC_AT + 1)
    return len(head) > batch.MAGIC_AT and any(head[:batch.LOG_OVERHEAD]) \
        and head[batch.MAGIC_AT] < 2


# ---- the command -----------------------------------------------------------------------------


def rendered(found: list[Finding], as_json: bool) -> str:
    """Return the output."""
    if as_json:
        import json

        rows: list[dict[str, Any]] = [finding._asdict() for finding in found]
        return json.dumps({"adoptable": is_adoptable(found), "findings": rows})
    lines = []
    for finding in found:
        subject = f" {finding.subject}" if finding.subject else ""
        lines.append(f"{finding.status:<4} {finding.check}{subject}: {finding.detail}")
        if finding.advice:
            lines.append(f"       {finding.advice}")
    lines.append("brokerd opens these directories as they are; Kafka opens them again later"
                 if is_adoptable(found) else "brokerd cannot use these directories yet")
    return "\n".join(lines)


def is_adoptable(found: list[Finding]) -> bool:
    return all(finding.status != FAIL for finding in found)
