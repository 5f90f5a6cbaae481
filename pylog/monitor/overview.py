"""The cluster on one page: brokers, partitions with problems, the controllers' quorum.

Owns: nothing.
Invariants: a page is bounded: it lists the first NAMES_MAX partitions of each problem and counts
  all; names are always escaped, so that none is interpreted as markup.
Source: Kafka's UnderReplicatedPartitions, UnderMinIsrPartitionCount, OfflinePartitionsCount.
"""

from __future__ import annotations

from html import escape

from pylog.metadata.image.image import NO_LEADER
from pylog.protocol.counts import counted

TYPE_CHECKING = False  # typing.TYPE_CHECKING would cost the import of typing: 6 ms of a start.
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from pylog.metadata.controller.partitions.partition_change import Rules
    from pylog.metadata.image.image import Image, Partition
    from pylog.metadata.quorum.key_value import MemberState

NAMES_MAX = 50
KINDS = {"offline": "have no leader", "under_min_isr": "refuse acks=all",
         "under_replicated": "are under-replicated", "moving": "are being moved",
         "led_elsewhere": "are not led by their first replica"}
KINDS_SINGULAR = {"offline": "has no leader", "under_min_isr": "refuses acks=all",
                  "under_replicated": "is under-replicated"}
WORRYING = ("offline", "under_min_isr", "under_replicated")
STYLE = ("body{font:15px sans-serif;margin:2em;max-width:70em}td,th{text-align:left;"
         "padding:.2em 1.2em .2em 0;font-weight:normal}th{color:#666}.bad{color:#b00}")


def of_image(image: Image, rules: Rules) -> dict[str, Any]:
    """Return the part of the page that depends on the image. rules: of the image."""
    named: dict[str, list[str]] = {kind: [] for kind in KINDS}
    counts = dict.fromkeys(KINDS, 0)
    leaders, replicas = dict.fromkeys(image.brokers, 0), dict.fromkeys(image.brokers, 0)
    count = 0
    for topic in image.topics.values():
        wanted = rules.min_in_sync(topic.name)
        count += len(topic.partitions)
        for index, state in enumerate(topic.partitions):
            leaders[state.leader] = leaders.get(state.leader, 0) + 1
            for replica in state.replicas:
                replicas[replica] = replicas.get(replica, 0) + 1
            for kind in _kinds(state, wanted):
                counts[kind] += 1
                # The page is bounded: list only the first partitions.
                if len(named[kind]) < NAMES_MAX:
                    named[kind].append(f"{topic.name}-{index}")
    return {
        "offset": image.offset, "epoch": image.epoch, "topics": len(image.topics),
        "partitions": count, **{kind: {"count": counts[kind], "names": named[kind]}
                                for kind in KINDS},
        "brokers": [_broker(image, number, leaders, replicas) for number in sorted(
            replicas.keys() | image.brokers.keys())]}


def _kinds(state: Partition, in_sync_min: int) -> list[str]:
    """Return the problems of a partition."""
    found = {
        "offline": state.leader == NO_LEADER,
        "under_min_isr": state.leader != NO_LEADER
        and len(state.isr) < min(in_sync_min, len(state.replicas)),
        "under_replicated": len(state.isr) < len(state.replicas),
        "moving": bool(state.adding_replicas or state.removing_replicas),
        "led_elsewhere": state.leader not in (NO_LEADER, state.replicas[0])}
    return [kind for kind, is_so in found.items() if is_so]


def _broker(image: Image, number: int, leaders: dict[int, int],
            replicas: dict[int, int]) -> dict[str, Any]:
    broker = image.brokers.get(number)
    state = "unknown" if broker is None else "fenced" if broker.fenced else \
        "stopping" if broker.in_controlled_shutdown else "active"
    return {
        "broker": number, "state": state, "rack": None if broker is None else broker.rack,
        "listeners": [] if broker is None else [
            f"{end.name}://{end.host}:{end.port}" for end in broker.endpoints],
        "leaders": leaders.get(number, 0), "replicas": replicas.get(number, 0),
        "log_dirs": 0 if broker is None else len(broker.directories or ())}


