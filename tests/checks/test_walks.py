from pathlib import PurePath

import pytest

from tests.checks import walks

@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(walks, "NETWORK", "net/reactor.c run\n  ...\n  net/output.c send\n")
    monkeypatch.setattr(walks, "WALKS", {"Fetch": "log/log.c read\n  find\n"})
    monkeypatch.setattr(walks, "MOVES_MAX", {"Fetch": 4})
    return {PurePath("csrc/net/reactor.c"): "void run(void) {\n    read();\n    send();\n}\n",
            PurePath("csrc/net/output.c"): "void send(void) {}\n",
            PurePath("csrc/log/log.c"): "static void find(void) {}\n"
                                        "void read(void) {\n    find();\n}\n"}


def test_moves_count_calls_and_returns_between_files(small):
    assert walks.moves("Fetch") == 4
    assert list(walks.broken(small)) == []


def test_a_lost_call_is_found(small):
    small[PurePath("csrc/net/reactor.c")] = "void run(void) {\n    read();\n}\n"
    assert list(walks.broken(small)) == [
        ("csrc/net/reactor.c", "Fetch: run() does not call send()")]


def test_a_function_that_moved_is_found(small):
    small[PurePath("csrc/net/output.c")] = ""
    assert list(walks.broken(small)) == [("csrc/net/output.c", "Fetch: there is no send()")]


def test_a_longer_walk_is_found(small, monkeypatch):
    monkeypatch.setattr(walks, "MOVES_MAX", {"Fetch": 3})
    assert list(walks.broken(small)) == [("csrc", "Fetch: 4 moves between files, at most 3")]


@pytest.mark.parametrize("walk", walks.WALKS)
def test_limits_are_the_lengths_of_the_walks(walk):
    assert walks.moves(walk) == walks.MOVES_MAX[walk]


def test_steps_of_python_are_looked_up_in_pylog(monkeypatch):
    monkeypatch.setattr(walks, "EVENT_LOOP", "server/queue.py drain\n  ...\n")
    monkeypatch.setattr(walks, "WALKS", {
        "JoinGroup": "*api/groups.py join\n  store.py find\n"
                     "store.py flush\n  api/groups.py sent\n"})
    monkeypatch.setattr(walks, "MOVES_MAX", {"JoinGroup": 6})
    texts = {PurePath("pylog/server/queue.py"): "def drain(): handlers[0]()\n",
             PurePath("pylog/api/groups.py"): "def join(): store.find()\ndef sent(): pass\n",
             PurePath("pylog/store.py"): "def find(): pass\nasync def flush(): sent()\n"}
    assert list(walks.broken(texts)) == [] and walks.moves("JoinGroup") == 6
    texts[PurePath("pylog/api/groups.py")] = "def join(): pass\n"
    assert list(walks.broken(texts)) == [
        ("pylog/api/groups.py", "JoinGroup: join() does not call find()"),
        ("pylog/api/groups.py", "JoinGroup: there is no sent()")]
