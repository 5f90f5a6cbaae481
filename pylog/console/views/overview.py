"""The first page: brokers, controllers, partitions without a leader or with missing replicas, the
groups with the largest lag, running jobs, disks.

Owns: nothing.
Invariants: a number that could not be read is shown as unknown, never as zero; a part that fails
  does not hide the others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.responses import RedirectResponse, Response

from pylog.client.admin import metadata_quorum
from pylog.client.errors import AuthorizationError, KafkaError
from pylog.config.console_access import NONE
from pylog.console import visible_lags
from pylog.console.groups import lag as group_lag
from pylog.console.pages import SESSION, Page, principals_of
from pylog.console.records.jobs import RUNNING
from pylog.console.rendering import render

if TYPE_CHECKING:
    from starlette.requests import Request

    from pylog.client.admin.admin import Admin
    from pylog.client.network.cluster_metadata import TopicInfo
    from pylog.console.clusters import ClusterSession

PROBLEMS_SHOWN_MAX = 20
LAGS_SHOWN = 5
ANSWER_S = 5.0


class Controller(NamedTuple):
    """A voter of the quorum. state: a text for the page. is_well: False if it needs attention."""

    id: int
    is_active: bool
    state: str
    is_well: bool


async def overview(request: Request, cluster: ClusterSession) -> Response:
    """Show the state of the cluster."""
    admin = cluster.admin
    topics, described = await asyncio.gather(
        admin.list_topics(internal=True), admin.describe_cluster())
    disks, groups, quorum, lags = await asyncio.gather(
        cluster.attempt("DESCRIBE CLUSTER", lambda: _disks(admin)),
        cluster.attempt("DESCRIBE GROUP", lambda: group_lag.listed(admin)),
        cluster.attempt("DESCRIBE CLUSTER (quorum)", lambda: _controllers(admin)),
        cluster.attempt("DESCRIBE GROUP (lags)", lambda: visible_lags.lags(request, cluster)))
    states: dict[str, int] = {}
    for group in groups.value[0] if groups.value else ():
        states[group.state] = states.get(group.state, 0) + 1
    offline, behind = problems(topics)
    top, unknown_lags = lags.value.top(LAGS_SHOWN, topics) if lags.value else ([], 0)
    console = request.app.state.console
    return render(
        request, "overview.html", described=described, offline=offline, behind=behind,
        problems=[*offline, *behind][:PROBLEMS_SHOWN_MAX], problems_max=PROBLEMS_SHOWN_MAX,
        topic_count=sum(not topic.is_internal for topic in topics.values()),
        partition_count=sum(len(topic.partitions) for topic in topics.values()),
        missing_brokers=_missing(topics, {node.id for node in described.nodes}),
        disks=disks, volumes=_volumes(disks.value[0] if disks.value else {}), groups=groups,
        states=states, quorum=quorum, lags=lags, top=top, unknown_lags=unknown_lags,
        is_partial=console.auth != NONE,
        jobs=[job for job in console.jobs.visible(principals_of(request))
              if job.state == RUNNING and job.cluster == cluster.name])


def problems(topics: dict[str, TopicInfo]
             ) -> tuple[list[tuple[str, int, str]], list[tuple[str, int, str]]]:
    """Return (topic, partition, problem) of the partitions without a leader, and of those with too
    few replicas in sync.
    """
    offline, behind = [], []
    for name, topic in topics.items():
        for number, partition in topic.partitions.items():
            if partition.leader < 0:
                offline.append((name, number, "no leader"))
            elif len(partition.isr) < len(partition.replicas):
                behind.append((name, number, f"{len(partition.isr)} of {len(partition.replicas)} "
                                             "replicas in sync"))
    return offline, behind


def _missing(topics: dict[str, TopicInfo], running: set[int]) -> list[int]:
    """Return the brokers that have replicas but do not run."""
    return sorted({number for topic in topics.values() for partition in topic.partitions.values()
                   for number in partition.replicas} - running)


async def _controllers(admin: Admin) -> list[Controller]:
    """Return the voters of the controllers' quorum. Raises KafkaError."""
    row = await metadata_quorum.partition(admin.cluster)
    found = []
    for number, silent_ms in sorted(metadata_quorum.silent_ms(row).items()):
        is_active = number == row.leader_id
        is_well = is_active or silent_ms is not None \
            and silent_ms <= metadata_quorum.SILENT_MS_MAX
        state = "active" if is_active else "has not fetched the metadata yet" \
            if silent_ms is None else "follows" if is_well \
            else f"has fetched nothing for {silent_ms / 1000:.0f} s"
        found.append(Controller(number, is_active, state, is_well))
    return found


async def _disks(admin: Admin) -> tuple[dict[int, Any], dict[int, str]]:
    """Return (the log directories by broker, {broker that did not report them: reason}). Raises
    KafkaError if no broker did.
    """
    try:
        return await admin.describe_log_dirs(timeout=ANSWER_S), {}
    except AuthorizationError:
        raise
    except KafkaError as failure:
        results = failure.results or {}
        found = {node: one for node, one in results.items() if isinstance(one, dict)}
        if not found:
            raise
        return found, {node: group_lag.error_text(one) for node, one in results.items()
                       if isinstance(one, KafkaError)}


def _volumes(disks: dict[int, Any]) -> list[dict[str, Any]]:
    """Return a row for each log directory."""
    return [{"broker": broker, "path": path, "error": directory.error_code,
             "total": directory.total_bytes, "free": directory.usable_bytes,
             "size": sum(replica.size for replica in directory.replicas.values()),
             "replicas": len(directory.replicas)}
            for broker, directories in sorted(disks.items())
            for path, directory in sorted(directories.items())]


async def clusters(request: Request, cluster: None) -> Response:
    """List the clusters of this console, or go to the only one."""
    console = request.app.state.console
    if len(console.clusters) == 1:
        return RedirectResponse("/", 303)
    return render(request, "clusters.html", names=list(console.clusters))


PAGES = [
    Page("/", overview, operations=("DESCRIBE CLUSTER", "DESCRIBE TOPIC", "DESCRIBE GROUP"),
         changes=False, audit=""),
    Page("/clusters", clusters, changes=False, audit="", scope=SESSION),
]