def whole(seen: dict[str, Any], *, controller: int | None, reported_by: int, cluster_id: str,
          followers: list[dict[str, Any]],
          quorum: Sequence[MemberState] | None) -> dict[str, Any]:
    """Return the page's content. seen: from of_image(). controller: None if unknown. followers:
    rows of the brokers that follow this one. quorum: None if this node has none.
    """
    members = None if quorum is None else [member._asdict() for member in quorum]
    found = {"cluster_id": cluster_id, "told_by": reported_by, "controller": controller, **seen,
             "followers": followers, "quorum": members}
    return {**found, "troubles": troubles(found)}


def troubles(found: dict[str, Any]) -> list[str]:
    """Return the problems that need an operator, as sentences, the worst first."""
    lines = []
    if found["controller"] is None:
        lines.append("there is no active controller: metadata cannot change and no leader can be "
                     "elected")
    lines += quorum_troubles(found["quorum"] or ())
    lines += [counted(found[kind]["count"], f"partition {KINDS_SINGULAR[kind]}",
                      f"partitions {KINDS[kind]}") for kind in WORRYING if found[kind]["count"]]
    lines += [f"broker {row['broker']} is {row['state']}: it has replicas of "
              f"{counted(row['replicas'], 'partition')}" for row in found["brokers"]
              if row["state"] in ("fenced", "unknown") and row["replicas"]]
    return lines


def quorum_troubles(members: Sequence[dict[str, Any]]) -> list[str]:
    """Return the problems of the quorum's machines."""
    bad = [row for row in members if not row["answers"]]
    lines = [f"{row['address']} of the quorum cannot be used: {row['reason']}" for row in bad]
    spare = (len(members) - 1) // 2 - len(bad)
    if bad and spare < 0:
        lines.append("the quorum has no majority: metadata cannot change and no leader can be "
                     "elected")
    elif bad and spare == 0:
        lines.append("if one more member fails, metadata cannot change and no leader can be "
                     "elected")
    return lines


# ---- HTML ---------------------------------------------------------------------------------------

def html(found: dict[str, Any]) -> str:
    """Return the page as HTML, with all names escaped."""
    banner = "".join(f'<p class="bad">{escape(line)}</p>' for line in found["troubles"]) \
        or "<p>No problems found.</p>"
    controller = "none" if found["controller"] is None else found["controller"]
    parts = [
        f"<h1>cluster {escape(found['cluster_id'])}</h1>", banner,
        f"<p>As broker {found['told_by']} knows it: controller {controller}, epoch "
        f"{found['epoch']}, metadata up to offset {found['offset']}.</p>",
        "<h2>Brokers</h2>", _table(
            ("broker", "state", "rack", "listeners", "leaders", "replicas", "log_dirs"),
            found["brokers"]),
        f"<h2>Partitions</h2><p>{found['partitions']} of "
        f"{counted(found['topics'], 'topic')}.</p>",
        _table(("partitions", "", "which"), [
            {"partitions": found[kind]["count"], "": text, "which": _named(found[kind])}
            for kind, text in KINDS.items()])]
    if found["quorum"]:
        parts += ["<h2>Quorum of the controllers</h2>", _table(
            ("address", "answers", "leads", "version", "stored_bytes", "seconds", "reason"),
            found["quorum"])]
    if found["followers"]:
        parts += [f"<h2>Followers of broker {found['told_by']}</h2>", _table(
            ("broker", "lag_records", "lag_seconds"), found["followers"])]
    return (f'<!doctype html><meta charset="utf-8"><title>{escape(found["cluster_id"])}</title>'
            f"<style>{STYLE}</style>{''.join(parts)}\n")


def _named(row: dict[str, Any]) -> str:
    more = row["count"] - len(row["names"])
    return ", ".join(row["names"]) + (f" and {more} more" if more else "")


def _table(columns: tuple[str, ...], rows: Sequence[dict[str, Any]]) -> str:
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(_shown(row[name]))}</td>" for name in columns)
                   + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
