"""This broker's identity: `meta.properties` in each log directory, written at the first start.

Owns: the meta.properties files; `cluster.properties` in every log directory of a node that has
  other nodes as controllers too.
Invariants: all directories of a broker agree on cluster id and node id; a directory never changes
  its id; a file is complete or absent: it is renamed into place after it is on disk.
no separate history: a directory that belongs to a cluster does not run alone under its cluster's
  id, because the other nodes continue without it. Every directory stores the membership, so that
  reordering log.dirs or replacing a disk cannot hide it.
metadata in the first directory: a node whose metadata is in another directory does not start an
  empty copy beside it.
Source: KIP-631, KIP-858 (directory.id).
"""

import os
from collections import namedtuple

from pylog.log.checkpoint_files import free_name, sync_directory, write_whole
from pylog.log.errors import StartError
from pylog.log.startup_scan import METADATA_PARTITION
from pylog.metadata.image.uuids import id_from_text, id_text, random_id

FILE = "meta.properties"
MEMBERSHIP = "cluster.properties"
VERSION = "1"
ETCD = "etcd"
# In the first of log.dirs only: the metadata log, and the data of this host's etcd member.
IN_FIRST = (METADATA_PARTITION, os.path.join(ETCD, "member"))

Identity = namedtuple("Identity", ("cluster_id", "node_id", "directories"))
Identity.__doc__ = "cluster_id: 22 characters; directories: path -> 16-byte id."


Membership = namedtuple("Membership", ("cluster_id", "node_id", "voters", "epoch", "change"),
                        defaults=("",))
Membership.__doc__ = """The cluster membership stored in a directory.

voters: controller.quorum.voters. epoch: of the newest known controller. change: DETACHING
or FOUNDING with the change that an operator has permitted, or "".
"""
# Followed by the new cluster's id, until every directory has it.
DETACHING = "detach:"
# The node may start an empty quorum with its own metadata.
FOUNDING = "found"


def membership_of(path: str) -> Membership | None:
    """Return the directory's membership, None if it belongs to no cluster of several nodes. Raises
    StartError.
    """
    entry = _properties(os.path.join(path, MEMBERSHIP))
    if not entry:
        return None
    try:
        return Membership(entry["cluster.id"], int(entry["node.id"]), entry["voters"],
                          int(entry["epoch"]), entry.get("change", ""))
    except (KeyError, ValueError):
        raise StartError(f"{path}/{MEMBERSHIP} is damaged: restore that file") from None


def write_membership(path: str, found: Membership) -> None:
    """Store a membership in a directory. Raises OSError."""
    _write(os.path.join(path, MEMBERSHIP), {
        "version": VERSION, "cluster.id": found.cluster_id, "node.id": str(found.node_id),
        "voters": found.voters, "epoch": str(found.epoch), "change": found.change})


def membership_in(paths) -> Membership | None:
    """Return the newest membership in the directories, None without any.

    The directories may differ in `voters` and `epoch` after a crash. `change` is FOUNDING only if
    every stored membership permits it. Raises StartError if one is damaged or they conflict.
    """
    found = {path: stored for path in paths if (stored := membership_of(path)) is not None}
    if not found:
        return None
    owners = {(stored.cluster_id, stored.node_id) for stored in found.values()}
    if len(owners) > 1:
        raise StartError(
            "the log directories belong to different nodes: " + ", ".join(
                f"{path} to node {stored.node_id} of cluster {stored.cluster_id}"
                for path, stored in found.items())
            + f". Set log.dirs to the directories of one node. The file {MEMBERSHIP} in each "
            "directory names its node")
    newest = max(found.values(), key=lambda stored: stored.epoch)
    changes = {stored.change for stored in found.values()}
    detaching = next((change for change in changes if change.startswith(DETACHING)), None)
    return newest._replace(change=detaching or (FOUNDING if changes == {FOUNDING} else ""))


def _change_membership(paths, found: Membership) -> list[str]:
    """Overwrite the stored memberships; return the paths of the directories that have one."""
    members = [path for path in paths if membership_of(path) is not None]
    for path in members:
        write_membership(path, found)
    return members


def complete_memberships(paths) -> None:
    """Store the node's membership in its other directories. Raises StartError, OSError.

    Versions that stored it in the first directory only left them without one. The identity in
    meta.properties proves that a directory belongs to the same node.
    """
    found = membership_in(paths)
    if found is None:
        return
    owner = found.cluster_id, str(found.node_id)
    for path in paths:
        entry = properties_of(path)
        if (entry.get("cluster.id"), entry.get("node.id")) == owner and membership_of(path) is None:
            write_membership(path, found)


def check_first(paths) -> None:
    """Raise StartError if another directory than the first holds the node's metadata: "metadata in
    the first directory". paths: of the usable directories, in the order of log.dirs.
    """
    first, *others = paths
    for name in IN_FIRST:
        if os.path.isdir(os.path.join(first, name)):
            continue
        for path in others:
            hidden = os.path.join(path, name)
            if os.path.isdir(hidden):
                raise StartError(
                    f"the metadata of this node is in {hidden}, and log.dirs begins with {first}: "
                    f"begin log.dirs with {path}. If that data is obsolete, move {hidden} away")


