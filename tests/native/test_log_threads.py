"""The log under threads, in C, with the sanitizers that see races, stray reads and leaks."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.native.plain import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    "batch",
    "records",
    "recode",
    "compress",
    "deflate",
    "crc32c",
    "mailbox",
    "slices",
    "iopool",
    "index",
    "epochs",
    "producers",
    "segment",
    "segment_index",
    "log_dir",
    "log_witness",
    "witness",
    "log_open",
    "log_recover",
    "log_walk",
    "log_producers",
    "log_aborted",
    "log_role",
    "log_append",
    "cold",
    "log_read",
    "log_lookup",
    "log_upkeep",
    "log_flush",
    "flusher",
    "log_settle",
    "log_wait",
    "disk",
    "mapped",
    "log_move",
    "keymap",
    "clean",
    "clean_source",
    "log_clean",
    "log_damage",
    "log_swap",
]
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-pthread", "-fno-omit-frame-pointer"]
LIBRARIES = ["-lisal", "-llz4", "-lzstd", "-lsnappy", "-lz", "-lstdc++"]


# Three logs are flushed file by file, forty with one syncfs.
@pytest.mark.parametrize(
    "sanitizer, logs_and_batches",
    [("thread", [(3, 300), (40, 60)]), ("address,undefined", [(3, 600), (40, 100)])],
)
@pytest.mark.timeout(300)
def test_appends_reads_waits_and_flushes_at_once_are_clean(tmp_path, sanitizer, logs_and_batches):
    program = tmp_path / "log_threads"
    sources = [str(path) for name in SOURCES for path in ROOT.glob(f"csrc/*/{name}.c")]
    cc = os.environ.get("CC", "gcc").split()
    subprocess.run(
        [
            *cc,
            *FLAGS,
            f"-fsanitize={sanitizer}",
            "-I",
            str(ROOT / "csrc"),
            "-o",
            str(program),
            str(ROOT / "tests/native/log_threads.c"),
            *sources,
            *LIBRARIES,
        ],
        check=True,
        env=ENVIRONMENT,
    )
    for logs, batches in logs_and_batches:
        data = tmp_path / f"data-{logs}"
        ran = subprocess.run(
            [str(program), str(data), str(batches), str(logs)],
            capture_output=True,
            text=True,
            timeout=120,
            env=ENVIRONMENT,
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")
