"""Scenes of C programs (scene_names.h), each as a separate process."""

import re
import subprocess
from pathlib import Path

from tests.csrc.programs import SANITIZED, source_of


def names(program: str) -> list[str]:
    """Return the names of all scenes of a program."""
    return re.findall(r"^SCENE\((\w+)\)", source_of(program).read_text(), re.MULTILINE)


def play(made: Path, scene: str) -> None:
    """Run a scene, which must succeed."""
    ran = subprocess.run([str(made), scene], capture_output=True, text=True, timeout=120,
                         env=SANITIZED)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", ""), ran.stderr[-4000:]
