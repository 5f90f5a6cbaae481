"""This host's etcd process: starts, watches, restarts and stops it.

Owns: the etcd process and its directory, `etcd` below the first log directory.
Invariants: the process does not outlive brokerd; a process that ended is restarted, with a growing
  backoff while it fails quickly; its output goes to brokerd's log, but cannot fill that; a member
  without data starts only if etcd_bootstrap permits it.
Source: etcd's flags; etcd's tuning guide (heartbeats of a LAN).
"""

import asyncio
import json
import logging
import os
import shutil
from collections import namedtuple

from pylog import child_process, supervisor
from pylog.log.errors import StartError
from pylog.metadata.quorum.etcd_bootstrap import NEW, Joining, Policy
from pylog.metadata.quorum.etcd_probe import bind_address

DIRECTORY = "etcd"
# Heartbeats are an idle member's only CPU use; an election takes one to two election timeouts.
HEARTBEAT_MS, ELECTION_MS = 80, 400
# With a thread for each core, an idle etcd uses a third more CPU, and it has little parallel work.
ENVIRONMENT = {"GOMAXPROCS": "1"}
QUOTA_BYTES = 2 << 30
KEPT_REVISIONS = 1000
STOP_S = 5.0
PAUSE_S, PAUSE_MAX_S = 0.1, 5.0
LONG_S = 10.0  # A run that lasted this long was healthy; its end resets the backoff.
LINES_PER_RUN = 100  # of INFO and below
# etcd prints this if the other members removed it.
REMOVED = "permanently removed from the cluster"
UNCONFIGURED = Policy(lambda: None, "/pylog/", 10.0, 60.0)

log = logging.getLogger("pylog.etcd")

Host = namedtuple("Host", ("node_id", "host", "client_port", "peer_port"))
Host.__doc__ = "A machine that runs an etcd member."


class Member:
    """command: path or name of etcd. directory: for its data. node_id: this node among `hosts`.
    token: the cluster token, the same for all members. files: an etcd_tls.Files, None for plain
    text. ssl_context: for connections to the other members, with files. policy: how a member
    without data joins.

    settled: set once the member may start, or cannot start until an operator acts; then `failure`
    has the reason and `failed` is set too.
    """

    def __init__(self, command: str, directory: str, node_id: int, hosts: list, token: str,
                 files=None, ssl_context=None, policy: Policy = UNCONFIGURED):
        found = shutil.which(command)
        if found is None:
            raise StartError(
                f"a cluster of several controllers keeps its metadata in etcd, and there is no "
                f"{command}: install etcd (Debian: apt install etcd-server), or name its path by "
                "quorum.etcd.command, or an etcd that runs elsewhere by quorum.etcd.endpoints")
        self._command = found
        self._directory = directory
        self._node_id = node_id
        self._hosts = hosts
        self._token = token
        self._files = files
        self._joining = Joining(node_id, hosts, policy, files, ssl_context)
        self._is_removed = False
        self.settled, self.failed = asyncio.Event(), asyncio.Event()
        self.failure: StartError | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task | None = None
        self._moving: asyncio.Task | None = None

    @property
    def pid(self) -> int | None:
        """Return the process id while it runs, else None."""
        return self._process.pid if self._process is not None else None

    @property
    def _has_data(self) -> bool:
        return os.path.isdir(os.path.join(self._directory, "member"))

    def start(self) -> None:
        """Start etcd on the running loop, and keep it running until stop()."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        loop = asyncio.get_running_loop()
        if self._has_data:
            self._moving = loop.create_task(supervisor.restarting("etcd", self._publish_address))
        self._task = loop.create_task(self._keep())

    async def stop(self) -> None:
        """Stop the process, which transfers its leadership first."""
        tasks = [task for task in (self._moving, self._task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._moving = self._task = None
        process, self._process = self._process, None
        await child_process.stop(process, STOP_S)

    async def _publish_address(self) -> None:
        """Set this member's address, once no other process can run with a copy of its data."""
        await self.settled.wait()
        if self.failure is None:
            await self._joining.publish_address(self._directory)

    async def _keep(self) -> None:
        """Run etcd, and restart it with a backoff."""
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_S
        while True:
            began_s = loop.time()
            try:
                code, last = await self._run(await self._arguments())
                self._check_membership()
            except StartError as error:
                log.critical("etcd of this node cannot start", extra={"reason": str(error)})
                self.failure = error
                self.failed.set()
                self.settled.set()
                return
            except Exception as error:
                # Handle every error: a cluster that loses one etcd after another fails.
                code, last = getattr(error, "errno", None), str(error) or type(error).__name__
            log.error("etcd exited; restarting it", extra={"exit": code, "reason": last})
            pause_s = PAUSE_S if loop.time() - began_s > LONG_S else min(2 * pause_s, PAUSE_MAX_S)
            await asyncio.sleep(pause_s)

    async def _arguments(self) -> list[str]:
        """Return etcd's command line once it may start. A new member waits for etcd_bootstrap's
        decision. Raises StartError.
        """
        state = NEW
        if self._has_data:
            await self._joining.check_address(self._directory)
        else:
            state = await self._joining.state()
        self.settled.set()
        return arguments(self._directory, self._node_id, self._hosts, self._token, state,
                         self._files)

    def _check_membership(self) -> None:
        """Raise StartError if the other members removed this one."""
        if self._is_removed:
            raise StartError(
                f"the etcd member of node {self._node_id} in {self._directory} was removed from "
                "its cluster, by pylog cluster replace or because another process joined in its "
                f"place. If this node must rejoin, move {self._directory} away and start brokerd "
                "again")

    async def _run(self, flags: list) -> tuple:
        """Run etcd to its end; return (exit code, last line of output)."""
        process = self._process = await asyncio.create_subprocess_exec(
            self._command, *flags, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, cwd=self._directory,
            preexec_fn=child_process.end_with_parent, env={**ENVIRONMENT, **os.environ},
            limit=1 << 20)
        log.info("etcd started", extra={"pid": process.pid})
        assert process.stdout is not None
        last, left = "", LINES_PER_RUN
        async for line in process.stdout:
            level, last = parse_log_line(line)
            self._is_removed |= REMOVED in last
            # Limit etcd's output per run, so that it cannot fill the log.
            if level >= logging.ERROR or left > 0:
                left -= 1
                log.log(level, "etcd: %s", last)
        return await process.wait(), last


