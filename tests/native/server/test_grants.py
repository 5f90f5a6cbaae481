"""Grants: ACLs of many principals (grants_units.c), topics by name and id (serve_grants.c).

Also the grants that remain after garbage collection.
"""

import subprocess
import sys

import pytest

from tests.csrc.programs import SANITIZED, built, play_watched

SCENES = {
    "a_topic_has_what_it_was_made_of": "made",
    "each_of_many_topics_is_found_until_it_is_removed": "found",
    "a_full_table_takes_only_what_replaces": "full",
    "changes_are_counted": "changes",
    "nodes_are_replaced_whole": "nodes",
    "without_memory_a_right_takes_anothers_place": "starved",
}
COLLECTED = """
import gc, sys
from pylog._native.server.grants import Grants
from pylog._native.log.log import Log, LogDir

class Holder:
    pass

gc.disable()
directory = LogDir(sys.argv[1], 1)
partition_log = Log.open(directory, "t", 0, bytes(16), None, now_ms=0)
grants = Grants()    # Older than what refers to it, so that the collector clears it first.
holder = Holder()
holder.itself, holder.grants = holder, grants
grants.install("t", bytes(16), [partition_log])
del directory, partition_log, grants, holder
gc.collect()
print("collected")
"""


def test_collected_table_releases_logs_before_their_directories(tmp_path):
    done = subprocess.run([sys.executable, "-c", COLLECTED, str(tmp_path)], capture_output=True,
                          text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "collected\n"), done.stderr


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_grants_of_thousands_of_principals_on_one_topic(sanitizer):
    program = built("grants_units", sanitizer, ("tables/grants.c",))
    ran = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, env=SANITIZED)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_topics(scene):
    play_watched("serve_grants", ("tables/grants.c", "tables/broker_endpoints.c"), scene)
