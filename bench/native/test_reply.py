"""The minimum range size for sendfile in a Fetch response: REPLY_COPY_BYTES_MAX in response.h.

Measures the sender's CPU for responses of one and of several ranges, copied or sent from the file,
by bench/csrc/reply.c. On a 2-core EPYC, loopback, a single sendfile equals a copy at 32 KiB to 64
KiB; several per response are slower than copies at every size below 128 KiB.
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
