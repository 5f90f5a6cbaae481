"""The command itself: help, errors in one line, suggested names, colours, startup time."""

import asyncio
import io
import os
import pty
import shlex
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from pylog import cli, version
from pylog.client.errors import KafkaTimeoutError
from pylog.protocol import api, messages
from pylog.tools import app
from pylog.tools.cli.session import Session
from tests.client.network.test_connection import Server, versions
from tests.tools.support import run, topic_of
from tests.wire.talk import unique

PYLOG = [sys.executable, "-c", "import sys; from pylog.cli import pylog; sys.exit(pylog())"]
HELP_S = 0.25


def child(*words, **options):
    return subprocess.run([*PYLOG, *words], capture_output=True, text=True, timeout=60, **options)


def test_every_command_has_help_that_mentions_json():
    names = [name for rows in app.COMMANDS.values() for name in rows]
    shown = run("--help").out
    for name in names:
        assert f"  {name} " in shown
        if name not in ("config", "completion"):
            told = run(name, "--help").out
            assert "--json" in told or "Commands:" in told, name


@pytest.mark.parametrize(("words", "told"), [
    (["tpics"], "no command 'tpics'; nearest valid name: topics"),
    (["topics", "descrbe"], "nearest valid name: describe"),
    (["topics", "list", "--jsno"], "Did you mean '--json'?"),
    (["topics", "create"], "Missing argument 'TOPIC...'"),
    (["topics", "list", "-X", "nonsense"], "expected KEY=VALUE"),
    (["topics", "list", "-X", "request.timeout.mss=1"], "did you mean 'request.timeout.ms'?"),
    (["topics", "list", "-b", "nonsense"], "'nonsense' is not host:port"),
    (["topics", "list", "-b", "a..b:9092"], "a..b:9092: that is no host's name"),
    (["offsets", "any", "--at", "yesterday"], "'yesterday' is not a time"),
    (["log", "verify", "absent"], "Path 'absent' does not exist"),
    (["topics", "delete", "any"], "--yes is required"),
])
def test_usage_error_is_one_line_and_an_exit_code(words, told, monkeypatch):
    monkeypatch.setenv("PYLOG_BOOTSTRAP", "127.0.0.1:1")
    ended = run(*words, fails=True)
    assert told in ended.err and ended.out == "" and ended.err.count("\n") == 1
    assert ended.code in (1, 2)


def test_unreachable_broker_is_reported_at_once():
    begun = time.monotonic()
    ended = run("topics", "list", "-b", "127.0.0.1:1", fails=True)
    assert "could be reached: 127.0.0.1:1: Connection refused; " in ended.err
    assert ended.err.count("\n") == 1
    assert time.monotonic() - begun < 5


def test_unexpected_error_is_one_line(monkeypatch, capsys):
    def fail(self):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("pylog.tools.cli.session.Session.client_values", fail)
    assert cli.pylog(["topics", "list"]) == app.EXIT_BUG
    assert capsys.readouterr().err.startswith("pylog: internal error: RuntimeError: two lines (")


def test_a_number_that_no_request_can_hold_is_wrong_usage(brokerd):
    ended = run("topics", "create", unique("t"), "--partitions", 99_999_999_999, broker=brokerd,
                fails=True)
    assert ended.code == app.EXIT_USAGE and "out of range for int32" in ended.err


