"""Explain the state of a partition's replicas: collect the facts, then derive sentences.

Owns: nothing.
Invariants: the sentences are a function of the facts; a fact that could not be read is None, and no
  sentence depends on it.
Source: KIP-966 (eligible leader replicas), KIP-827 (offset lag in DescribeLogDirs).
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from pylog.client.network.cluster import Cluster
from pylog.client.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError
from pylog.protocol.counts import counted
from pylog.protocol import messages
from pylog.protocol.errors import ErrorCode
from pylog.tools.cli import cluster_queries, config_resources
from pylog.tools.cli.session import ToolError

SAMPLE_S = 1.0
_SILENT = {int(ErrorCode.REQUEST_TIMED_OUT), int(ErrorCode.NOT_CONTROLLER)}


class Facts(NamedTuple):
    """The facts about one partition. lags: broker -> records that its replica lacks, None if the
    broker did not respond. gains: broker -> records per second that it catches up. alive: brokers
    that the cluster lists. unreachable: of these, broker -> reason. eligible, last_known: replicas
    that may become leader though they are not in sync, None if the cluster does not report them.
    adding, removing: replicas of a move in progress. unconfirmed: why the active controller did not
    respond; the rest may then be outdated.
    """

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    alive: frozenset[int]
    offline: tuple[int, ...] = ()
    eligible: tuple[int, ...] | None = None
    last_known: tuple[int, ...] | None = None
    in_sync_min: int | None = None
    lags: dict[int, int | None] = {}
    gains: dict[int, float] = {}
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    unreachable: dict[int, str] = {}
    unconfirmed: str = ""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


def sentences(facts: Facts) -> list[str]:
    """Return sentences: the partition's state first, then the causes, then what to do."""
    if facts.leader < 0:
        return [f"{facts.name} is offline: it has no leader, so produce and fetch fail.",
                *_why_no_leader(facts)]
    missing = [replica for replica in facts.replicas if replica not in facts.isr]
    silent = [replica for replica in facts.replicas
              if replica in facts.unreachable and replica not in missing]
    found = []
    if silent and not missing:
        found.append(f"{facts.name} is led, according to the metadata, by broker {facts.leader} "
                     f"with all "
                     f"{counted(len(facts.replicas), 'replica')} in sync, but not every broker "
                     "answers.")
    elif not missing and facts.unconfirmed:
        found.append(f"{facts.name} counts as led by broker {facts.leader} with all "
                     f"{counted(len(facts.replicas), 'replica')} in sync, but that may be "
                     "outdated.")
    elif not missing:
        count = len(facts.replicas)
        found.append(f"{facts.name} is healthy: led by broker {facts.leader}, "
                     + (f"all {count} replicas in sync." if count > 1 else "its only replica."))
    else:
        found.append(f"{facts.name} is under-replicated: led by broker {facts.leader}, "
                     f"{_brokers(missing)} not in sync.")
        found += [_why_not_in_sync(facts, replica) for replica in missing]
    found += [_does_not_answer(facts, replica) for replica in silent]
    if facts.unconfirmed:
        found.append(f"The active controller does not answer ({facts.unconfirmed}): connect to "
                     "another broker, or look at the controllers' logs.")
    if facts.leader in facts.unreachable:
        found.append("Produce and fetch fail until the controller elects another leader, after "
                     "the broker's session has expired.")
    if facts.adding or facts.removing:
        found.append(f"It is being moved: {_moved(facts)}.")
    if facts.in_sync_min is not None and len(facts.isr) < min(
            facts.in_sync_min, len(facts.replicas)):
        found.append(f"Producers with acks=all are refused: {len(facts.isr)} in sync, "
                     f"min.insync.replicas={facts.in_sync_min}.")
    if facts.replicas and facts.leader != facts.replicas[0] and facts.replicas[0] in facts.isr:
        found.append(f"Broker {facts.replicas[0]} should lead it, and will after the next "
                     "rebalance of leaders.")
    return found


def _why_no_leader(facts: Facts) -> list[str]:
    may_lead = list(dict.fromkeys([*facts.isr, *(facts.eligible or ())]))
    if may_lead:
        gone = [broker for broker in may_lead
                if broker not in facts.alive or broker in facts.unreachable]
        if gone:
            return [f"{_brokers(gone, 'has', 'have')} every acknowledged record and "
                    f"{'is' if len(gone) == 1 else 'are'} not there: start "
                    f"{'it' if len(gone) == 1 else 'any one of them'}."]
        return [f"{_brokers(may_lead)} running but does not serve it: check its log for an "
                f"offline log directory." if len(may_lead) == 1 else
                f"{_brokers(may_lead)} running but do not serve it: check for offline log "
                f"directories."]
    known = [broker for broker in facts.last_known or () if broker in facts.alive]
    also = f" Broker {known[0]} led it last." if known else ""
    return ["No replica is known to have every acknowledged record. Start the brokers that have "
            f"replicas ({', '.join(map(str, facts.replicas))}); an unclean election loses the "
            f"records that the new leader lacks.{also}"]


def _why_not_in_sync(facts: Facts, replica: int) -> str:
    if replica not in facts.alive:
        return f"Broker {replica} is not running, or was fenced: start it, or check its log."
    if replica in facts.unreachable:
        # Its replicas count as offline too, until its session expires.
        return _does_not_answer(facts, replica)
    if replica in facts.offline:
        return f"Broker {replica} cannot use the log directory of this replica."
    lag = facts.lags.get(replica)
    if lag is None:
        return f"Broker {replica} does not report its position."
    if lag == 0:
        return f"Broker {replica} has caught up and is about to be in sync."
    behind = f"Broker {replica} is {counted(lag, 'record')} behind"
    gain = facts.gains.get(replica)
    if gain is None:
        return f"{behind}: it is catching up, or its disk or network is slow."
    if gain < 1:
        return (f"{behind} and does not catch up: its disk or network is slow, it is throttled, "
                f"or its log shows an error.")
    return f"{behind} and gains {gain:.0f} a second: in sync in about {lag / gain:.0f} s."


