"""Spark sessions for the jobs: Java, jars of the stock connector, this package on every executor.

Owns: the folder `spark/` of the cache ($PYLOG_CACHE, by default .cache/ of the checkout, or of the
  home directory if this is installed from a wheel).
Invariants: the jars match the installed Spark version exactly; after the first download no network
  is needed; a missing prerequisite is a one-line SetupError.
Source: pom.xml; PySpark's installation page (Java 17 or later).
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

JAVA_MIN = 17
POM = Path(__file__).resolve().with_name("pom.xml")
CHECKOUT = POM.parent.parent
# In a wheel the jobs are pylog.spark, and executors have the same wheel.
IS_INSTALLED = not (CHECKOUT / "setup.py").exists()
CONNECTOR = "spark-sql-kafka-0-10_2.13"


class SetupError(Exception):
    """A prerequisite is missing on this machine. The message is one line."""


def java_version(java: str = "") -> int:
    """Return the major version of the Java that Spark will use. Raises SetupError."""
    home = os.environ.get("JAVA_HOME")
    program = java or (str(Path(home) / "bin" / "java") if home else shutil.which("java") or "")
    needed = f"Spark needs Java {JAVA_MIN} or later (Debian: openjdk-17-jdk-headless)"
    if not program or not shutil.which(program):
        raise SetupError(f"{needed}, and there is none")
    done = subprocess.run([program, "-version"], capture_output=True, text=True)
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if found is None:
        raise SetupError(f"{needed}; {program} does not name its version")
    if int(found[1]) < JAVA_MIN:
        raise SetupError(f"{needed}, and {program} is Java {found[1]}")
    return int(found[1])


def spark_version() -> str:
    try:
        import pyspark
    except ImportError:
        raise SetupError("pyspark is missing: pip install 'pylog-broker[spark]'") from None
    return str(pyspark.__version__)


def check_streaming() -> None:
    """Raises SetupError if the installed PySpark cannot read streams through the format pylog."""
    spark_version()
    from pylog.client.errors import ConfigError
    from pylog.client.spark.source import stream_reader_class

    try:
        stream_reader_class()
    except ConfigError as failure:
        raise SetupError(str(failure)) from None


def cache_dir() -> Path:
    own = Path.home() / ".cache" / "pylog" if IS_INSTALLED else CHECKOUT / ".cache"
    return Path(os.environ.get("PYLOG_CACHE") or own) / "spark"


def connector_jars() -> list[str]:
    """Return the stock connector with its dependencies, downloaded by Maven on the first call.
    Raises SetupError.
    """
    version = spark_version()
    root = cache_dir() / version
    stamp = root / "resolved"
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()
    if not (stamp.exists() and stamp.read_text() == digest):
        root.mkdir(parents=True, exist_ok=True)
        with open(root / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (stamp.exists() and stamp.read_text() == digest):
                _resolve(version, root / "lib")
                stamp.write_text(digest)
    return sorted(map(str, (root / "lib").glob("*.jar")))


def _resolve(version: str, lib: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise SetupError("the stock connector's jars need `mvn` once (Debian: maven)")
    shutil.rmtree(lib, ignore_errors=True)
    done = subprocess.run(
        [maven, "-q", "-B", "-Dstyle.color=never", "-f", str(POM), "dependency:copy-dependencies",
         f"-Dspark.version={version}", f"-DoutputDirectory={lib}", "-DincludeScope=runtime"],
        capture_output=True, text=True)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        raise SetupError(f"the first use of {CONNECTOR} {version} needs the network, and Maven "
                         f"could not fetch it: {lines[0].partition(' -> [Help')[0]}")


def session(name: str, *, master: str = "", connector: bool = True,
            settings: dict[str, str] | None = None) -> Any:
    """Return a SparkSession with the formats kafka and pylog. Raises SetupError.

    master: "" for spark-submit's master, else local[*].
    """
    java_version()
    spark_version()
    from pyspark.sql import SparkSession

    from pylog.client import spark as pylog_spark

    # Executors use the driver's Python and find this checkout on its path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    paths = [*([] if IS_INSTALLED else [str(CHECKOUT)]), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
    builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
    if master:
        builder = builder.master(master)
    elif "SPARK_SUBMIT" not in os.environ and not os.environ.get("MASTER"):
        builder = builder.config("spark.master", os.environ.get("SPARK_MASTER", "local[*]"))
    defaults = {
        "spark.sql.session.timeZone": "UTC", "spark.ui.enabled": "false",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.shuffle.partitions": "8", "spark.sql.adaptive.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    }
    if connector:
        defaults["spark.jars"] = ",".join(connector_jars())
    for key, value in {**defaults, **(settings or {})}.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    if not IS_INSTALLED:
        made.sparkContext.addPyFile(_package())
    pylog_spark.register(made)
    return made


@functools.cache
def _package() -> str:
    """Return this package as a zip, for executors on other machines."""
    target = Path(tempfile.mkdtemp(prefix="pylog-spark-")) / "spark.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(POM.parent.glob("*.py")):
            archive.write(path, f"spark/{path.name}")
    return str(target)
