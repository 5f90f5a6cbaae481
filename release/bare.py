"""Test a wheel in a root that has only Python: no compiler, no headers, no libraries.

    python -m release.bare dist/pylog_broker-*-cp311-*manylinux*x86_64.whl

A wheel for another architecture runs under QEMU, which must be registered with the kernel
(Debian: apt install qemu-user-static binfmt-support).

Owns: build/bare/, with a separate Debian for each suite and architecture.
Invariants: there is no network inside, so that only files fetched before are installed; every
codec is written and read, TLS is loaded, and a broker starts and stops.
"""

from __future__ import annotations

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
    for name in argv:
        proven(Path(name).resolve())
    return 0


def proven(wheel: Path) -> str:
    """Return the output of the test in the bare root."""
    python = re.search(r"-cp3(\d+)-", wheel.name)
    target = TARGETS.get(wheel.stem.rpartition("-")[2])
    if python is None or target is None or target.is_musl:
        raise SystemExit(f"{wheel.name}: no Debian has a Python for it")
    version = f"3.{python[1]}"
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
    if target.machine != platform.machine() and not (EMULATORS / f"qemu-{target.machine}").exists():
        raise SystemExit(f"{target.machine} cannot run here: "
                         "apt install qemu-user-static binfmt-support")
    suite = pythons.PYTHONS[python]
    made = ROOTS / f"{python}-{target.architecture}"
    if not made.exists():
        partial = made.with_name(f"{made.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        ROOTS.mkdir(parents=True, exist_ok=True)
        run(["debootstrap", "--variant=minbase", f"--arch={target.architecture}",
             f"--include={'python3,python3-venv' if suite else 'ca-certificates'}",
             suite or OTHER, str(partial), mirror(), SCRIPT])
        if suite is None:
            shutil.copytree(pythons.unpacked(CACHE, target), partial / "opt" / "python")
        partial.rename(made)
    return made, "python3" if suite else f"/opt/python/bin/python{python}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
