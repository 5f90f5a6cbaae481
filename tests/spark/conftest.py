"""One Spark session for all tests here: a JVM takes longer to start than most tests to run. Also a
standalone cluster for tests that request it.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pylog.testing.ports import free_port


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
                   "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    place = ["--webui-port", "0", "--host"]
    commands = [[f"{deploy}.master.Master", *place, "127.0.0.1", "--port", str(port)]] + [
        [f"{deploy}.worker.Worker", *place, f"127.0.0.{number}", "--cores", "1", "--memory", "1g",
         "--work-dir", str(tmp_path / f"worker-{number}"), url] for number in (1, 2)]
    children = []
    with open(tmp_path / "cluster.out", "ab") as out:
        for command in commands:
            children.append(subprocess.Popen([str(program), *command], env=environment, stdout=out,
                                             stderr=subprocess.STDOUT))
            time.sleep(5)
    try:
        yield url
    finally:
        for child in reversed(children):
            child.terminate()
            child.wait()
