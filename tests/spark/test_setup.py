import argparse
import subprocess
import sys

import pytest

from spark import load, orders, pipeline, session, validate
from spark.plan import PlanError, Rate, rate_of
from spark.records import Content
from spark.session import SetupError


def fake_java(tmp_path, text):
    program = tmp_path / "java"
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("text, found", [
    ('openjdk version "1.8.0_402"', "Java 8"), ('openjdk version "11.0.22"', "Java 11"),
    ("no such thing", "does not name")])
def test_too_old_java_is_reported_in_one_line(tmp_path, text, found):
    with pytest.raises(SetupError, match=found) as refused:
        session.java_version(fake_java(tmp_path, text))
    assert "Java 17" in str(refused.value) and "\n" not in str(refused.value)


def test_recent_java_is_accepted(tmp_path):
    assert session.java_version(fake_java(tmp_path, 'openjdk version "21.0.2"')) == 21


def test_missing_java_is_reported_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(SetupError, match="there is none"):
        session.java_version()


@pytest.mark.parametrize("job", [load, validate])
def test_missing_topic_is_reported_in_one_line_with_exit_code_2(brokerd, job, tmp_path, capsys):
    given = ["--bootstrap", brokerd.bootstrap, "--topic", "missing-topic", "--records", "10"]
    given += ["--manifest", str(tmp_path)] if job is load else ["--seed", "1"]
    assert job.main(given) == 2
    said = capsys.readouterr().err.strip()
    assert "missing-topic" in said and "\n" not in said


def test_unreachable_broker_is_reported_in_one_line_with_exit_code_2(tmp_path, capsys, monkeypatch):
    from spark import cluster

    monkeypatch.setattr(cluster, "QUESTION_MS", 500)
    code = load.main(["--bootstrap", "127.0.0.1:1", "--topic", "t", "--records", "10",
                      "--manifest", str(tmp_path)])
    said = capsys.readouterr().err.strip()
    assert code == 2 and "127.0.0.1:1" in said and "\n" not in said


@pytest.mark.parametrize("job", [load, validate])
def test_unwritable_output_fails_before_the_work(brokerd, job, tmp_path, capsys):
    from spark import cluster

    cluster.create_topic({"bootstrap.servers": brokerd.bootstrap}, "unwritten", 1)
    file = tmp_path / "file"
    file.touch()
    given = ["--bootstrap", brokerd.bootstrap, "--topic", "unwritten", "--records", "10"]
    given += (["--manifest", f"{file}/x"] if job is load else
              ["--seed", "1", "--report", f"{file}/x/report.html"])
    assert job.main(given) == 2
    said = capsys.readouterr().err.strip()
    assert "cannot write" in said and "\n" not in said


def test_unavailable_jars_are_reported_in_one_line(tmp_path, monkeypatch):
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho '[ERROR] no route to host -> [Help 1]'\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PYLOG_CACHE", str(tmp_path / "cache"))
    with pytest.raises(SetupError, match="needs the network.*no route to host$"):
        session.connector_jars()


def test_java_failure_is_reported_with_its_cause():
    from spark.cluster import first_line

    text = ("An error occurred while calling o1.count.\n: org.apache.spark.SparkException: Job "
            "aborted\n\tat a.b(C.scala:1)\nCaused by: java.io.IOException: the disk is full\n"
            "\tat d.e")
    assert first_line(RuntimeError(text)) == "the disk is full"


@pytest.mark.parametrize("given, word", [
    (["--sizes", "3"], "sizes"), (["--rate", "fast"], "rate"),
    (["--generators", "0"], "generators"),
    (["--duration", "5"], "one of records and duration"),
    (["--config", "nosuch.setting=1"], "nosuch.setting"),
    (["--engine", "kafka", "--transactional"], "transactions")])
def test_invalid_arguments_are_reported_in_one_line(given, word, tmp_path, capsys):
    code = load.main(["--bootstrap", "localhost:1", "--topic", "t", "--records", "10",
                      "--manifest", str(tmp_path), *given])
    said = capsys.readouterr().err.strip()
    assert code == 2 and word in said and "\n" not in said


def test_validator_without_a_manifest_requires_its_values(capsys):
    assert validate.main(["--bootstrap", "localhost:1", "--topic", "t"]) == 2
    assert "--manifest" in capsys.readouterr().err


def test_rates_ramp_and_burst():
    assert rate_of("500", 100).due(3) == 1500
    assert rate_of("1MB", 100).due(1) == 10_000
    ramp = rate_of("ramp:0:100:10", 100)
    assert ramp.due(10) == 500 and ramp.due(12) == 700
    burst = rate_of("burst:10:100:10:2", 100)
    assert burst.due(10) == 280 and burst.due(11) == 380
    assert Rate().due(0) == float("inf")
    for wrong in ("x", "ramp:1:2", "burst:1:2:3:4", "ramp:0:0:5", "-5"):
        with pytest.raises(PlanError):
            rate_of(wrong, 100)


def test_a_paced_load_keeps_its_rate_on_its_own_clock():
    from spark.plan import Plan, blocks

    now = [0.0]
    plan = Plan("t", {}, Content(1), duration_s=5, generators=2, rate=Rate(high=2000))
    made = blocks(plan, 0, lambda: now[0], lambda s: now.__setitem__(0, now[0] + s))
    assert sum(len(block.sequences) for block in made) == 5000
    assert 4.8 < now[0] < 5.3


@pytest.mark.parametrize("job, given", [
    (pipeline, ["--from", "t", "--to", "u", "--products", "p", "--parquet", "d", "--checkpoint",
                "s"]),
    (validate, ["--topic", "t", "--seed", "1", "--records", "5", "--stream"])])
def test_streaming_job_names_the_pyspark_that_it_needs(job, given, monkeypatch, capsys):
    import pylog.client.spark.source  # noqa: F401  PySpark 4.2 itself imports the missing module.

    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.delitem(sys.modules, "pylog.client.spark.stream_reader", raising=False)
    assert job.main(["--bootstrap", "localhost:1", *given]) == 2
    said = capsys.readouterr().err
    assert "need PySpark 4.2" in said and "pip install" in said and said.count("\n") == 1


def options_of(parser):
    """Yield the options of a parser and its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from options_of(command)
        else:
            yield action


@pytest.mark.parametrize("job", [load, validate, orders, pipeline])
def test_each_option_of_a_job_is_described(job):
    undescribed = [action.option_strings for action in options_of(job.arguments())
                   if not action.help]
    assert not undescribed


def test_the_jobs_run_as_scripts_too():
    done = subprocess.run([sys.executable, load.__file__, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "--manifest" in done.stdout


@pytest.mark.parametrize(("master", "environment", "conf", "expected"), [
    ("local[2]", None, None, sys.executable), ("local[2]", "/other/python", None, "python3"),
    ("local[2]", None, "/other/python", "python3"), ("spark://host:7077", None, None, "python3")])
def test_local_python_workers_use_this_interpreter_unless_another_is_named(
        monkeypatch, master, environment, conf, expected):
    from types import SimpleNamespace

    from pylog.client import spark as pylog_spark

    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if environment:
        monkeypatch.setenv("PYSPARK_PYTHON", environment)
    context = SimpleNamespace(master=master, pythonExec="python3",
                              getConf=lambda: {"spark.pyspark.python": conf})
    registered = []
    pylog_spark.register(SimpleNamespace(
        sparkContext=context, dataSource=SimpleNamespace(register=registered.append)))
    assert context.pythonExec == expected and len(registered) == 1
