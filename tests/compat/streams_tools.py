"""Kafka's tool for Streams groups, on a group with one member that speaks the protocol directly.

Owns: the member's connection and its thread.
Invariants: the member stays alive until it is stopped, however long the tool takes.
"""

import re
import threading
import time

from tests.wire.messages import ask
from tests.wire.raw import Connection

CLASSES = {"kafka-streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand"}
BEAT, COMMIT, FIND, GROUP = 88, 8, 10, 0
MEMBER, PERIOD_S, JOIN_S, LEAVING = "counter", 1.0, 60.0, -1


class StreamsMember:
    """Owns all tasks of an application that reads one topic."""

    def __init__(self, port: int, group: str, topic: str):
        self._connection = Connection(port, wait_s=60)
        self._group, self._topic = group, topic
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)

    def __enter__(self) -> "StreamsMember":
        topology = {"epoch": 0, "subtopologies": [{
            "subtopology_id": "0", "source_topics": [self._topic], "source_topic_regex": [],
            "repartition_sink_topics": [], "state_changelog_topics": [],
            "repartition_source_topics": [], "copartition_groups": []}]}
        # The first request creates the coordinators.
        ask(self._connection, FIND, 4, coordinator_keys=[self._group], key_type=GROUP)
        end_s = time.monotonic() + JOIN_S
        self._epoch, answer = 0, {}
        # The coordinator may not exist yet, and it assigns tasks after a moment.
        while not answer.get("active_tasks"):
            assert time.monotonic() < end_s, answer
            answer = self._beat(rebalance_timeout=60_000, process_id="one", client_tags=[],
                                topology=None if self._epoch else topology, active_tasks=[],
                                standby_tasks=[], warmup_tasks=[])
            if not answer["error_code"]:
                self._epoch = answer["member_epoch"]
            time.sleep(0.1)
        self._beat(active_tasks=answer["active_tasks"], standby_tasks=[], warmup_tasks=[])
        return self

    def _beat(self, **fields) -> dict:
        return ask(self._connection, BEAT, 0, **{
            "group_id": self._group, "member_id": MEMBER, "member_epoch": self._epoch,
            "endpoint_information_epoch": 0, "rebalance_timeout": -1, **fields})

    def commit(self, offset: int) -> None:
        """Commit an offset of the first partition. From then on a thread sends heartbeats."""
        answer = ask(self._connection, COMMIT, 9, group_id=self._group, member_id=MEMBER,
                     generation_id_or_member_epoch=self._epoch, topics=[{
                         "name": self._topic, "partitions": [{
                             "partition_index": 0, "committed_offset": offset,
                             "committed_metadata": ""}]}])
        assert answer["topics"][0]["partitions"][0]["error_code"] == 0, answer
        self._thread.start()

    def _live(self) -> None:
        while not self._left.wait(PERIOD_S):
            self._beat()

    def __exit__(self, *exception) -> None:
        self._left.set()
        if self._thread.is_alive():
            self._thread.join()
        self._epoch = LEAVING
        self._beat()
        self._connection.close()


def streams_groups(tools, topic: str) -> str:
    tools.fill(topic, 30)
    group = f"{topic}-streams"
    of_group = ("--group", group)

    def run_tool(*arguments, fails=False) -> str:
        return tools.ask("kafka-streams-groups", *arguments, fails=fails)

    with StreamsMember(int(tools.bootstrap.rpartition(":")[2]), group, topic) as member:
        member.commit(1)
        assert group in run_tool("--list").splitlines()
        assert re.search(rf"^{group}\s+Stable", run_tool("--list", "--state"), re.MULTILINE)
        offsets = run_tool("--describe", *of_group, "--verbose")
        assert re.search(rf"^{group}\s+{topic}\s+0\s+1\s", offsets, re.MULTILINE), offsets
        members = run_tool("--describe", *of_group, "--members", "--verbose")
        assert re.search(rf"\s{MEMBER}\s.*\sACTIVE: 0:\[0\];", members), members
        state = run_tool("--describe", *of_group, "--state", "--verbose")
        assert re.search(rf"^{group}\s.*\sStable\s+\d+\s+\d+\s+1\s*$", state, re.MULTILINE), state
    # The tool resets only committed offsets: here, of the topic's only partition.
    moved = run_tool(
        "--reset-offsets", *of_group, "--input-topic", topic, "--to-latest", "--execute")
    assert re.search(rf"^{group}\s+{topic}\s+0\s+30\s*$", moved, re.MULTILINE), moved
    run_tool("--delete-offsets", *of_group, "--input-topic", f"{topic}:0")
    run_tool("--delete", *of_group)
    assert group not in run_tool("--list").splitlines()
    return "list, describe (offsets, members, state), reset-offsets, delete-offsets, delete"


FLOWS = {"kafka-streams-groups": streams_groups}