def test_a_package_that_is_not_installed_is_named(monkeypatch, tmp_path):
    for name in [*sys.modules]:
        if name == "rich" or name.startswith("rich."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    (tmp_path / "00000000000000000000.log").write_bytes(b"")
    assert cli.pylog(["log", "verify", str(tmp_path)]) == app.EXIT_FAILED
    assert sys.stderr.getvalue() == "pylog: this command needs rich: pip install rich\n"


def test_help_takes_at_most_a_quarter_of_a_second_of_cpu():
    # Measured in processor time, because other processes on the machine may delay it.
    best = HELP_S * 10
    for _ in range(3):
        before = os.times()
        child("--help")
        after = os.times()
        best = min(best, after.children_user + after.children_system
                   - before.children_user - before.children_system)
    assert best < HELP_S


def test_help_imports_nothing_of_the_client_and_brokerd_nothing_of_the_tools():
    program = ("import sys; from pylog import cli; cli.pylog(['--help']); print(sorted(m for m in "
               "('asyncio', 'rich', 'numpy', 'pylog.client.network.cluster') if m in sys.modules))")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stdout.endswith("[]\n"), ended.stdout[-200:] + ended.stderr
    program = ("import sys; from pylog import cli; cli.brokerd(['--version']); print([m for m in "
               "sys.modules if m.startswith(('pylog.tools', 'click', 'rich'))])")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stdout.endswith("[]\n"), ended.stdout + ended.stderr


def test_shared_options_may_precede_the_command(brokerd):
    topic = topic_of(brokerd)
    found = run("--json", "-b", brokerd.bootstrap, "topics", "list", topic).json
    assert [row["topic"] for row in found] == [topic]


def test_client_settings_come_from_a_file_and_the_line_overrules(brokerd, tmp_path):
    file = tmp_path / "client.properties"
    # A file shared by several roles: settings that an admin client does not have are ignored.
    file.write_text(f"bootstrap.servers={brokerd.bootstrap}\nacks=all\ngroup.id=any\n")
    assert run("topics", "list", "-c", file).code == 0
    assert "could be reached" in run("topics", "list", "-c", file, "-X",
                                         "bootstrap.servers=127.0.0.1:1", fails=True).err
    file.write_text("acksx=all\n")
    assert "acksx" in run("topics", "list", "-c", file, broker=brokerd, fails=True).err


@pytest.mark.parametrize("line, told", [
    ("acksx=all", "not a setting of the admin"), ("retry.backoff.ms=soon", "not a whole number"),
    ("metadata.max.age=soon", "metadata.max.age"), ("ssl.ca.location=${env:NOWHERE}", "NOWHERE"),
    ("sasl.jaas.config=org.apache.Unheard required;", "Unheard is not served")])
def test_invalid_setting_in_a_file_is_reported_with_its_line(tmp_path, monkeypatch, line, told):
    monkeypatch.delenv("NOWHERE", raising=False)
    file = tmp_path / "client.properties"
    file.write_text(f"# Whose?\n{line}\n")
    found = run("topics", "list", "-b", "127.0.0.1:1", "-c", file, fails=True).err
    assert told in found and f"({file}:2)" in found
    key, _, _ = line.partition("=")
    found = run("topics", "list", "-b", "127.0.0.1:1", "-c", file, "-X", f"{key}=x",
                fails=True).err
    assert str(file) not in found or told == "NOWHERE"


def test_profile_has_a_name_and_its_secrets_are_stored_separately(brokerd, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("WHERE_IT_IS", brokerd.bootstrap)
    folder = tmp_path / "pylog"
    folder.mkdir()
    (folder / "here.properties").write_text("bootstrap.servers=${env:WHERE_IT_IS}\n")
    topic = topic_of(brokerd)
    assert topic in run("topics", "list", "-P", "here").out
    monkeypatch.setenv("PYLOG_PROFILE", "here")
    assert topic in run("topics", "list").out
    assert "there are: here" in run("topics", "list", "-P", "her", fails=True).err
    assert "there is no profile" in run("topics", "list", "-P", "../pylog/here", fails=True).err
    monkeypatch.delenv("WHERE_IT_IS")
    assert "there is no WHERE_IT_IS" in run("topics", "list", fails=True).err


def test_watch_mode_repeats_and_survives_a_failed_query(brokerd, monkeypatch):
    topics = iter([topic_of(brokerd), None])

    def sleep(seconds):
        assert seconds == 2
        if next(topics) is None:
            raise KeyboardInterrupt

    # Patch only the name in this module: the client's own threads sleep too.
    monkeypatch.setattr("pylog.tools.cli.command.time", SimpleNamespace(sleep=sleep))
    ended = run("topics", "list", "--watch", "2", broker=brokerd, fails=True)
    assert ended.code == 130 and ended.out.count("PARTITIONS") == 2
    topics = iter([1, None])
    ended = run("topics", "describe", "nope", "-w", "2", broker=brokerd, fails=True)
    assert ended.code == 130 and ended.err.count("there is no topic 'nope'") == 2
    topics = iter([1, None])
    assert run("cluster", "-w", "2", broker=brokerd, fails=True).out.count("LOG DIRECTORY") == 2


def test_topics_are_selected_by_patterns(brokerd):
    stem = unique("many")
    for end in ("a", "b"):
        run("topics", "create", f"{stem}-{end}", "-p", "1", broker=brokerd)
    rows = run("topics", "partitions", f"{stem}-?", f"{stem}-a", "--json", broker=brokerd).json
    assert [row["topic"] for row in rows] == [f"{stem}-a", f"{stem}-b"]
    assert "there is no topic 'x[*'" in run("topics", "describe", "x[*", broker=brokerd,
                                             fails=True).err
    told = run("topics", "delete", f"{stem}-*", "--yes", broker=brokerd).out
    assert told == f"{stem}-a deleted\n{stem}-b deleted\n"


def test_colours_are_for_terminals_only(brokerd):
    topic_of(brokerd)
    assert "\x1b[" not in child("cluster", "-b", brokerd.bootstrap).stdout
    for extra, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        leader, follower = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", **extra}
        environment.pop("NO_COLOR", None) if coloured else None
        with subprocess.Popen([*PYLOG, "cluster", "-b", brokerd.bootstrap], stdout=follower,
                              stderr=subprocess.PIPE, env=environment) as process:
            os.close(follower)
            text = b""
            while True:
                try:
                    more = os.read(leader, 4096)
                except OSError:
                    break
                if not more:
                    break
                text += more
            process.communicate(timeout=30)
        os.close(leader)
        assert (b"\x1b[" in text) == coloured and b"cluster " in text


def test_closed_pipe_is_not_an_error(brokerd):
    topic_of(brokerd, 50)
    ended = subprocess.run(["sh", "-c", '"$@" | head -1', "sh", *PYLOG, "topics", "partitions",
                            "-b", brokerd.bootstrap], capture_output=True, text=True, timeout=60)
    assert ended.stdout.count("\n") == 1 and ended.stderr == ""


def hear_interrupts() -> None:
    """Tests started with `&` ignore SIGINT, and so would their child processes."""
    import signal
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("words, code, out", [
    ("topics list >&-", app.EXIT_FAILED, ""),
    ("topics list 2>&-", 0, "TOPIC"),
    ("topics nope >&- 2>&-", app.EXIT_FAILED, ""),
    ("produce {topic} <&-", 0, "0 records"),
    ("topics delete {topic} <&-", app.EXIT_USAGE, "")])
def test_closed_standard_streams_are_handled(brokerd, words, code, out):
    command = " ".join([shlex.join(PYLOG), words.format(topic=topic_of(brokerd)), "-b",
                        brokerd.bootstrap])
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), ended
    assert out in ended.stdout


def test_records_that_have_no_standard_output_are_not_committed(brokerd):
    topic, group = topic_of(brokerd, 1), unique("g")
    run("groups", "reset-offsets", group, "-t", topic, "--to-earliest", "--execute", broker=brokerd)
    subprocess.run([*PYLOG, "produce", topic, "-b", brokerd.bootstrap], input="one\n", text=True,
                   timeout=60, check=True, stdout=subprocess.DEVNULL)
    ended = subprocess.run(
        f"{shlex.join(PYLOG)} consume {topic} -g {group} -b {brokerd.bootstrap} >&-", shell=True,
        capture_output=True, text=True, timeout=60)
    assert ended.returncode == app.EXIT_FAILED and "standard output is closed" in ended.stderr
    assert run("groups", "describe", group, "--json", broker=brokerd).json[0]["lag_records"] == 1


def test_ctrl_c_is_quiet(brokerd):
    import signal
    topic = topic_of(brokerd)
    words = ["groups", "explain", "--sample", "--seconds", "60", _group(brokerd, topic)]
    with subprocess.Popen([*PYLOG, *words, "-b", brokerd.bootstrap], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, preexec_fn=hear_interrupts) as process:
        end_s = time.monotonic() + 30
        while not psutil.Process(process.pid).net_connections() and time.monotonic() < end_s:
            time.sleep(0.05)
        time.sleep(2)  # By now it waits for its next sample, also on a busy machine.
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=90)
    assert (process.returncode, out, err.strip()) == (app.EXIT_INTERRUPTED, b"", b"")


