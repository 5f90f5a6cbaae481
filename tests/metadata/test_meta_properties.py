import os
import random

import pytest

from pylog.log.errors import StartError
from pylog.metadata import meta_properties
from pylog.metadata.image import uuids


def made(tmp_path, *names):
    paths = []
    for name in names:
        path = tmp_path / name
        path.mkdir(exist_ok=True)
        paths.append(str(path))
    return paths


def load(paths, node_id=1, seed=1):
    return meta_properties.load_or_format(paths, node_id, random.Random(seed))


def test_first_start_formats_and_later_ones_read(tmp_path):
    paths = made(tmp_path, "a", "b")
    first = load(paths)
    assert len(first.cluster_id) == 22
    assert len(set(first.directories.values())) == 2
    assert load(paths, seed=2) == first
    text = (tmp_path / "a" / "meta.properties").read_text()
    assert set(line.partition("=")[0] for line in text.splitlines()) \
        == {"version", "cluster.id", "node.id", "directory.id"}


def test_a_directory_added_later_joins_the_cluster(tmp_path):
    first = load(made(tmp_path, "a"))
    both = load(made(tmp_path, "a", "b"), seed=2)
    assert both.cluster_id == first.cluster_id
    assert both.directories[str(tmp_path / "a")] == first.directories[str(tmp_path / "a")]


def test_directory_formatted_by_kafka_is_read(tmp_path):
    paths = made(tmp_path, "a")
    directory = uuids.random_id(random.Random(5))
    (tmp_path / "a" / "meta.properties").write_text(
        "#\n#Sat Nov 21 05:00:00 UTC 2026\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\n"
        f"directory.id={uuids.id_text(directory)}\nnode.id=1\nversion=1\n")
    found = load(paths)
    assert found.cluster_id == "MkU3OEVBNTcwNTJENDM2Qk"
    assert found.directories == {paths[0]: directory}


@pytest.mark.parametrize("change", [
    ("node.id=1", "node.id=2"), ("version=1", "version=0"), ("directory.id=", "directory.id=!"),
    ("cluster.id=", "cluster.name=")])
def test_a_file_that_does_not_fit_stops_the_start(tmp_path, change):
    paths = made(tmp_path, "a")
    load(paths)
    file = tmp_path / "a" / "meta.properties"
    file.write_text(file.read_text().replace(*change))
    with pytest.raises(StartError):
        load(paths)


def test_directories_of_two_clusters_do_not_go_together(tmp_path):
    load(made(tmp_path, "a"))
    load(made(tmp_path, "b"), seed=2)
    with pytest.raises(StartError, match="different clusters"):
        load(made(tmp_path, "a", "b"))


def test_a_metadata_log_without_its_identity_stops_the_start(tmp_path):
    paths = made(tmp_path, "a")
    (tmp_path / "a" / "__cluster_metadata-0").mkdir()
    with pytest.raises(StartError, match="meta.properties"):
        load(paths)


KNOWN = meta_properties.Membership("c" * 22, 2, "1@a:1,2@b:1,3@c:1", 7)


def test_directory_of_another_cluster_is_rejected(tmp_path):
    path = str(tmp_path)
    assert meta_properties.membership_of(path) is None
    meta_properties.check_alone([path])
    meta_properties.write_membership(path, KNOWN)
    assert meta_properties.membership_of(path) == KNOWN
    with pytest.raises(StartError, match="belongs to cluster ccc.*1@a:1,2@b:1,3@c:1 .epoch 7.*"
                                         "brokerd detach"):
        meta_properties.check_alone([path])


def test_damaged_membership_is_an_error(tmp_path):
    (tmp_path / meta_properties.MEMBERSHIP).write_text("version=1\ncluster.id=x\n")
    with pytest.raises(StartError, match="is damaged"):
        meta_properties.membership_of(str(tmp_path))


@pytest.mark.parametrize("holder", ["a", "b"])
def test_membership_in_any_directory_prevents_a_separate_history(tmp_path, holder):
    paths = made(tmp_path, "a", "b")
    meta_properties.write_membership(str(tmp_path / holder), KNOWN)
    assert meta_properties.membership_in(paths) == KNOWN
    with pytest.raises(StartError, match=f"{holder} belongs to cluster ccc.*brokerd detach"):
        meta_properties.check_alone(paths)


def test_newest_of_differing_memberships_counts(tmp_path):
    paths = made(tmp_path, "a", "b")
    meta_properties.write_membership(paths[0], KNOWN)
    newer = KNOWN._replace(voters="1@a:1,2@b:1,4@d:1", epoch=9)
    meta_properties.write_membership(paths[1], newer)
    assert meta_properties.membership_in(paths) == newer


