"""Build wheels for Linux systems without a compiler or our libraries: `make wheel`.

    python -m release.wheels                              every target, every Python
    python -m release.wheels --target manylinux_2_28_x86_64 --python 3.11

Owns: dist/, and build/wheels/ with all downloads and intermediate files.
Invariants: a wheel needs only its platform's C library, which auditwheel confirms; wheels are
built from the sdist, not from the checkout; Python's headers have the version of the wheel; two
builds of one commit have the same bytes; a wheel contains the licences of its components.
Source: PEP 425 and 427 (wheels), PEP 600 (manylinux), PEP 656 (musllinux), PEP 770 (SBOM).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from release import components, pythons
from release.debian import run
from release.libraries import libraries
from release.pythons import PYTHONS
from release.targets import TARGETS, Target

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "wheels"
DIST = ROOT / "dist"


def main(argv: list[str] | None = None) -> int:
    build(arguments().parse_args(argv))
    return 0


def build(options: argparse.Namespace) -> None:
    """Build the sdist and wheels into dist/."""
    os.umask(0o022)
    os.environ.setdefault("SOURCE_DATE_EPOCH", str(commit_time()))
    DIST.mkdir(exist_ok=True)
    tree = unpacked(sdist(DIST))
    for tag in options.target or TARGETS:
        for python in options.python or PYTHONS:
            made = wheel(tree, TARGETS[tag], python, options.jobs)
            audit(made, TARGETS[tag])
            print(f"{made.relative_to(ROOT)}  {made.stat().st_size / 1e6:.1f} MB", flush=True)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m release.wheels")
    add = parser.add_argument
    add("--target", action="append", choices=list(TARGETS), help="may be repeated; all by default")
    add("--python", action="append", choices=list(PYTHONS), help="may be repeated; all by default")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="processes that compile")
    return parser


def commit_time() -> int:
    """Return the time of the checkout's commit in seconds."""
    return int(subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True,
                              capture_output=True, text=True).stdout)


def sdist(folder: Path) -> Path:
    """Build the source distribution in `folder`."""
    info = CACHE / "sdist"
    info.mkdir(parents=True, exist_ok=True)
    run([sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(info), "sdist",
         "--dist-dir", str(folder)], ROOT)
    return max(folder.glob("pylog_broker-*.tar.gz"), key=lambda path: path.stat().st_mtime)


def unpacked(archive: Path) -> Path:
    """Return the unpacked sdist. Unchanged files keep their time: they are not compiled again."""
    tree, fresh = CACHE / "tree", CACHE / "fresh"
    shutil.rmtree(fresh, ignore_errors=True)
    with tarfile.open(archive) as opened:
        opened.extractall(fresh, filter="data")
    top = next(fresh.iterdir())
    for path in sorted(top.rglob("*")):
        known = tree / path.relative_to(top)
        if path.is_file() and known.is_file() and known.read_bytes() == path.read_bytes():
            shutil.copystat(known, path)
        if path.suffix == ".pyx" and known.with_suffix(".c").exists():
            shutil.copy2(known.with_suffix(".c"), path.with_suffix(".c"))
    shutil.rmtree(tree, ignore_errors=True)
    top.rename(tree)
    return tree


def wheel(tree: Path, target: Target, python: str, jobs: int, base: Path | None = None,
          output: Path = DIST) -> Path:
    """Build a wheel in `output`. base: the folder for intermediate files."""
    base = base or CACHE / f"{target.tag}-{python}"
    short = f"cp{python.replace('.', '')}"
    # The package may have lost a file since the last build.
    for old in base.glob("lib*"):
        shutil.rmtree(old)
    made = base / "dist"
    shutil.rmtree(made, ignore_errors=True)
    linked = libraries(CACHE, target, jobs)
    libc = "musl" if target.is_musl else "gnu"
    tag = f"{short}-{short}-{target.tag}"
    build = [sys.executable, "setup.py", "-q", "build", "--build-base", str(base)]
    environment = {
        **target.environment(), "JOBS": str(jobs), "PYLOG_LIBRARIES": str(linked),
        "PYLOG_CORE": str(base.with_name(f"{target.tag}-core")),
        "PYLOG_PYTHON_INCLUDE": pythons.include(CACHE, target, python),
        "PYLOG_SBOM": str(add_components(tree, linked, base, tag)), "PYLOG_WHEEL_TAG": tag,
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{short[2:]}-{target.machine}-linux-{libc}.so"}
    run(build, tree, **environment)
    if target.is_musl:
        # Use the name of PEP 656; musl's loader accepts both.
        run(["patchelf", "--replace-needed", "libc.so", f"libc.musl-{target.machine}.so.1",
             *map(str, base.glob("lib*/**/*.so"))])
    run([*build, "bdist_wheel", "--skip-build", "--bdist-dir", str(base / "bdist"),
         "--dist-dir", str(made)], tree, **environment)
    [found] = made.glob("*.whl")
    return Path(shutil.move(found, output / found.name))


def add_components(tree: Path, linked: Path, base: Path, tag: str) -> Path:
    """Copy the licences of the linked components into the tree. Return the bill of materials.

    linked: the folder of release.libraries. base: where the bill is written.
    """
    for old in tree.glob("LICENSE.*"):
        old.unlink()
    for text in sorted((linked / components.LICENSES).iterdir()):
        shutil.copyfile(text, tree / text.name)
    version = next(line.partition(": ")[2] for line in (tree / "PKG-INFO").read_text().splitlines()
                   if line.startswith("Version: "))
    base.mkdir(parents=True, exist_ok=True)
    bill = base / "pylog-broker.cdx.json"
    bill.write_text(components.bill_of_materials(
        components.recorded(linked), version, tag, int(os.environ["SOURCE_DATE_EPOCH"])))
    return bill


def audit(made: Path, target: Target) -> None:
    """Check that the wheel needs only its platform's C library."""
    done = subprocess.run([sys.executable, "-m", "auditwheel", "show", str(made)],
                          capture_output=True, text=True)
    words = " ".join(done.stdout.split())
    if done.returncode or f'"{target.tag}"' not in words:
        raise SystemExit(f"{made.name} is no {target.tag}: {done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