def _group(broker, topic: str) -> str:
    run("groups", "reset-offsets", f"{topic}-group", "-t", topic, "--to-earliest", "--execute",
        broker=broker)
    return f"{topic}-group"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(shell):
    assert "_PYLOG_COMPLETE" in run("completion", shell).out


def test_commands_options_topics_and_groups_are_completed(brokerd):
    topic = topic_of(brokerd)
    group = _group(brokerd, topic)

    def completed(*words):
        environment = {**os.environ, "_PYLOG_COMPLETE": "bash_complete",
                       "PYLOG_BOOTSTRAP": brokerd.bootstrap,
                       "COMP_WORDS": " ".join(["pylog", *words]), "COMP_CWORD": str(len(words))}
        return child(env=environment).stdout.split()

    assert completed("top") == ["plain,topics"]
    assert "plain,describe" in completed("topics", "des")
    assert "plain,--partitions" in completed("topics", "create", "--part")
    assert completed("topics", "describe", topic[:-1]).count(f"plain,{topic}") == 1
    assert f"plain,{group}" in completed("groups", "members", group[:-2])


def test_completion_without_a_broker_is_silent():
    environment = {**os.environ, "_PYLOG_COMPLETE": "bash_complete",
                   "PYLOG_BOOTSTRAP": "127.0.0.1:1", "COMP_WORDS": "pylog topics describe x",
                   "COMP_CWORD": "3"}
    ended = child(env=environment)
    assert ended.stdout.strip() == "" and ended.stderr == ""


def test_version_is_available_in_three_ways():
    import pylog

    assert run("version").out == run("--version").out == f"pylog {version.version()}\n"
    assert run("version", "--json").json == {
        "version": pylog.__version__, "commit": version.commit(),
        "built": version.build_date()}


def test_unresponsive_broker_is_awaited_for_the_given_timeout():
    looks = []

    def answer(key, version, number):
        if key == api.API_VERSIONS:
            return versions()
        looks.append(key)
        return messages.MetadataResponse(cluster_id="c") if len(looks) == 1 else None

    async def work():
        async with Server(answer) as server:
            session = Session()
            session.given = {"bootstrap": f"127.0.0.1:{server.port}", "timeout_s": 0.5}
            with pytest.raises(KafkaTimeoutError):
                await session._with_admin(
                    lambda admin: admin.cluster.send_any(messages.MetadataRequest(topics=[])))

    asyncio.run(asyncio.wait_for(work(), 10))
    assert len(looks) == 2
