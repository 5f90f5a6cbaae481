"""The log under threads, in C, with sanitizers for races, invalid accesses and leaks."""

import subprocess

import pytest

from tests.csrc.programs import LOG, SANITIZED, built


# Three logs are flushed file by file, forty with one syncfs.
@pytest.mark.parametrize(
    "sanitizer, logs_and_batches",
    [("thread", [(3, 300), (40, 60)]), ("address,undefined", [(3, 600), (40, 100)])],
)
@pytest.mark.timeout(300)
def test_concurrent_appends_reads_waits_and_flushes(tmp_path, sanitizer, logs_and_batches):
    program = built("log_threads", sanitizer, LOG)
    for logs, batches in logs_and_batches:
        data = tmp_path / f"data-{logs}"
        ran = subprocess.run(
            [str(program), str(data), str(batches), str(logs)],
            capture_output=True,
            text=True,
            timeout=120,
            env=SANITIZED,
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")
