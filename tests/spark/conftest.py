"""One Spark session for all tests here: a JVM takes longer to start than most tests to run. Also a
standalone cluster for tests that request it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.kafka import QUICK_START
from pylog.testing.ports import free_port
from tests.fixtures.clusters import until

# For the drivers, also those of jobs in separate processes.
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(QUICK_START))


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from spark.session import SetupError, session

    try:
        made = session("tests", master="local[2]", settings={
            "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))})
    except SetupError as missing:
        pytest.fail(str(missing))
    yield made
    made.stop()


@pytest.fixture
def standalone(tmp_path):
    """Yield the URL of a master with two workers of one core each. Each worker has a different
    address: Spark starts a speculative task on another host only.
    """
    import pyspark

    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    environment = {**os.environ, "SPARK_HOME": str(program.parent.parent),
                   "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
                   # Executors inherit it from their worker.
                   "JDK_JAVA_OPTIONS": " ".join(QUICK_START)}
    place = ["--webui-port", "0", "--host"]
    commands = [[f"{deploy}.master.Master", *place, "127.0.0.1", "--port", str(port)]] + [
        [f"{deploy}.worker.Worker", *place, f"127.0.0.{number}", "--cores", "1", "--memory", "1g",
         "--work-dir", str(tmp_path / f"worker-{number}"), url] for number in (1, 2)]
    children = []
    try:
        for number, command in enumerate(commands):
            path = tmp_path / f"cluster-{number}.out"
            with open(path, "ab") as out:
                children.append(subprocess.Popen([str(program), *command], env=environment,
                                                 stdout=out, stderr=subprocess.STDOUT))
            _await_line("Successfully registered" if number else "New state: ALIVE", path)
        yield url
    finally:
        for child in reversed(children):
            child.terminate()
            child.wait()


def _await_line(part: str, path: Path) -> None:
    until(lambda: part in path.read_text(errors="replace"), 60.0, f"{path}: not ready")
