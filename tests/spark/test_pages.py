"""Examples of the Spark pages, run by the path of the interpreter: no environment is activated."""

import os
import re
import sys
from pathlib import Path

import pytest

from pylog.testing import Broker
from spark import load, orders, pipeline, validate
from tests.docs.session import ROOT, Session, blocks
from tests.docs.test_examples import SETTINGS, SPARK_PAGES, starts_brokers

JOBS = {job.__name__.rpartition(".")[2]: job for job in (load, orders, pipeline, validate)}
# A program at the start of a command, of a line that continues it, or behind a pipe.
PROGRAM = re.compile(r"(^|\| |\\\n +)(python|brokerd|pylog|spark-submit)(?= )")
JOB = re.compile(r"python -m pylog\.spark\.(\w+) ((?:[^\n]*\\\n)*[^\n]*)")
PROGRAMS = Path(sys.executable).parent


class Unactivated(Session):
    """A session without an activated environment."""

    wait_s = 900.0

    def here(self, text):
        return PROGRAM.sub(rf"\1{PROGRAMS}/\2", super().here(text))

    def environment(self):
        given = {name: value for name, value in super().environment().items()
                 if name not in ("PYSPARK_PYTHON", "VIRTUAL_ENV")}
        rest = [path for path in given["PATH"].split(os.pathsep) if Path(path) != PROGRAMS]
        return {**given, "PATH": os.pathsep.join(rest), "SPARK_MASTER": "local[2]"}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", [page for page in SPARK_PAGES if any(
    language in ("console", "python") for language, _, _ in blocks(page))])
def test_examples_of_a_spark_page_run_in_an_environment_that_is_not_activated(
        spark, page, tmp_path):
    broker = None if starts_brokers(page) else Broker(settings=SETTINGS).start()
    session = Unactivated(tmp_path, 0 if broker is None else int(broker.bootstrap.split(":")[1]))
    try:
        assert session.run(page) > 0
    finally:
        session.close()
        if broker is not None:
            broker.close()


@pytest.mark.parametrize("page", SPARK_PAGES)
def test_documented_arguments_of_the_jobs_are_accepted(page):
    commands = JOB.findall((ROOT / page).read_text())
    for name, given in commands:
        words = given.partition("; ")[0].replace("\\\n", " ").split()
        if "..." not in words and "--help" not in words:
            JOBS[name].arguments().parse_args(words)
    assert commands or page == "docs/howto/spark.md"


def test_programs_of_an_environment_are_found_by_their_path():
    session = Unactivated(Path())
    assert session.here("timeout 3 \\\n    python -m x --engine pylog | pylog consume") == (
        f"timeout 3 \\\n    {PROGRAMS}/python -m x --engine pylog | {PROGRAMS}/pylog consume")
    assert str(PROGRAMS) not in session.environment()["PATH"].split(os.pathsep)
