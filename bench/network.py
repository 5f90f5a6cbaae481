"""Machines as network namespaces on one bridge, with links that can be cut.

Owns: the bridge and the namespaces, all inside this process's own network namespace, which ends
  with the process.
Invariants: nothing outside of the process's own namespaces is changed; a cut is silent: packets are
  dropped without an error; each machine is a separate session, so a terminal interrupt reaches only
  this process.
Source: network_namespaces(7), nft(8).
"""

import ctypes
import os
import subprocess

from bench.process import die_with_parent

NETWORK, MOUNTS = 0x40000000, 0x00020000
SUBNET = "10.77.0"
CLIENTS = 254  # Host number of the clients: the last byte of their address.
RULES = """
table inet cuts
delete table inet cuts
table inet cuts {{
  set sources {{ type ipv4_addr; {elements} }}
  chain arriving {{
    type filter hook input priority 0; policy accept;
    ip saddr @sources drop
  }}
}}
"""
_LIBC = ctypes.CDLL(None, use_errno=True)


def enter() -> None:
    """Give this process separate network and mount namespaces. Call it before any thread starts.
    Raises OSError if the kernel does not allow it.
    """
    _checked(_LIBC.unshare(NETWORK | MOUNTS), "unshare")
    # Later mounts must not propagate to the host.
    _run("mount", "--make-rprivate", "/")
    _run("ip", "link", "set", "lo", "up")


def _checked(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _run(*command, text: str | None = None) -> None:
    done = subprocess.run(command, input=text, text=True, capture_output=True,
                          start_new_session=True)
    assert done.returncode == 0, (command, done.stderr)


def address(number: int) -> str:
    return f"{SUBNET}.{number}"


class Network:
    """Creates one namespace per number, which is the last byte of its address."""

    def __init__(self, numbers):
        self._holders: dict[int, subprocess.Popen] = {}
        self._descriptors: dict[int, int] = {}
        self._deaf: dict[int, set] = {number: set() for number in (*numbers, CLIENTS)}
        _run("ip", "link", "add", "bridge", "type", "bridge")
        _run("ip", "addr", "add", f"{address(CLIENTS)}/24", "dev", "bridge")
        _run("ip", "link", "set", "bridge", "up")
        for number in numbers:
            self._add(number)

    def _add(self, number: int) -> None:
        own = os.stat("/proc/self/ns/net").st_ino
        holder = subprocess.Popen(["unshare", "-n", "sleep", "infinity"],
                                  preexec_fn=die_with_parent, start_new_session=True)
        self._holders[number] = holder
        path = f"/proc/{holder.pid}/ns/net"
        while os.stat(path).st_ino == own:
            assert holder.poll() is None, "no network namespace"
        self._descriptors[number] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        link = f"to{number}"
        # Keep the hardware address across a reboot: the other machines have it in their ARP cache.
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "cable",
             "address", f"02:00:00:00:00:{number:02x}", "netns", str(holder.pid))
        _run("ip", "link", "set", link, "master", "bridge", "up")
        self._inside(number, "ip", "addr", "add", f"{address(number)}/24", "dev", "cable")
        for name in ("lo", "cable"):
            self._inside(number, "ip", "link", "set", name, "up")

    def _inside(self, number: int, *command, text: str | None = None) -> None:
        if number == CLIENTS:
            _run(*command, text=text)
            return
        _run("nsenter", "-t", str(self._holders[number].pid), "-n", *command, text=text)

    def enter(self, number: int):
        """Return a preexec_fn for subprocess that runs the child on that machine."""
        def move() -> None:
            os.setsid()
            _checked(_LIBC.setns(self._descriptors[number], NETWORK), "setns")

        return move

    def reboot(self, number: int) -> None:
        """Drop all connections of a machine without processes, silently. Afterwards it receives
        from all machines again.
        """
        self._remove(number)
        self._deaf[number].clear()
        self._add(number)

    def _remove(self, number: int) -> None:
        os.close(self._descriptors.pop(number))
        holder = self._holders.pop(number)
        _run("ip", "link", "del", f"to{number}")
        holder.kill()
        holder.wait()

    def cut(self, source: int, goal: int) -> None:
        """Drop all later packets from `source` to `goal`, on arrival."""
        self._deaf[goal].add(source)
        self._apply(goal)

    def isolate(self, number: int) -> None:
        """Cut a machine off in both directions."""
        for other in self._deaf:
            if other != number:
                self.cut(number, other)
                self.cut(other, number)

    def heal(self) -> None:
        for number, sources in self._deaf.items():
            if sources:
                sources.clear()
                self._apply(number)

    def _apply(self, number: int) -> None:
        sources = ", ".join(address(source) for source in sorted(self._deaf[number]))
        elements = f"elements = {{ {sources} }};" if sources else ""
        self._inside(number, "nft", "-f", "-", text=RULES.format(elements=elements))

    def close(self) -> None:
        for number in list(self._holders):
            self._remove(number)
        _run("ip", "link", "del", "bridge")
