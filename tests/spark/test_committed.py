import json

import pytest

from spark.committed import LOG, committed


@pytest.fixture
def directory(tmp_path):
    (tmp_path / LOG).mkdir()
    return tmp_path


def noted(directory, name, *files):
    lines = [json.dumps({"path": f"file://{file}", "size": 1, "isDir": False, "action": "add"})
             for file in files]
    (directory / LOG / name).write_text("\n".join(["v1", *lines]))


def test_files_of_committed_batches_count_in_their_order(directory):
    for number in (0, 1, 9, 10):
        noted(directory, str(number), f"/d/part-{number}-a", f"/d/part-{number}-b")
    assert committed(str(directory)) == [
        f"/d/part-{number}-{task}" for number in (0, 1, 9, 10) for task in "ab"]


def test_a_file_that_no_batch_names_does_not_count(directory):
    (directory / "part-0-left-behind").touch()
    noted(directory, "0", "/d/part-0")
    noted(directory, ".1.tmp", "/d/part-1")
    assert committed(str(directory)) == ["/d/part-0"]


def test_compacted_log_replaces_earlier_batches(directory):
    noted(directory, "8", "/d/8")
    noted(directory, "9.compact", "/d/7", "/d/8", "/d/9")
    noted(directory, "10", "/d/10")
    assert committed(str(directory)) == ["/d/7", "/d/8", "/d/9", "/d/10"]


def test_names_are_as_the_file_system_has_them(directory):
    noted(directory, "0", "/my%20files/day=1/part%3A0")
    assert committed(str(directory)) == ["/my files/day=1/part:0"]


def test_a_batch_without_files_and_a_directory_without_batches_have_none(directory, tmp_path):
    noted(directory, "0")
    assert committed(str(directory)) == [] == committed(str(tmp_path / "nowhere"))
