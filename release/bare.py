"""Test a wheel in a root that has only Python: no compiler, no headers, no libraries.

    python -m release.bare dist/pylog_broker-*-cp311-*manylinux*x86_64.whl

A wheel for another architecture runs under QEMU, which must be registered with the kernel
(Debian: apt install qemu-user-static binfmt-support).

Owns: build/bare/, with a separate Debian for each suite and architecture.
Invariants: there is no network inside, so that only files fetched before are installed; every
codec is written and read, TLS is loaded, and a broker starts and stops.
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from release import pythons
from release.debian import mirror, run
from release.targets import TARGETS, Target
from release.wheels import CACHE, ROOT

ROOTS = ROOT / "build" / "bare"
EMULATORS = Path("/proc/sys/fs/binfmt_misc")
# Wheels of dependencies that support older systems.
OLDER = ("manylinux_2_27", "manylinux_2_24", "manylinux2014")
# Holds a Python that no suite has.
OTHER = "bookworm"
# debootstrap's script for all current suites, also those that are newer than debootstrap.
SCRIPT = "/usr/share/debootstrap/scripts/sid"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WAY = f"""set -e
! command -v cc gcc clang make >/dev/null
rm -rf /venv /data
$PYTHON -m venv /venv
/venv/bin/pip install -q --no-index --find-links /wheels pylog-broker
export PATH=/venv/bin:$PATH
brokerd --version
brokerd --override log.dirs=/data --override listeners=PLAINTEXT://127.0.0.1:19092 >/log 2>&1 &
broker=$!
trap 'kill $broker 2>/dev/null || true' EXIT
tries=0
until grep -q ready /log || [ $tries -ge 300 ]; do sleep 0.2; tries=$((tries + 1)); done
grep ready /log || {{ cat /log; exit 1; }}
for codec in {' '.join(CODECS)}; do
    seq 1000 | pylog -b 127.0.0.1:19092 produce $codec --create -z $codec
    pylog -b 127.0.0.1:19092 consume $codec | cmp - /numbers
done
kill $broker
wait $broker
echo bare: all of it works
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m release.bare")
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--if-possible", action="store_true",
                        help="only report the wheels that cannot run on this machine")
    options = parser.parse_args(argv)
    not_run = []
    for wheel in options.wheels:
        missing = missing_emulator(parts_of(wheel)[1])
        if missing and options.if_possible:
            not_run.append(f"{wheel.name}: not run: {missing}")
        else:
            proven(wheel.resolve())
    print("\n".join(not_run), end="\n" if not_run else "")
    return 0


def parts_of(wheel: Path) -> tuple[str, Target]:
    """Return the Python version and the target in a wheel's name."""
    python = re.search(r"-cp3(\d+)-", wheel.name)
    target = TARGETS.get(wheel.stem.rpartition("-")[2])
    if python is None or target is None or target.is_musl:
        raise SystemExit(f"{wheel.name}: no Debian has a Python for it")
    return f"3.{python[1]}", target


def missing_emulator(target: Target) -> str:
    """Return what is missing to run programs of the target here, "" if nothing is."""
    if target.machine == platform.machine() or (EMULATORS / f"qemu-{target.machine}").exists():
        return ""
    return f"{target.machine} cannot run here: apt install qemu-user-static binfmt-support"


def proven(wheel: Path) -> str:
    """Return the output of the test in the bare root."""
    version, target = parts_of(wheel)
    root, interpreter = bare_root(version, target)
    fetch_wheels(wheel, version, target, root / "wheels")
    (root / "numbers").write_text("".join(f"{number}\n" for number in range(1, 1001)))
    text = inside(root, WAY, PYTHON=interpreter)
    print(text, flush=True)
    return text


def fetch_wheels(wheel: Path, python: str, target: Target, folder: Path) -> None:
    """Download the dependencies of a wheel for another Python or machine, and copy the wheel."""
    shutil.rmtree(folder, ignore_errors=True)
    platforms = [target.tag, *[f"{one}_{target.machine}" for one in OLDER]]
    run([sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:",
         "--python-version", python, "--implementation", "cp", "--dest", str(folder),
         *[f"--platform={one}" for one in platforms], str(wheel)])


def inside(root: Path, script: str, **environment: str) -> str:
    """Run a shell script in a root that reaches only itself. Return its output; exit if it fails.
    """
    command = (f"ip link set lo up; mount -t proc proc {root}/proc; "
               f"mount --rbind /dev {root}/dev; "
               f"exec chroot {root} /bin/sh -c \"$SCRIPT\"")
    # The mounts and the network disappear when the program ends.
    done = subprocess.run(["unshare", "--mount", "--net", "/bin/sh", "-c", command], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8",
                               "SCRIPT": script, **environment})
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nexit {done.returncode} in {root}")
    return done.stdout


def bare_root(python: str, target: Target) -> tuple[Path, str]:
    """Return a Debian with Python, and the interpreter in it. Runs debootstrap the first time."""
    missing = missing_emulator(target)
    if missing:
        raise SystemExit(missing)
    suite = pythons.PYTHONS[python]
    made = ROOTS / f"{python}-{target.architecture}"
    if not made.exists():
        partial = made.with_name(f"{made.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        ROOTS.mkdir(parents=True, exist_ok=True)
        is_foreign = target.machine != platform.machine()
        run(["debootstrap", *(["--foreign"] if is_foreign else []), "--variant=minbase",
             f"--arch={target.architecture}",
             f"--include={'python3,python3-venv' if suite else 'ca-certificates'}",
             suite or OTHER, str(partial), mirror(), SCRIPT])
        if is_foreign:
            unpack_packages(partial)
        if suite is None:
            shutil.copytree(pythons.unpacked(CACHE, target), partial / "opt" / "python")
        partial.rename(made)
    return made, "python3" if suite else f"/opt/python/bin/python{python}"


def unpack_packages(root: Path) -> None:
    """Unpack the packages that debootstrap downloaded.

    Does not configure them: that takes a quarter of an hour under QEMU, and Python works without.
    """
    for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
        run(["sh", "-c", 'dpkg-deb --fsys-tarfile "$1" '
             '| tar -C "$2" --keep-directory-symlink -xf -', "sh", str(package), str(root)])
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
