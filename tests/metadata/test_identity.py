import random

import pytest

from pylog.log.errors import StartError
from pylog.metadata import controller, identity


def made(tmp_path, *names):
    paths = []
    for name in names:
        path = tmp_path / name
        path.mkdir(exist_ok=True)
        paths.append(str(path))
    return paths


def load(paths, node_id=1, seed=1):
    return identity.load_or_format(paths, node_id, random.Random(seed))


def test_a_first_start_formats_and_later_ones_read(tmp_path):
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


def test_what_kafka_formatted_is_read(tmp_path):
    paths = made(tmp_path, "a")
    directory = controller.random_id(random.Random(5))
    (tmp_path / "a" / "meta.properties").write_text(
        "#\n#Sat Nov 21 05:00:00 UTC 2026\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\n"
        f"directory.id={controller.id_text(directory)}\nnode.id=1\nversion=1\n")
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
