"""Run tests with the lowest and the highest permitted versions of all dependencies.

    make release-versions TESTS="tests/tools tests/test_cli.py"

Owns: build/versions/, with one virtual environment for each resolution.
Invariants: the native modules are those of the checkout; only dependencies differ.
Source: uv's resolutions `lowest-direct` and `highest`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib

from release.debian import run
from release.wheels import ROOT

FOLDER = ROOT / "build" / "versions"
RESOLUTIONS = ("lowest-direct", "highest")
# spark: 400 MB; `make test-spark` runs with a fixed version. kerberos: needs the system's headers.
LEFT_OUT = {"spark", "kerberos"}
# What the tests themselves import.
FOR_TESTS = """pytest pytest-timeout pytest-randomly pytest-xdist pytest-rerunfailures hypothesis
    psutil lz4 zstandard python-snappy crc32c prometheus-client confluent-kafka kafka-python kio
    pandas polars""".split()
# Where each dependency is used: LMDB, RE2, click and rich, Arrow, formats, tokens, secrets.
TESTS = """tests/metadata/image tests/coordinator/groups/consumer tests/tools/cli tests/tools/topics
    tests/test_cli.py tests/client/columns tests/client/serialization tests/security/oauth
    tests/config""".split()


def main(argv: list[str]) -> int:
    uv = shutil.which("uv", path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    if uv is None:
        raise SystemExit("uv is missing: pip install --group release")
    failed = []
    for resolution in RESOLUTIONS:
        python = environment(uv, resolution)
        print(f"{resolution}: {', '.join(installed(uv, python))}", flush=True)
        done = subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                               *(argv or TESTS)], cwd=ROOT)
        if done.returncode:
            failed.append(resolution)
    if failed:
        raise SystemExit(f"tests failed with these versions: {', '.join(failed)}")
    return 0


def environment(uv: str, resolution: str) -> str:
    """Return the Python of a new environment with the dependencies in one resolution."""
    made = FOLDER / resolution
    python = str(made / "bin" / "python")
    extras = [f"--extra={name}" for name in sorted(set(optional()) - LEFT_OUT)]
    run([uv, "venv", "-q", "--clear", "--python", sys.executable, str(made)])
    run([uv, "pip", "install", "-q", "--python", python, "--resolution", resolution,
         "-r", "pyproject.toml", *extras], ROOT)
    # Tools for tests get any version that changes no dependency.
    constraints = made / "constraints.txt"
    constraints.write_text("\n".join(installed(uv, python)))
    run([uv, "pip", "install", "-q", "--python", python, "--constraint", str(constraints),
         *FOR_TESTS], ROOT)
    return python


def optional() -> dict[str, list[str]]:
    found: dict[str, list[str]] = tomllib.loads(
        (ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return found


def installed(uv: str, python: str) -> list[str]:
    """Return the versions of the direct dependencies, as name==version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *[one for rows in optional().values() for one in rows]]
    names = {re.split(r"[<>=\[]", text)[0].lower() for text in wanted}
    done = subprocess.run([uv, "pip", "freeze", "--python", python], check=True,
                          capture_output=True, text=True)
    return [line for line in done.stdout.split() if line.partition("==")[0].lower() in names]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