def _does_not_answer(facts: Facts, replica: int) -> str:
    return (f"Broker {replica} does not respond ({facts.unreachable[replica]}): start it, or "
            f"check its log.")


def _moved(facts: Facts) -> str:
    parts = []
    if facts.adding:
        parts.append(f"{_brokers(list(facts.adding), 'gets', 'get')} a replica")
    if facts.removing:
        parts.append(f"{_brokers(list(facts.removing), 'gives', 'give')} theirs up then")
    return ", ".join(parts)


def _brokers(numbers: list[int], one: str = "is", more: str = "are") -> str:
    if len(numbers) == 1:
        return f"broker {numbers[0]} {one}"
    return f"brokers {', '.join(map(str, numbers))} {more}"


# ---- queries ------------------------------------------------------------------------------------

async def facts_of(cluster: Cluster, topic: str, partition: int) -> Facts:
    """Return the input of sentences(). Raises ToolError."""
    info = (await cluster_queries.topics(cluster, [topic]))[0].partitions.get(partition)
    if info is None:
        raise ToolError(f"topic {topic} has no partition {partition}")
    row, (lags, unreachable), in_sync_min, moving = await asyncio.gather(
        _described(cluster, topic, partition), _lags(cluster, topic, partition),
        _in_sync_min(cluster, topic), _moving(cluster, topic, partition))
    behind = [replica for replica in info.replicas if replica not in info.isr and lags.get(replica)]
    gains = await _gains(cluster, topic, partition, lags) if behind else {}
    return Facts(
        topic, partition, info.leader, info.replicas, info.isr, frozenset(cluster.metadata.nodes),
        info.offline_replicas, None if row is None else _numbers(row.eligible_leader_replicas),
        None if row is None else _numbers(row.last_known_elr), in_sync_min, lags, gains,
        *moving[:2], unreachable, moving[2])


def _numbers(found: Any) -> tuple[int, ...]:
    return tuple(found or ())


async def _described(cluster: Cluster, topic: str, partition: int) -> Any:
    """Return the partition's row in DescribeTopicPartitions, None if the broker lacks that API."""
    new = messages.DescribeTopicPartitionsRequest
    try:
        response = await cluster.send_any(new(
            topics=[new.TopicRequest(name=topic)], response_partition_limit=1,
            cursor=new.Cursor(topic_name=topic, partition_index=partition)))
    except KafkaError:
        return None
    return next((row for found in response.topics for row in found.partitions
                 if row.partition_index == partition), None)


async def _lags(cluster: Cluster, topic: str, partition: int
                ) -> tuple[dict[int, int | None], dict[int, str]]:
    """Return (lags, unreachable) for Facts."""
    new = messages.DescribeLogDirsRequest

    async def query(node: int) -> int | None:
        response = await cluster.send(node, new(topics=[
            new.DescribableLogDirTopic(topic=topic, partitions=[partition])]))
        return next((part.offset_lag for row in response.results for found in row.topics
                     for part in found.partitions if not part.is_future_key), None)

    nodes = sorted(cluster.metadata.nodes)
    ended = await asyncio.gather(*map(query, nodes), return_exceptions=True)
    return ({node: None if isinstance(found, BaseException) else found
             for node, found in zip(nodes, ended)},
            {node: str(found) for node, found in zip(nodes, ended)
             if isinstance(found, (KafkaConnectionError, KafkaTimeoutError))})


async def _gains(cluster: Cluster, topic: str, partition: int, before: dict[int, int | None]
                 ) -> dict[int, float]:
    """Return by how many records per second each replica catches up with its leader."""
    await asyncio.sleep(SAMPLE_S)
    after, _ = await _lags(cluster, topic, partition)
    return {node: (lag - left) / SAMPLE_S for node, lag in before.items()
            if lag is not None and (left := after.get(node)) is not None}


async def _moving(cluster: Cluster, topic: str, partition: int
                  ) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """Return (replicas being added, replicas being removed) by a move in progress, and why the
    active controller did not respond.
    """
    new = messages.ListPartitionReassignmentsRequest
    try:
        response = await cluster.send_any(new(topics=[new.ListPartitionReassignmentsTopics(
            name=topic, partition_indexes=[partition])]))
    except (KafkaConnectionError, KafkaTimeoutError) as error:
        return (), (), str(error)
    except KafkaError:
        return (), (), ""
    for found in response.topics:
        for row in found.partitions:
            if row.partition_index == partition:
                return _numbers(row.adding_replicas), _numbers(row.removing_replicas), ""
    return (), (), _silence(response)


async def controller_silence(cluster: Cluster) -> str:
    """Return why the active controller does not respond through a broker, "" if it does.

    A broker without a controller reports its last metadata, which may be outdated.
    """
    try:
        return _silence(await cluster.send_any(
            messages.ListPartitionReassignmentsRequest(topics=[])))
    except (KafkaConnectionError, KafkaTimeoutError) as error:
        return str(error)
    except KafkaError:
        return ""  # This cluster does not serve the request.


def _silence(response: Any) -> str:
    return cluster_queries.error_name(response.error_code) if response.error_code in _SILENT else ""


async def _in_sync_min(cluster: Cluster, topic: str) -> int | None:
    try:
        rows = await config_resources.described(
            cluster, config_resources.TOPIC, topic, ["min.insync.replicas"])
    except (ToolError, KafkaError):
        return None
    return int(rows[0]["value"]) if rows and rows[0]["value"] else None