def arguments(directory: str, node_id: int, hosts: list, token: str, state: str = "new",
              files=None) -> list[str]:
    """Return etcd's command line. state: "existing" for a member that the others have added. files:
    as for Member.
    """
    scheme = "http" if files is None else "https"
    own = next(host for host in hosts if host.node_id == node_id)
    peers = ",".join(f"node-{host.node_id}={scheme}://{_shown(host.host)}:{host.peer_port}"
                     for host in hosts)
    bind = _shown(bind_address(own.host))
    flags = {
        "name": f"node-{node_id}", "data-dir": directory,
        "listen-client-urls": f"{scheme}://{bind}:{own.client_port}",
        "advertise-client-urls": f"{scheme}://{_shown(own.host)}:{own.client_port}",
        "listen-peer-urls": f"{scheme}://{bind}:{own.peer_port}",
        "initial-advertise-peer-urls": f"{scheme}://{_shown(own.host)}:{own.peer_port}",
        "initial-cluster": peers, "initial-cluster-token": token, "initial-cluster-state": state,
        "heartbeat-interval": HEARTBEAT_MS, "election-timeout": ELECTION_MS,
        "quota-backend-bytes": QUOTA_BYTES, "auto-compaction-mode": "revision",
        "auto-compaction-retention": KEPT_REVISIONS, "logger": "zap", "log-level": "warn",
    }
    switches = ["--pre-vote"]
    if files is not None:
        for prefix in ("", "peer-"):
            flags |= {f"{prefix}cert-file": files.own, f"{prefix}key-file": files.key,
                      f"{prefix}trusted-ca-file": files.trusted}
            switches.append(f"--{prefix}client-cert-auth")
    return [f"--{name}={value}" for name, value in flags.items()] + switches


def parse_log_line(line: bytes) -> tuple[int, str]:
    """Return (level, text) for one line of etcd's output. etcd's warnings become INFO."""
    text = line.decode("utf-8", "replace").strip()
    try:
        entry = json.loads(text)
    except ValueError:
        return logging.INFO, text
    if not isinstance(entry, dict):
        return logging.INFO, text
    level = logging.ERROR if entry.get("level") in ("fatal", "panic") else logging.INFO
    reason = entry.get("error")
    return level, f"{entry.get('msg', '')}{f': {reason}' if reason else ''}"


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
