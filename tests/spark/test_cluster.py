"""The jobs as separate processes: a standalone cluster, kill -9, soak."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from spark.session import CHECKOUT

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def job(name, broker, topic, manifest, *more):
    return [sys.executable, "-m", f"spark.{name}", "--bootstrap", broker.bootstrap, "--topic",
            topic, "--manifest", str(manifest), *more]


def run(command, **options):
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, **options)


def test_both_jobs_run_on_a_cluster_of_two_workers(standalone, brokerd, tmp_path):
    for engine, reader in (("pylog", "kafka"), ("kafka", "pylog")):
        topic = f"cluster-{engine}"
        done = run(job("load", brokerd, topic, tmp_path / topic, "--create", "--records", "20000",
                       "--engine", engine, "--master", standalone))
        assert done.returncode == 0, done.stderr[-2000:]
        done = run(job("validate", brokerd, topic, tmp_path / topic, "--engine", reader,
                       "--master", standalone))
        assert done.returncode == 0, done.stdout + done.stderr[-2000:]
        assert "GOOD: 20000" in done.stdout


@pytest.mark.parametrize("engine", ["pylog", "kafka"])
def test_killed_streaming_validation_resumes(brokerd, tmp_path, engine):
    topic = f"killed-{engine}"
    done = run(job("load", brokerd, topic, tmp_path / "manifest", "--create", "--records", "40000"))
    assert done.returncode == 0, done.stderr[-2000:]
    state = tmp_path / "state"
    command = job("validate", brokerd, topic, tmp_path / "manifest", "--stream", "--checkpoint",
                  str(state), "--offsets-per-trigger", "4000", "--engine", engine)
    child = subprocess.Popen(command, cwd=CHECKOUT, start_new_session=True,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while child.poll() is None and len(list(state.glob("summaries/batch=*"))) < 3:
        time.sleep(0.05)
    assert child.poll() is None, "it ended before it could be killed"
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    begun = len(list(state.glob("summaries/batch=*")))
    assert begun < 10
    done = run(command)
    assert done.returncode == 0 and "GOOD: 40000" in done.stdout, done.stdout + done.stderr[-2000:]


def test_short_soak_passes():
    done = run([sys.executable, "-m", "spark.soak", "--seconds", "15", "--every", "3", "--rate",
                "2000"])
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert re.search(r"soak: good after [1-9]", done.stdout)


def test_trial_loads_validates_and_reports_on_a_new_broker(tmp_path):
    page = tmp_path / "report.html"
    done = run([sys.executable, "-m", "spark.trial", "--records", "20000", "--data", str(tmp_path),
                "--report", str(page)])
    assert done.returncode == 0 and "GOOD: 20000" in done.stdout, done.stdout + done.stderr[-2000:]
    assert "pylog loading" in page.read_text() and list(tmp_path.iterdir()) == [page]


def test_following_trial_reports_record_latency(tmp_path):
    page = tmp_path / "report.html"
    done = run([sys.executable, "-m", "spark.trial", "--rate", "1000", "--duration", "10",
                "--follow", "--data", str(tmp_path), "--report", str(page)])
    assert done.returncode == 0 and "GOOD: 10000" in done.stdout, done.stdout + done.stderr[-2000:]
    assert "by Structured Streaming" in page.read_text()
