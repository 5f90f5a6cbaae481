"""Build and check a release up to the upload, which it leaves to a person: `make release`.

    python -m release                                      every target, every Python
    python -m release --target manylinux_2_28_x86_64 --python 3.11
    python -m release --check                              only check the files in dist/

Owns: dist/SHA256SUMS.
Invariants: a release is built from a clean commit whose changelog has a section for its version;
every file is checked before the remaining commands are printed; nothing is uploaded or tagged.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from release import components, wheels
from release.debian import run
from release.wheels import DIST, ROOT

CHANGELOG_LINES_MAX = 60
SUMS = "SHA256SUMS"


def main(argv: list[str] | None = None) -> int:
    parser = wheels.arguments()
    parser.prog = "python -m release"
    parser.add_argument("--check", action="store_true", help="build nothing; check dist/")
    parser.add_argument("--draft", action="store_true",
                        help="report open points of the repository at the end instead of stopping")
    options = parser.parse_args(argv)
    version = version_of(ROOT)
    open_points = repository_problems(ROOT, version)
    if open_points and not options.draft:
        raise SystemExit("\n".join(["Not ready for a release:", *open_points]))
    if not options.check:
        for old in DIST.glob("*"):
            old.unlink()
        wheels.build(options)
    files = released(DIST, version)
    problems = [problem for path in files for problem in file_problems(path)]
    if problems:
        raise SystemExit("\n".join(problems))
    run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)])
    run(["check-wheel-contents", *[str(path) for path in files if path.suffix == ".whl"]])
    (DIST / SUMS).write_text(sums(files))
    print((DIST / SUMS).read_text(), end="")
    print("\n".join(["", *open_points, *remaining(version, files)]))
    return 0


def version_of(root: Path) -> str:
    found = re.search(r'^__version__ = "(.+)"', (root / "pylog/__init__.py").read_text(), re.M)
    assert found is not None
    return found[1]


def repository_problems(root: Path, version: str) -> list[str]:
    """Return what has to change in the repository before this version can be released."""
    found = []
    if not tomllib.loads((root / "pyproject.toml").read_text())["tool"]["pylog"]["repository"]:
        found.append("pyproject.toml: set tool.pylog.repository to the address of the repository")
    lines = changelog_section((root / "CHANGELOG.md").read_text(), version)
    if not lines:
        found.append(f"CHANGELOG.md: add a section `## {version}`")
    elif len(lines) > CHANGELOG_LINES_MAX:
        found.append(f"CHANGELOG.md: shorten the section {version} from {len(lines)} to at most "
                     f"{CHANGELOG_LINES_MAX} lines")
    done = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True,
                          text=True)
    if done.returncode == 0 and done.stdout:
        found.append("commit or remove the changes that `git status` lists")
    return found


def changelog_section(text: str, version: str) -> list[str]:
    """Return the lines of the section about `version`, with its heading."""
    found = re.search(rf"^## {re.escape(version)}(?!\.?\d).*?(?=^## |\Z)", text, re.M | re.S)
    return found[0].rstrip().splitlines() if found else []


def released(folder: Path, version: str) -> list[Path]:
    """Return the sdist and the wheels of `version`. Raises SystemExit if some are missing."""
    files = sorted([*folder.glob(f"pylog_broker-{version}.tar.gz"),
                    *folder.glob(f"pylog_broker-{version}-*.whl")])
    if len(files) < 2 or files[-1].suffix == files[0].suffix:
        raise SystemExit(f"{folder} must contain an sdist and wheels of {version}: `make release`")
    return files


def file_problems(path: Path) -> list[str]:
    """Return missing licences, components and metadata of a wheel."""
    if path.suffix != ".whl":
        return []
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        inside = {name.partition(".dist-info/")[2] for name in names}
        bills = [name for name in names if "/sboms/" in name]
        if len(bills) != 1:
            return [f"{path.name}: has {len(bills)} bills of materials instead of one"]
        listed = {part["name"] for part in json.loads(archive.read(bills[0]))["components"]}
    missing = [f"the licence of {name}" for name in sorted(listed)
               if f"licenses/LICENSE.{name}" not in inside]
    missing += [f"the component {name}" for name in sorted(set(components.EXPRESSIONS) - listed)]
    return [f"{path.name}: {one} is missing" for one in missing]


def sums(files: list[Path]) -> str:
    """Return lines for `sha256sum --check`."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
                   for path in files)


def remaining(version: str, files: list[Path]) -> list[str]:
    """Return the commands that complete the release."""
    names = " ".join(os.path.relpath(path, ROOT) for path in files)
    return ["The files are complete. What remains, from this commit:", "",
            "    make release-check",
            f"    git tag -s v{version} -m 'pylog {version}'",
            f"    git push origin v{version}",
            f"    {sys.executable} -m twine upload {names}",
            f"    podman push pylog:{version} REGISTRY/pylog:{version}   # after make container"]


if __name__ == "__main__":
    sys.exit(main())
