"""The first page: brokers, partitions without a leader or with missing replicas, disks.

Owns: nothing.
Invariants: a number that could not be read is shown as missing, never as zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse, Response

from pylog.console.pages import SESSION, Page
from pylog.console.rendering import render

if TYPE_CHECKING:
    from starlette.requests import Request

    from pylog.client.network.cluster_metadata import TopicInfo
    from pylog.console.clusters import ClusterSession

PROBLEMS_SHOWN_MAX = 20


async def overview(request: Request, cluster: ClusterSession) -> Response:
    """Show the state of the cluster."""
    topics = await cluster.admin.list_topics(internal=True)
    described = await cluster.admin.describe_cluster()
    disks = await cluster.attempt("DESCRIBE CLUSTER", cluster.admin.describe_log_dirs)
    groups = await cluster.attempt("DESCRIBE GROUP", cluster.admin.list_groups)
    states: dict[str, int] = {}
    for group in groups.value or ():
        states[group.state] = states.get(group.state, 0) + 1
    return render(
        request, "overview.html", described=described, problems=problems(topics),
        problems_max=PROBLEMS_SHOWN_MAX, topic_count=sum(
            not topic.is_internal for topic in topics.values()),
        partition_count=sum(len(topic.partitions) for topic in topics.values()),
        disks=disks, volumes=_volumes(disks.value or {}), groups=groups, states=states)


def problems(topics: dict[str, TopicInfo]) -> list[tuple[str, int, str]]:
    """Return (topic, partition, problem) of partitions that need attention, the worst first."""
    without_leader, missing = [], []
    for name, topic in topics.items():
        for number, partition in topic.partitions.items():
            if partition.leader < 0:
                without_leader.append((name, number, "no leader"))
            elif len(partition.isr) < len(partition.replicas):
                missing.append((name, number, f"{len(partition.isr)} of {len(partition.replicas)} "
                                              "replicas in sync"))
    return without_leader + missing


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
