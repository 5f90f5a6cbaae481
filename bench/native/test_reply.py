"""Which ranges of a Fetch answer are worth a sendfile: csrc/serve/reply.h's REPLY_COPY_BYTES_MAX.

The sender's CPU for answers of one and of several ranges, read into the answer or sent from the
file, by bench/csrc/reply.c. On a 2-core EPYC, loopback, a sendfile is even with a copy at 32 KiB to
64 KiB when it is the only one, and behind it at every size below 128 KiB when there are several.
"""

import json
import subprocess

import pytest

from bench.programs import load_client

ANSWERS = 2000


@pytest.mark.parametrize("ranges", [1, 6])
@pytest.mark.parametrize("range_bytes", [4096, 16384, 32768, 65536, 131072])
@pytest.mark.parametrize("way", ["copy", "sendfile", "share", "splice", "memfd"])
def test_send_ranges(benchmark, tmp_path, way, range_bytes, ranges):
    benchmark.group = f"answer of {ranges} x {range_bytes} B"
    command = [load_client("reply"), way, str(range_bytes), str(ranges), str(ANSWERS),
               str(tmp_path / "file")]
    figures = []

    def run() -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        figures.append(json.loads(done.stdout)["us"])

    benchmark.pedantic(run, rounds=1 if benchmark.disabled else 3)
    benchmark.extra_info["sender CPU us/answer"] = min(figures)
