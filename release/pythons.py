"""The C headers, and for tests the interpreters, of the Python versions that wheels are for.

Owns: the folder `pythons/` of a cache, with the files of versions that no Debian suite has.
Invariants: a downloaded archive has the recorded checksum.
Source: Debian's libpython3.x-dev. For 3.12, which no suite has, JavaCPP's build of CPython in Maven
Central: it contains a complete installation, and headers of all releases of 3.12 are compatible.
"""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from pathlib import Path

from release.debian import Debian, run
from release.targets import Target

# Version: the Debian suite that has it, or None.
PYTHONS: dict[str, str | None] = {"3.11": "bookworm", "3.12": None, "3.13": "trixie",
                                  "3.14": "forky"}
ARTIFACT = "org.bytedeco:cpython:3.12.1-1.5.10:jar"
# Debian's architecture: the artifact's classifier, and the archive's SHA-256.
ARCHIVES = {
    "amd64": ("linux-x86_64", "a135fcf4dc01adebf7ea439252276fc3196db80f7e0dd3da0b61f1ec489b68bd"),
    "arm64": ("linux-arm64", "4876e6a9eb45c4e2faf7c9f9ef8cb9f16a462c45c3440d4c2e15e6acc8f4e0df"),
}


def include(cache: Path, target: Target, python: str) -> str:
    """Return folders with headers, separated by colons."""
    suite = PYTHONS[python]
    if suite is None:
        return str(unpacked(cache, target) / "include" / f"python{python}")
    debian = Debian(cache, suite, target.architecture)
    folder = debian.unpacked(f"libpython{python}-dev") / "usr" / "include"
    return f"{folder / f'python{python}'}:{folder}"


def unpacked(cache: Path, target: Target) -> Path:
    """Return an installation of Python 3.12 with bin/, include/ and lib/. Downloads it once."""
    classifier, checksum = ARCHIVES[target.architecture]
    made = cache / "pythons" / classifier
    if made.exists():
        return made
    fetched = made.with_name(f"{classifier}.fetched")
    run(["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}:{classifier}",
         f"-DoutputDirectory={fetched}"])
    archive = next(fetched.glob("*.jar"))
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != checksum:
        raise SystemExit(f"{archive}: SHA-256 is {found}, not the recorded {checksum}")
    inside = fetched / "org" / "bytedeco" / "cpython" / classifier
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(fetched, [name for name in opened.namelist()
                                    if name.startswith(f"org/bytedeco/cpython/{classifier}/")])
    for program in (inside / "bin").iterdir():
        program.chmod(0o755)
    inside.rename(made)
    shutil.rmtree(fetched)
    return made
