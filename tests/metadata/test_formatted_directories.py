"""Directories that Kafka's `kafka-storage format` prepared, with and without records after it."""

import asyncio
import os

import pytest

from pylog._native.log.log import LogDir
from pylog.metadata.image import snapshot
from pylog.metadata.log import local_log
from pylog.metadata.log.local_log import LocalLog
from pylog.metadata.log.replica_log import ObservedLog
from pylog.protocol import messages
from tests.metadata.test_service import Started

USER = messages.UserScramCredentialRecord(
    name="alice", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096)


def now_ms():
    return 1_700_000_000_000


def formatted(path, before_4_4: bool, levels) -> None:
    """Write what the tool of Kafka 4.4, or of an earlier version, leaves in a directory."""
    folder = path / "__cluster_metadata-0"
    folder.mkdir(parents=True)
    snapshot.write(str(folder), [*(messages.FeatureLevelRecord(name=name, feature_level=level)
                                   for name, level in levels.items()), USER], 0, 0, now_ms())
    if before_4_4:
        [written] = folder.iterdir()
        os.rename(written, path / local_log.FORMATTED)
        folder.rmdir()


@pytest.mark.parametrize("before_4_4", [False, True])
def test_start_takes_levels_and_users_of_a_formatted_directory(tmp_path, before_4_4):
    levels = {"metadata.version": 25, "transaction.version": 1, "group.version": 1}
    formatted(tmp_path, before_4_4, levels)

    async def run():
        for _ in range(3):
            log = LocalLog(LogDir(str(tmp_path)), None, now_ms)
            image = Started(log).image
            assert image.features == levels
            assert [key[1][0] for key in image.security] == ["alice"]
            # A follower reads the log from its start and gets no snapshot that ends there.
            records = [record for batch in log.read(0) if batch.last_offset >= 0
                       for record in batch.records]
            assert sum(type(record).__name__ == "UserScramCredentialRecord"
                       for record in records) == 1
            log.close()

    asyncio.run(run())


def test_damaged_file_of_the_tool_stops_the_start(tmp_path):
    formatted(tmp_path, True, {"metadata.version": 25})
    file = tmp_path / local_log.FORMATTED
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ValueError):
        list(LocalLog(LogDir(str(tmp_path)), None, now_ms).read(0))


def test_broker_of_another_controller_ignores_the_file_of_the_tool(tmp_path):
    formatted(tmp_path, True, {"metadata.version": 25})
    assert list(ObservedLog(LogDir(str(tmp_path)), None, now_ms).read(0)) == []
