"""Logs opened, copied and let go of while others flush their directory, with the sanitizers."""

import functools
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.native.plain import ENVIRONMENT
from tests.native.test_log_threads import FLAGS, LIBRARIES, ROOT, SOURCES

BUILT = tempfile.TemporaryDirectory(prefix="lifetimes-")
ROUNDS = 60


@functools.cache
def built(sanitizer: str) -> Path:
    program = Path(BUILT.name) / f"log_lifetimes-{sanitizer}"
    sources = [str(path) for name in SOURCES for path in ROOT.glob(f"csrc/*/{name}.c")]
    subprocess.run(
        [*os.environ.get("CC", "gcc").split(), *FLAGS, f"-fsanitize={sanitizer}", "-I",
         str(ROOT / "csrc"), "-o", str(program), str(ROOT / "tests/native/log_lifetimes.c"),
         *sources, *LIBRARIES],
        check=True, env=ENVIRONMENT)
    return program


SCENES = {
    "a_flush_beside_a_recovery_publishes_no_end_that_nobody_knows": "recovered",
    "a_flush_beside_a_copy_publishes_no_end_above_the_copys": "followed",
    "nobody_gets_a_log_that_is_let_go_of": "together",
}


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
@pytest.mark.timeout(300)
def test_lifetimes(tmp_path, sanitizer, scene):
    ran = subprocess.run([str(built(sanitizer)), str(tmp_path / "data"), scene, str(ROUNDS)],
                         capture_output=True, text=True, timeout=120,
                         env={**ENVIRONMENT, "TSAN_OPTIONS": "halt_on_error=1"})
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")
