"""Build the container image from a Debian base and a wheel, and test it: `make container`.

    python -m release.container dist/pylog_broker-*-cp313-*manylinux*x86_64.whl

Owns: build/container/, with the image's root and buildah's storage.
Invariants: the image contains only Debian's packages, the wheel and its dependencies; brokerd runs
without privileges; the image's own health check passes before the script succeeds.
Source: buildah (Debian: apt install buildah), which needs neither a daemon nor a registry.
"""

from __future__ import annotations

import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from release import bare
from release.debian import run
from release.targets import TARGETS
from release.wheels import ROOT

FOLDER = ROOT / "build" / "container"
PYTHON = "3.13"
READY_S_MAX = 60.0
# 10001: the user of the Containerfile.
INSTALLATION = """set -e
python3 -m venv --without-pip /opt/pylog
python3 -m venv /tmp/pip
/tmp/pip/bin/pip --python /opt/pylog/bin/python install -q --no-index --find-links /wheels \
    pylog-broker
rm -rf /tmp/pip /wheels /var/cache/apt /var/lib/apt/lists/* /var/log/*
groupadd --gid 10001 pylog
useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin pylog
"""


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        raise SystemExit("usage: python -m release.container WHEEL (for Python "
                         f"{PYTHON} and this machine)")
    wheel = Path(argv[0]).resolve()
    if shutil.which("buildah") is None:
        raise SystemExit("buildah is missing: apt install buildah")
    image = built(wheel)
    tested(image)
    print(f"{image} is ready. It is in {FOLDER / 'storage'}; to copy it to a registry:\n"
          f"    {' '.join(buildah('push', image, 'docker://REGISTRY/' + image))}")
    return 0


def built(wheel: Path) -> str:
    """Return the name of the image."""
    short = PYTHON.replace(".", "")
    found = re.match(rf"pylog_broker-([^-]+)-cp{short}-cp{short}-(\w+)\.whl$", wheel.name)
    if found is None or found[2] != f"manylinux_2_28_{platform.machine()}":
        raise SystemExit(f"{wheel.name}: the image needs the wheel for Python {PYTHON} and "
                         f"manylinux_2_28_{platform.machine()}")
    target = TARGETS[found[2]]
    base, _ = bare.bare_root(PYTHON, target)
    root = FOLDER / "root"
    shutil.rmtree(root, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    run(["cp", "-a", "--reflink=auto", str(base), str(root)])
    for name in ("venv", "data", "log", "numbers"):  # What tests of wheels left.
        run(["rm", "-rf", str(root / name)])
    bare.fetch_wheels(wheel, PYTHON, target, root / "wheels")
    bare.inside(root, INSTALLATION)
    (FOLDER / "data").mkdir(exist_ok=True)
    image = f"pylog:{found[1]}"
    shutil.copy(ROOT / "release" / "Containerfile", FOLDER)
    run(buildah("build", "--isolation", "chroot", "--format", "docker", "-t", image,
                str(FOLDER)))
    return image


def buildah(*words: str) -> list[str]:
    """Return a command that uses the storage of this folder only."""
    return ["buildah", "--storage-driver", "vfs", "--root", str(FOLDER / "storage"),
            "--runroot", str(FOLDER / "run"), *words]


def tested(image: str) -> None:
    """Start the broker of an image, wait for its health check, and stop it."""
    container = output(buildah("from", "--pull-never", image))
    kafka, metrics = free_port(), free_port()
    words = ["brokerd", "--override", "log.dirs=/data/logs",
             "--override", f"listeners=PLAINTEXT://127.0.0.1:{kafka}",
             "--override", f"metrics.listener=127.0.0.1:{metrics}"]
    start = buildah("run", "--isolation", "chroot", container, "--", *words)
    health = buildah("run", "--isolation", "chroot", "--env",
                     f"PYLOG_HEALTH_URL=http://127.0.0.1:{metrics}", container, "--",
                     "pylog", "health")
    process = subprocess.Popen(start, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + READY_S_MAX
        while (done := subprocess.run(health, capture_output=True, text=True)).returncode:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{image}: not healthy: {done.stdout}{done.stderr}")
            time.sleep(0.5)
        print(f"{image}: {done.stdout.strip()}", flush=True)
    finally:
        process.terminate()
        text, _ = process.communicate(timeout=READY_S_MAX)
        print(text, end="", flush=True)
        run(buildah("rm", container))
    if "brokerd ready" not in text:
        raise SystemExit(f"{image}: brokerd did not report that it is ready")


def output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
