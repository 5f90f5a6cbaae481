import logging
import re
import signal
import subprocess
import sys
import textwrap
import types

import pytest

from pylog import cli
from pylog.config import ConfigError
from tests.fixtures.brokers import Brokerd

VERSION = r"\d+\.\d+\.\d+, commit (\w+(-dirty)?|unknown), built (\d{4}-\d\d-\d\d|unknown)"


class StartError(Exception):
    pass


def broker_that(run):
    """Replace the composition root by the parts that cli uses."""
    module = types.ModuleType("pylog.broker")
    module.run, module.StartError = run, StartError
    return module


@pytest.fixture
def with_broker(monkeypatch):
    import pylog

    root = logging.getLogger()
    kept = root.handlers[:], root.level, logging.raiseExceptions

    def install(run):
        module = broker_that(run)
        monkeypatch.setitem(sys.modules, "pylog.broker", module)
        monkeypatch.setattr(pylog, "broker", module, raising=False)

    yield install
    root.handlers[:], root.level, logging.raiseExceptions = kept


def run(*args, **options):
    return subprocess.run([sys.executable, "-m", "pylog", *args], capture_output=True, text=True,
                          timeout=60, **options)


@pytest.mark.parametrize(("args", "code", "words"), [
    (["--override", "log.segment.byte=1"], 2, "nearest valid name: log.segment.bytes"),
    (["--override", "log.segment.bytes=1"], 2, "at least 1048576"),
    (["--override", "nothing"], 2, "key=value"),
    (["absent.properties"], 1, "absent.properties: No such file"),
    (["config", "explain", "log.dirz"], 2, "nearest valid name: log.dir"),
])
def test_error_is_one_line_on_stderr_and_an_exit_code(args, code, words, capsys):
    assert cli.brokerd(args) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("brokerd: ") and words in err and err.count("\n") == 1


def test_ready_line_contains_address_node_directory_and_time(with_broker, capsys, tmp_path):
    def serve(settings, ready, first):
        ready([("PLAINTEXT", "127.0.0.1", 40001), ("SECOND", "::1", 40002)])
        return 0

    with_broker(serve)
    assert cli.brokerd(["--override", f"log.dirs={tmp_path}", "--override", "node.id=7"]) == 0
    assert re.fullmatch(rf"brokerd ready address=127\.0\.0\.1:40001,\[::1\]:40002 node\.id=7 "
                        rf"log\.dirs={re.escape(str(tmp_path))} reach=loopback ms=\d+\n",
                        capsys.readouterr().out)


@pytest.mark.parametrize(("value", "field", "warns"), [
    ("true", "acks.all=flushed-by-isr", False), ("false", "acks.all=page-cache-of-isr", True)])
def test_cluster_node_prints_its_acknowledgement_guarantee(
        with_broker, capsys, tmp_path, value, field, warns):
    def serve(settings, ready, first):
        ready([("PLAINTEXT", "127.0.0.1", 40001)])
        return 0

    with_broker(serve)
    assert cli.brokerd([
        "--cluster", "127.0.0.1", "--override", f"log.dirs={tmp_path}",
        "--override", f"replica.flush.before.fetch.enable={value}"]) == 0
    out, err = capsys.readouterr()
    assert f" {field} ms=" in out
    assert ("replica.flush.before.fetch.enable=false" in err) is warns


