"""Build files of dist/ again and compare their hashes: `make release-check`.

    python -m release.reproduce                            the sdist and one wheel of each target
    python -m release.reproduce dist/pylog_broker-0.1.0-cp311-*.whl

Owns: build/again/, which has nothing in common with the first build except the libraries.
Invariants: compilers run again for every file; a difference names the files inside the archive.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

from release import wheels
from release.targets import TARGETS
from release.wheels import DIST, ROOT

AGAIN = ROOT / "build" / "again"


def main(argv: list[str]) -> int:
    files = [Path(name).resolve() for name in argv] or default_files(DIST)
    shutil.rmtree(AGAIN, ignore_errors=True)
    os.environ["SOURCE_DATE_EPOCH"] = str(wheels.commit_time())
    os.umask(0o022)
    for path in files:
        made = built_again(path)
        differing = differences(path, made)
        if differing:
            raise SystemExit(f"{path.name}: a second build differs in {', '.join(differing)}")
        print(f"{path.name}: the second build has the same bytes", flush=True)
    return 0


def default_files(folder: Path) -> list[Path]:
    """Return the sdist, and one wheel of each target."""
    found = {path.stem.rpartition("-")[2]: path
             for path in sorted(folder.glob("*.whl"), reverse=True)}
    return [*folder.glob("*.tar.gz"), *found.values()]


def built_again(path: Path) -> Path:
    """Return a second build of a file, below AGAIN."""
    output = AGAIN / "dist"
    output.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        return wheels.sdist(output)
    found = re.search(r"-cp3(\d+)-cp3\d+-(\w+)\.whl$", path.name)
    if found is None:
        raise SystemExit(f"{path.name}: this is not a wheel of release.wheels")
    tree = AGAIN / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    with tarfile.open(wheels.sdist(output)) as archive:
        archive.extractall(AGAIN / "unpacked", filter="data")
    next((AGAIN / "unpacked").iterdir()).rename(tree)
    return wheels.wheel(tree, TARGETS[found[2]], f"3.{found[1]}", os.cpu_count() or 1,
                        AGAIN / found[2], output)


def differences(first: Path, second: Path) -> list[str]:
    """Return the names inside two archives that differ, or the archive's own; [] if all agree."""
    if first.read_bytes() == second.read_bytes():
        return []
    before, after = contents(first), contents(second)
    names = sorted(name for name in before.keys() | after.keys()
                   if before.get(name) != after.get(name))
    return names or [f"the order or the attributes of files in {first.name}"]


def contents(path: Path) -> dict[str, bytes]:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(path) as archive:
        return {member.name: file.read() for member in archive
                if (file := archive.extractfile(member)) is not None}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