@pytest.mark.parametrize("changed", [{"cluster_id": "d" * 22}, {"node_id": 3}])
def test_conflicting_memberships_refuse_the_start(tmp_path, changed):
    paths = made(tmp_path, "a", "b")
    meta_properties.write_membership(paths[0], KNOWN)
    meta_properties.write_membership(paths[1], KNOWN._replace(**changed))
    for use in (meta_properties.membership_in, meta_properties.check_alone,
                meta_properties.permit_founding):
        with pytest.raises(StartError, match="a to node 2 of cluster ccc.*b to node . of"):
            use(paths)


def test_founding_is_permitted_only_if_every_membership_permits_it(tmp_path):
    paths = made(tmp_path, "a", "b", "c")
    for path in paths[:2]:
        meta_properties.write_membership(path, KNOWN)
    assert meta_properties.permit_founding(paths) == KNOWN.cluster_id
    assert meta_properties.membership_in(paths).change == meta_properties.FOUNDING
    meta_properties.write_membership(paths[0], KNOWN._replace(epoch=6))
    assert meta_properties.membership_in(paths).change == ""


@pytest.mark.parametrize("crash", [False, True])
def test_node_that_leaves_its_cluster_gets_a_new_cluster_id(tmp_path, crash, monkeypatch):
    paths = [str(tmp_path / name) for name in ("a", "b")]
    for path in paths:
        os.mkdir(path)
    before = meta_properties.load_or_format(paths, 2, random.Random(1), KNOWN.cluster_id)
    for path in paths:
        meta_properties.write_membership(path, KNOWN)
    os.makedirs(tmp_path / "a" / "etcd" / "member")
    if crash:
        def fail(path, entry, write=meta_properties._write):
            if path == os.path.join(paths[1], meta_properties.FILE):
                raise OSError("the power went")
            write(path, entry)
        with monkeypatch.context() as patch:
            patch.setattr(meta_properties, "_write", fail)
            with pytest.raises(OSError):
                meta_properties.detach(paths, random.Random(2))
        with pytest.raises(StartError, match="belongs to cluster"):
            meta_properties.check_alone(paths)
    new = meta_properties.detach(paths, random.Random(3))
    meta_properties.check_alone(paths)
    after = meta_properties.load_or_format(paths, 2, random.Random(4))
    assert after == before._replace(cluster_id=new) and new != KNOWN.cluster_id
    assert os.listdir(tmp_path / "a" / f"etcd.{KNOWN.cluster_id}") == ["member"]
    with pytest.raises(StartError, match="belongs to no cluster"):
        meta_properties.detach(paths, random.Random(5))


def test_leaving_twice_keeps_the_etcd_data_of_the_first_time(tmp_path):
    path = str(tmp_path)
    for number in range(3):
        meta_properties.write_membership(path, KNOWN)
        os.makedirs(tmp_path / "etcd" / "member" / str(number))
        meta_properties.detach([path], random.Random(number))
    assert {name: os.listdir(tmp_path / name / "member") for name in os.listdir(path)
            if name.startswith("etcd")} == {
        f"etcd.{KNOWN.cluster_id}{suffix}": [str(number)]
        for number, suffix in enumerate(("", ".2", ".3"))}


def test_new_directory_inherits_the_nodes_membership(tmp_path):
    paths = made(tmp_path, "a", "b", "other node", "other cluster", "empty")
    meta_properties.load_or_format(paths[:2], KNOWN.node_id, random.Random(1), KNOWN.cluster_id)
    meta_properties.load_or_format([paths[2]], 3, random.Random(2), KNOWN.cluster_id)
    meta_properties.load_or_format([paths[3]], KNOWN.node_id, random.Random(3), "d" * 22)
    meta_properties.complete_memberships(paths)
    assert list(map(meta_properties.membership_of, paths)) == [None] * 5
    meta_properties.write_membership(paths[0], KNOWN)
    meta_properties.complete_memberships(paths)
    assert list(map(meta_properties.membership_of, paths)) == [KNOWN, KNOWN, None, None, None]


@pytest.mark.parametrize("name", ["__cluster_metadata-0", "etcd/member"])
def test_metadata_outside_the_first_directory_stops_the_start(tmp_path, name):
    first, second = made(tmp_path, "a", "b")
    meta_properties.check_first([first, second])
    os.makedirs(os.path.join(second, name))
    with pytest.raises(StartError, match=f"is in {second}/{name}, and log.dirs begins with {first}"
                                         f": begin log.dirs with {second}"):
        meta_properties.check_first([first, second])
    meta_properties.check_first([second, first])
    os.makedirs(os.path.join(first, name))
    meta_properties.check_first([first, second])