def test_a_closed_stdout_does_not_stop_a_broker(with_broker, monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    def serve(settings, ready, first):
        ready([("PLAINTEXT", "127.0.0.1", 1)])
        return 0

    with_broker(serve)
    monkeypatch.setattr(sys, "stdout", Closed())
    assert cli.brokerd([]) == 0


def test_failed_start_prints_the_reason_in_one_line(with_broker, capsys):
    def fail(settings, ready, first):
        raise StartError("127.0.0.1:9092 is in use")

    with_broker(fail)
    assert cli.brokerd([]) == 1
    assert capsys.readouterr().err == "brokerd: 127.0.0.1:9092 is in use\n"


def test_settings_that_only_a_start_finds_wrong_are_no_bug(with_broker, capsys):
    def fail(settings, ready, first):
        raise ConfigError("authorizer.class.name=x: no such class")

    with_broker(fail)
    assert cli.brokerd([]) == cli.EXIT_USAGE
    assert capsys.readouterr().err == "brokerd: authorizer.class.name=x: no such class\n"


def test_unexpected_error_is_one_log_line_without_traceback(with_broker, capsys):
    def fail(settings, ready, first):
        raise AssertionError("two\nlines")

    with_broker(fail)
    assert cli.brokerd([]) == cli.EXIT_BUG
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "level=critical" in err and "AssertionError" in err


def test_a_setting_without_effect_is_warned_of_at_start(with_broker, capsys):
    with_broker(lambda settings, ready, first: 0)
    assert cli.brokerd(["--override", "kafka.metrics.polling.interval.secs=5"]) == 0
    err = capsys.readouterr().err
    words = "kafka.metrics.polling.interval.secs has no effect in pylog yet"
    assert "level=warning" in err and words in err


@pytest.mark.parametrize("words", [["--port", "9093"], ["--port=9093"]])
def test_unknown_option_explains_how_to_pass_settings(words, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.brokerd(words)
    assert ended.value.code == cli.EXIT_USAGE
    assert "--override listeners=PLAINTEXT://:9093" in capsys.readouterr().err


def test_installed_commands_print_version_help_and_settings():
    assert re.fullmatch(rf"brokerd {VERSION} \(OpenSSL 3\..*\)\n", run("--version").stdout)
    assert "--override" in run("--help").stdout
    explained = run("config", "explain", "num.network.threads").stdout
    assert "(Kafka: 3)" in explained
    listed = run("config", "list").stdout.splitlines()
    assert any(line.startswith("log.segment.bytes=1073741824  [default]") for line in listed)


def test_tool_prints_its_version_and_the_settings(capsys):
    assert cli.pylog(["version"]) == 0
    assert re.fullmatch(rf"pylog {VERSION}\n", capsys.readouterr().out)
    assert cli.pylog(["config", "explain", "log.dir"]) == 0
    assert "(Kafka: /tmp/kafka-logs)" in capsys.readouterr().out


def test_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m pylog config list | head -1"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert ended.stdout.count("\n") == 1 and ended.stderr == ""


def test_a_start_imports_nothing_heavy_before_the_broker():
    program = ("import sys; from pylog import cli; from pylog.monitor import logfmt; "
               "from pylog.config import Settings; Settings.load(); "
               "print([m for m in ('asyncio', 'numpy', 'difflib', 'argparse', 'ssl', "
               "'importlib.metadata') if m in sys.modules])")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                           timeout=60)
    assert ended.stdout == "[]\n", ended.stderr


# Modules of the standard library that take a start 1 ms or more, and packages of pylog that only
# some brokers need.
NOT_FOR_EVERY_START = (
    "dataclasses", "decimal", "difflib", "email", "glob", "hashlib", "hmac", "http",
    "importlib.metadata", "ipaddress", "multiprocessing", "numpy", "platform",
    "prometheus_client", "secrets", "tempfile", "urllib", "uuid", "zlib", "pylog.client",
    "pylog.console", "pylog.monitor.server", "pylog.peer.connection", "pylog.port_owner",
    "pylog.replication", "pylog.security.sasl", "pylog.security.tls", "pylog.share",
    "pylog.tools")


def test_a_broker_without_security_or_peers_imports_only_what_it_needs(tmp_path):
    program = textwrap.dedent("""
        import os, signal, sys
        from pylog import cli
        def ready(settings, addresses):
            print(*sys.modules)
            os.kill(os.getpid(), signal.SIGTERM)
        cli._print_ready = ready
        sys.exit(cli.brokerd())
        """)
    ended = subprocess.run(
        [sys.executable, "-c", program, "--override", "listeners=PLAINTEXT://127.0.0.1:0",
         "--override", f"log.dirs={tmp_path}"], capture_output=True, text=True, timeout=60)
    loaded = ended.stdout.split()
    assert ended.returncode == 0 and "pylog.broker.broker" in loaded, ended.stderr
    assert sorted(set(NOT_FOR_EVERY_START) & set(loaded)) == []


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with Brokerd(tmp_path_factory.mktemp("running")) as broker:
        yield broker


@pytest.mark.parametrize(("overrides", "words"), [
    (lambda broker, path: {"listeners": f"PLAINTEXT://127.0.0.1:{broker.port}",
                           "log.dirs": path / "own"}, "Address already in use"),
    (lambda broker, path: {"listeners": "PLAINTEXT://127.0.0.1:0",
                           "log.dirs": broker.data_dir}, "another broker uses"),
    (lambda broker, path: {"listeners": "PLAINTEXT://127.0.0.1:0",
                           "log.dirs": "/dev/null"}, "/dev/null"),
])
def test_impossible_start_prints_the_reason_in_one_line(running, tmp_path, overrides, words):
    args = [text for key, value in overrides(running, tmp_path).items()
            for text in ("--override", f"{key}={value}")]
    ended = run(*args)
    assert ended.returncode == 1 and ended.stdout == ""
    assert ended.stderr.count("\n") == 1 and ended.stderr.startswith("brokerd: ")
    assert words in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_broker_cleanly(tmp_path, number):
    with Brokerd(tmp_path) as broker:
        broker.process.send_signal(number)
        assert broker.process.wait(30) == 0
    assert broker.alarms() == []


def test_port_zero_chooses_and_prints_a_free_port(running):
    assert running.port > 0
    assert f"address=127.0.0.1:{running.port} " in running.output.read_text()