def check_alone(paths) -> None:
    """Raise StartError if a directory belongs to a cluster: "no separate history"."""
    found = membership_in(paths)
    if found is not None:
        path = next(path for path in paths if membership_of(path) is not None)
        raise StartError(
            f"{path} belongs to cluster {found.cluster_id} with the controllers {found.voters} "
            f"(epoch {found.epoch}), but this start configures no other node: start it with the "
            "cluster's settings (--cluster, or process.roles and controller.quorum.voters). To "
            "leave that cluster and run alone under a new cluster id, run: brokerd detach")


def cluster_of(paths) -> str | None:
    """Return the cluster id of the directories, None if all are new. Raises StartError."""
    clusters = {entry["cluster.id"] for entry in map(properties_of, paths) if entry}
    if len(clusters) > 1:
        raise StartError(f"the log directories belong to different clusters: {', '.join(clusters)}")
    return clusters.pop() if clusters else None


def stored_cluster(paths) -> str | None:
    """Return the cluster id of the first readable directory that has one, None without any."""
    for path in paths:
        try:
            entry = properties_of(path)
        except (OSError, StartError):
            continue
        if entry:
            return entry["cluster.id"]
    return None


def load_or_format(paths, node_id: int, random, new_cluster_id: str | None = None) -> Identity:
    """Return the identity in the directories; format new ones. Raises StartError.

    new_cluster_id: of the cluster that a new node joins; without it, a new cluster gets a random
    id.
    """
    cluster_id = cluster_of(paths) or new_cluster_id or id_text(random_id(random))
    found = {path: properties_of(path) for path in paths}
    directories = {}
    for path, entry in found.items():
        if not entry:
            if os.path.exists(os.path.join(path, METADATA_PARTITION)):
                raise StartError(f"{path} holds a metadata log but no {FILE}: restore that file")
            entry = {"version": VERSION, "cluster.id": cluster_id, "node.id": str(node_id),
                     "directory.id": id_text(random_id(random))}
            _write(os.path.join(path, FILE), entry)
        if entry.get("node.id") != str(node_id):
            raise StartError(f"{path} belongs to node.id {entry.get('node.id')}, not to {node_id}")
        try:
            directories[path] = id_from_text(entry["directory.id"])
        except (KeyError, ValueError):
            raise StartError(f"{path}/{FILE} has no valid directory.id") from None
    if len(set(directories.values())) < len(directories):
        raise StartError(f"two log directories have one directory.id: {', '.join(directories)}")
    return Identity(cluster_id, node_id, directories)


def properties_of(path: str) -> dict:
    """Return the properties of a directory, empty if it is not formatted yet. Raises StartError."""
    entry = _properties(os.path.join(path, FILE))
    if entry and not entry.get("cluster.id"):
        raise StartError(f"{path}/{FILE} has no cluster.id")
    return entry


def _properties(path: str) -> dict:
    """Return the properties in a file, empty without a file. Raises StartError."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return {}
    entry = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            entry[key.strip()] = value.strip()
    if entry.get("version") != VERSION:
        raise StartError(
            f"{path} has version {entry.get('version')}, only {VERSION} is read")
    return entry


def _write(path: str, entry: dict) -> None:
    write_whole(path, "".join(f"{key}={value}\n" for key, value in sorted(entry.items())))


def detach(paths, random) -> str:
    """Turn the directories of a cluster's member into a standalone node's, under a new cluster id,
    which is returned. Can be repeated after a crash. Raises StartError, OSError.
    """
    found = membership_in(paths)
    if found is None:
        raise StartError(f"{', '.join(paths)} belongs to no cluster of several nodes: it already "
                         f"runs alone")
    new = found.change.removeprefix(DETACHING) if found.change.startswith(DETACHING) \
        else id_text(random_id(random))
    members = _change_membership(paths, found._replace(change=DETACHING + new))
    for path in paths:
        etcd = os.path.join(path, ETCD)
        if os.path.isdir(etcd):
            # The etcd member's data is useless to a standalone node, but it is not ours to delete.
            os.rename(etcd, free_name(f"{etcd}.{found.cluster_id}"))
    for path in paths:
        entry = properties_of(path)
        if entry:
            _write(os.path.join(path, FILE), entry | {"cluster.id": new})
    for path in members:
        os.unlink(os.path.join(path, MEMBERSHIP))
        sync_directory(path)
    return new


def permit_founding(paths) -> str:
    """Permit the node to start an empty quorum with its own metadata; return the cluster id. Raises
    StartError, OSError.
    """
    found = membership_in(paths)
    if found is None:
        raise StartError(f"{', '.join(paths)} belongs to no cluster of several nodes: nothing "
                         "needs to be permitted")
    _change_membership(paths, found._replace(change=FOUNDING))
    return found.cluster_id
