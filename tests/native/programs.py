"""C programs of this folder, linked with parts of csrc/ and a sanitizer, as processes of their own.
"""

import functools
import os
import subprocess
import tempfile
from pathlib import Path

from tests.native.plain import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
LOG = ("format/*.c", "thread/*.c", "log/*.c")
SERVE = (*LOG, "serve/*.c")
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-pthread", "-fno-omit-frame-pointer"]
LIBRARIES = ["-lisal", "-llz4", "-lzstd", "-lsnappy", "-lz", "-lstdc++"]
# The options that `make asan` and `make tsan` set are for the interpreter.
SANITIZED = {**ENVIRONMENT, "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "",
             "UBSAN_OPTIONS": "print_stacktrace=1"}
BUILT = tempfile.TemporaryDirectory(prefix="programs-")


@functools.cache
def built(name: str, sanitizer: str, parts: tuple[str, ...], *more: str) -> Path:
    """The program `name`.c. sanitizer: as -fsanitize takes it, "" for none. parts: patterns of
    sources below csrc/. more: flags."""
    program = Path(BUILT.name) / f"{name}-{sanitizer}"
    sources = [str(path) for part in parts for path in sorted(ROOT.glob(f"csrc/{part}"))]
    extra = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"] if sanitizer else []
    subprocess.run(
        [*os.environ.get("CC", "gcc").split(), *FLAGS, *extra, *more, "-I", str(ROOT / "csrc"),
         "-o", str(program), str(ROOT / f"tests/native/{name}.c"), *sources, *LIBRARIES],
        check=True, env=ENVIRONMENT)
    return program
