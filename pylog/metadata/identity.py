"""Who this broker is: `meta.properties` in each log directory, written at the first start.

Owns: the meta.properties files.
Invariants: (1) all directories of a broker agree on cluster id and node id; (2) a directory keeps
  its id for life; (3) a file is complete or absent: it is renamed into place after it is on disk.
Source: KIP-631, KIP-858 (directory.id).
"""

import os
from collections import namedtuple

from pylog.log.checkpoints import write_whole
from pylog.log.errors import StartError
from pylog.metadata.controller import id_from_text, id_text, random_id

FILE = "meta.properties"
VERSION = "1"

Identity = namedtuple("Identity", ("cluster_id", "node_id", "directories"))
Identity.__doc__ = "cluster_id: 22 characters; directories: path -> 16-byte id."


def cluster_of(paths) -> str | None:
    """The cluster that the directories belong to; None: they are all new. Raises StartError."""
    clusters = {entry["cluster.id"] for entry in map(properties_of, paths) if entry}
    if len(clusters) > 1:
        raise StartError(f"the log directories belong to different clusters: {', '.join(clusters)}")
    return clusters.pop() if clusters else None


def stored_cluster(paths) -> str | None:
    """The cluster of the first of the directories that has one; some may not exist or be readable.
    """
    for path in paths:
        try:
            entry = properties_of(path)
        except (OSError, StartError):
            continue
        if entry:
            return entry["cluster.id"]
    return None


def load_or_format(paths, node_id: int, random, new_cluster_id: str | None = None) -> Identity:
    """The identity that the directories hold; new directories are formatted. Raises StartError.

    new_cluster_id: of the cluster that a new node joins; without it, it begins one.
    """
    cluster_id = cluster_of(paths) or new_cluster_id or id_text(random_id(random))
    found = {path: properties_of(path) for path in paths}
    directories = {}
    for path, entry in found.items():
        if not entry:
            if os.path.exists(os.path.join(path, "__cluster_metadata-0")):
                raise StartError(f"{path} holds a metadata log but no {FILE}: restore that file")
            entry = {"version": VERSION, "cluster.id": cluster_id, "node.id": str(node_id),
                     "directory.id": id_text(random_id(random))}
            _write(path, entry)
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
    """The properties of a directory; empty when it is not formatted yet."""
    try:
        with open(os.path.join(path, FILE), encoding="utf-8") as file:
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
            f"{path}/{FILE} has version {entry.get('version')}, only {VERSION} is read")
    if not entry.get("cluster.id"):
        raise StartError(f"{path}/{FILE} has no cluster.id")
    return entry


def _write(path: str, entry: dict) -> None:
    write_whole(os.path.join(path, FILE),
                "".join(f"{key}={value}\n" for key, value in sorted(entry.items())))
