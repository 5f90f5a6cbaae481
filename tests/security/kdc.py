"""A separate Kerberos realm: MIT's krb5kdc with a database in a folder, and its keytabs."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from pylog.testing.ports import free_port

REALM, PATHS = "TEST.PYLOG", os.pathsep.join(("/usr/sbin", "/usr/local/sbin"))
CLIENT = """\
[libdefaults]
    default_realm = {realm}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
    udp_preference_limit = 1
    default_ccache_name = FILE:{root}/tickets
[realms]
    {realm} = {{
        kdc = 127.0.0.1:{port}
    }}
"""
SERVER = """\
[logging]
    kdc = STDERR
[kdcdefaults]
    kdc_listen = 127.0.0.1:{port}
    kdc_tcp_listen = 127.0.0.1:{port}
[realms]
    {realm} = {{
        database_name = {root}/principal
        key_stash_file = {root}/stash
        max_life = 1h
    }}
"""


def missing() -> str:
    """Return the reason why no realm can run here, "" if it can."""
    try:
        import gssapi  # noqa: F401
    except (ImportError, OSError) as error:
        return f"pip install gssapi ({error})"
    tools = ("krb5kdc", "kdb5_util", "kadmin.local")
    lacking = [tool for tool in tools if _path(tool) is None]
    return f"apt install krb5-kdc krb5-admin-server ({', '.join(lacking)})" if lacking else ""


def _path(tool: str) -> str | None:
    return shutil.which(tool, path=f"{PATHS}{os.pathsep}{os.environ['PATH']}")


class Realm:
    """A context manager. `environment`: variables that a process of the realm needs."""

    def __init__(self, root: Path):
        self.root, self.port = root, free_port()
        self.environment = {"KRB5_CONFIG": str(root / "krb5.conf"),
                            "KRB5_KDC_PROFILE": str(root / "kdc.conf"),
                            "KRB5RCACHEDIR": str(root)}
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> "Realm":
        why = missing()
        if why:
            pytest.skip(why)
        for name, text in (("krb5.conf", CLIENT), ("kdc.conf", SERVER)):
            (self.root / name).write_text(
                text.format(realm=REALM, root=self.root, port=self.port))
        self._run("kdb5_util", "create", "-s", "-P", "master")
        self._process = subprocess.Popen(
            [_path("krb5kdc"), "-n"], env={**os.environ, **self.environment},
            stdout=open(self.root / "kdc.log", "wb"), stderr=subprocess.STDOUT)
        return self

    def __exit__(self, *failure) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _run(self, tool: str, *arguments: str, **more) -> None:
        done = subprocess.run([_path(tool), *arguments], env={**os.environ, **self.environment},
                              capture_output=True, text=True, timeout=120, check=False, **more)
        assert done.returncode == 0, done.stdout + done.stderr

    def keytab(self, *principals: str) -> str:
        """Create new principals and return the path of their keytab."""
        path = str(self.root / f"{len(os.listdir(self.root))}.keytab")
        for principal in principals:
            self._run("kadmin.local", "-q", f"addprinc -randkey {principal}")
            self._run("kadmin.local", "-q", f"ktadd -k {path} {principal}")
        return path

    def kinit(self, principal: str, keytab: str) -> None:
        """Put a ticket into the default cache."""
        for _ in range(50):
            done = subprocess.run(["kinit", "-k", "-t", keytab, principal], capture_output=True,
                                  env={**os.environ, **self.environment}, check=False)
            if done.returncode == 0:
                return
            time.sleep(0.2)
        raise AssertionError(done.stderr)
