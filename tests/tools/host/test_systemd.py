"""The unit that `pylog systemd` prints: systemd accepts it and rates it as secure, brokerd runs in
it.
"""

import ctypes
import ctypes.util
import errno
import os
import re
import shutil
import socket
import subprocess
import sys

import pytest

from pylog.tools.cli.session import ToolError
from pylog.tools.host import systemd
from pylog.tools.host.systemd import unit
from tests.fixtures.brokers import Brokerd
from tests.tools.support import run
from tests.wire.talk import create_topic, unique

# systemd's scale: 0 is secure, 10 is exposed. The rest is the network, and the system calls of a
# server.
EXPOSURE_MAX = 2.0
ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="apt install systemd")
# from seccomp.h and prctl.h
ALLOW, ERRNO, NOT_KNOWN = 0x7FFF0000, 0x00050000, -1
NO_NEW_PRIVS, MASKED_EQUAL = 38, 7
# (mask, value) of the third argument: never both writable and executable, never executable later.
WRITE, EXECUTE = 2, 4
PROTECTIONS = {"mmap": ((WRITE | EXECUTE, 0), (WRITE | EXECUTE, WRITE),
                        (WRITE | EXECUTE, EXECUTE)), "mprotect": ((EXECUTE, 0),)}


class Comparison(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = (("argument", ctypes.c_uint), ("operator", ctypes.c_int),
                ("mask", ctypes.c_uint64), ("value", ctypes.c_uint64))



def lines(text: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", text, re.M)


@pytest.fixture
def properties(tmp_path, monkeypatch):
    # The directory of the test may be below /tmp.
    monkeypatch.setattr(systemd, "TEMPORARY", ("/scratch/",))
    path = tmp_path / "server.properties"

    def made(**texts) -> str:
        path.write_text("".join(f"{name.replace('_', '.')}={value}\n"
                                for name, value in texts.items()))
        return str(path)
    return made


def test_default_unit_uses_only_its_own_directory():
    text, notes = unit(None, command="/usr/bin/brokerd")
    assert not notes
    assert lines(text, "ExecStart") == ["/usr/bin/brokerd --override log.dirs=/var/lib/brokerd"]
    assert lines(text, "DynamicUser") == ["yes"] and not lines(text, "ReadWritePaths")
    assert lines(text, "StateDirectory") == ["brokerd"]
    assert lines(text, "AmbientCapabilities") == [""] and lines(text, "ProtectHome") == ["yes"]


@pytest.mark.parametrize(("log_dirs", "owned"), [
    ("/data/a", []), ("/var/lib/other", []), ("/var/lib/brokerd", ["brokerd"]),
    ("/data/a,/var/lib/brokerd/b", ["brokerd"])])
def test_state_directory_is_named_only_if_data_goes_there(properties, log_dirs, owned):
    text, notes = unit(properties(log_dirs=log_dirs), command="/usr/bin/brokerd")
    assert lines(text, "StateDirectory") == owned
    outside = [path for path in log_dirs.split(",") if not path.startswith("/var/lib/brokerd")]
    assert lines(text, "ReadWritePaths") == outside and len(notes) == bool(outside)


def test_written_paths_are_writable_and_a_low_port_is_allowed(properties):
    path = properties(log_dirs="/data/a b,/data/c%d", audit_log_file="/var/log/k/audit.json",
                      listeners="PLAINTEXT://127.0.0.1:80")
    text, _ = unit(path, user="kafka", command="/home/x/brokerd")
    assert lines(text, "ReadWritePaths") == ['"/data/a b"', "/data/c%%d", "/var/log/k"]
    assert lines(text, "User") == ["kafka"] and not lines(text, "DynamicUser")
    assert lines(text, "CapabilityBoundingSet") == ["CAP_NET_BIND_SERVICE"]
    assert lines(text, "PrivateUsers") == ["no"] and lines(text, "ProtectHome") == ["read-only"]
    assert lines(text, "ExecStart") == [f"/home/x/brokerd {path}"]


@pytest.mark.parametrize("texts", [
    {"log_dirs": "/data/a,/scratch/b"}, {"audit_log_file": "/scratch/b"},
    {"listener_name_in_ssl_keystore_location": "/scratch/b"}])
def test_paths_below_tmp_are_rejected(properties, texts):
    with pytest.raises(ToolError, match=r"^[a-z.]+ /scratch/b: .*\(PrivateTmp\): move it"):
        unit(properties(**texts), command="/usr/bin/brokerd")
    with pytest.raises(ToolError, match=r"^the command /scratch/brokerd: "):
        unit(properties(log_dirs="/data/a"), command="/scratch/brokerd")


def test_data_in_a_home_directory_is_readable_with_a_note(properties):
    text, notes = unit(properties(log_dirs="/home/x/data"), user="x", command="/usr/bin/brokerd")
    assert lines(text, "ProtectHome") == ["read-only"]
    assert lines(text, "ReadWritePaths") == ["/home/x/data"]
    note, = notes
    assert note.startswith("log.dirs /home/x/data: ") and "ProtectHome=read-only" in note


def test_directory_not_writable_for_a_dynamic_user_is_reported(properties):
    path = properties(log_dirs="/data/a")
    assert unit(path, user="kafka", command="/usr/bin/brokerd")[1] == []
    note, = unit(path, command="/usr/bin/brokerd")[1]
    assert note.startswith("/data/a: ") and "--user" in note
    told = run("systemd", path, "--command", "/usr/bin/brokerd")
    assert told.err == f"pylog: {note}\n" and "ReadWritePaths=/data/a" in told.out


def test_wrong_settings_are_rejected_before_a_unit_has_them(properties):
    told = run("systemd", properties(no_such_setting="1"), fails=True)
    assert "unknown setting" in told.out + told.err


@needs_systemd
@pytest.mark.parametrize("port", [9092, 80])
def test_systemd_accepts_the_unit_and_rates_it_secure(tmp_path, properties, port):
    path = tmp_path / "brokerd.service"
    command = tmp_path / "brokerd"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    path.write_text(unit(properties(listeners=f"PLAINTEXT://127.0.0.1:{port}"),
                         command=str(command))[0])
    checked = subprocess.run([ANALYZE, "verify", str(path)], capture_output=True, text=True,
                             timeout=60, check=False)
    own = [line for line in checked.stderr.splitlines() if "brokerd.service" in line]
    assert not own, own
    judged = subprocess.run(
        [ANALYZE, "security", "--offline=true", f"--threshold={int(EXPOSURE_MAX * 10)}", str(path)],
        capture_output=True, text=True, timeout=60, check=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    found = re.search(r"Overall exposure level.*?: ([\d.]+)", judged.stdout)
    assert found and float(found[1]) <= EXPOSURE_MAX


def allowed_calls() -> list[str]:
    """Return the system calls that the unit's filter allows, as this systemd expands it."""
    def of(name: str) -> set[str]:
        done = subprocess.run([ANALYZE, "syscall-filter", name], capture_output=True, text=True,
                              timeout=60, check=True)
        words = [line.strip() for line in done.stdout.splitlines()
                 if line.startswith("    ") and not line.strip().startswith("#")]
        return {call for word in words
                for call in (of(word) if word.startswith("@") else {word})}
    return sorted(of("@system-service") - of("@privileged"))


def confined(calls: list[str]):
    """Restrict a child before it executes brokerd: the unit's system calls, no page both writable
    and executable, no new privileges. Uses libseccomp, as systemd does.
    """
    library = ctypes.CDLL(ctypes.util.find_library("seccomp"))
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(ERRNO | errno.EPERM)))
    for call in calls:
        number = library.seccomp_syscall_resolve_name(call.encode())
        for mask, value in PROTECTIONS.get(call, ((0, 0),)) if number > NOT_KNOWN else ():
            wanted = Comparison(2, MASKED_EQUAL, mask, value)
            library.seccomp_rule_add_array(
                context, ctypes.c_uint32(ALLOW), number, 1 if mask else 0, ctypes.byref(wanted))
    libc = ctypes.CDLL(None)

    def apply() -> None:
        libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
        os.umask(0o077)
        if library.seccomp_load(context) != 0:
            os._exit(99)
    return apply


@needs_systemd
def test_brokerd_runs_with_only_the_units_system_calls(tmp_path):
    if ctypes.util.find_library("seccomp") is None:
        pytest.skip("apt install libseccomp2")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(tmp_path / "notify"))
        told.settimeout(30)
        with Brokerd(tmp_path, environment={"NOTIFY_SOCKET": str(tmp_path / "notify")},
                     preexec=confined(allowed_calls())) as broker:
            assert told.recv(100) == b"READY=1"
            create_topic(broker.port, unique("confined"))
            assert broker.stop() == 0
    assert "Traceback" not in broker.log.read_text()


def test_notification_without_a_socket_changes_nothing(tmp_path):
    code = ("from pylog.cli import _notify\nimport os\n"
            "for path in ('', 'nonsense', '/nowhere/socket', '@nobody-there'):\n"
            "    os.environ['NOTIFY_SOCKET'] = path\n    _notify(b'READY=1')\n")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
