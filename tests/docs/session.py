"""Runs the examples of a page as a reader would: in order, in an empty directory.

Owns: the directory, the processes that the page starts, free ports and loopback addresses in place
  of the documented ones.
Invariants: every block with one of the languages below runs or is written to a file; each line of
  an output in the page occurs in the real output, in the same order. Numbers and times may differ.

    ```console          commands after `$ `, each with its output; `^C` stops the newest brokerd
    ```python           code; all blocks of a page share one namespace
    ```LANGUAGE title="server.properties"           a file in the directory
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from pylog.testing.ports import free_port
from tests.checks import tidy

ROOT = Path(tidy.ROOT)
BLOCK = re.compile(r'^( *)```(\w+)(?: title="([^"]+)")?\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)
PORT = re.compile(r"(?<=:)(?:9\d{3}|[12]9\d{3}|808\d)\b")
WAIT_S = 60.0
# Values that differ from run to run.
VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?"), "TIME"),
    (re.compile(r"\b[\w-]{22}\b"), "ID"), (re.compile(r"/\S*"), "PATH"),
    (re.compile(r"[-+]?\d[\d,.]*"), "N"), (re.compile(r"\b(?:N )?(ms|s|min|h|KiB|MiB|B)\b"), "N"),
    (re.compile(r"[^\S\n]+"), " "))


def pages(*folders: str) -> list[str]:
    """Return the tracked pages below these folders of docs/."""
    return [name for name in tidy.tracked(ROOT) if name.endswith(".md")
            and name.startswith(tuple(f"docs/{folder}/" for folder in folders))]


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Return (language, title, text) of the page's blocks, without their indentation."""
    return [(language, title, re.sub(rf"^{indent}", "", text, flags=re.MULTILINE))
            for indent, language, title, text in BLOCK.findall((ROOT / page).read_text())]


def shape(line: str) -> str:
    """Return a line of output without the values that differ from run to run."""
    for pattern, name in VARYING:
        line = pattern.sub(name, line)
    return line.strip()


def missing(expected: str, output: str) -> list[str]:
    """Return the lines of the page that the real output lacks; `...` in the page is any text."""
    found = iter([shape(line) for line in output.splitlines()])
    lacking = []
    for line in expected.splitlines():
        if not line.strip(" ."):
            continue
        wanted = re.compile(".*".join(re.escape(shape(part)) for part in line.split("...")))
        if not any(wanted.fullmatch(line) for line in found):
            lacking.append(line)
            break
    return lacking


class Session:
    wait_s = WAIT_S

    def __init__(self, folder: Path, bootstrap_port: int = 0):
        self.folder = folder
        self.ports = {"9092": str(bootstrap_port)} if bootstrap_port else {}
        self.network = ""
        self.brokers: list[subprocess.Popen] = []
        self.groups: list[int] = []
        self.names: dict = {"__name__": "page"}

    def here(self, text: str) -> str:
        """Return a text of the page with free ports in place of the documented ones.

        The brokers of a cluster keep their ports and get addresses of their own.
        """
        if self.network:
            return text.replace("127.0.0.", self.network)
        return PORT.sub(lambda found: self.ports.setdefault(found[0], str(free_port())), text)

    def documented(self, output: str) -> str:
        if self.network:
            return output.replace(self.network, "127.0.0.")
        for port, real in self.ports.items():
            output = output.replace(f":{real}", f":{port}")
        return output

    def environment(self) -> dict[str, str]:
        bootstrap = self.here("127.0.0.1:9092" if self.network else "localhost:9092")
        # CI's options name plugins that the tests of a page do not load.
        own = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
        return {**own, "HOME": str(self.folder), "PYTHONPATH": str(ROOT),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYLOG_BOOTSTRAP": bootstrap, "NO_COLOR": "1", "COLUMNS": "120",
                # The plugins of this project's own tests take seconds to load.
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pylog.testing.plugin"}

    def run(self, page: str) -> int:
        """Run every block of a page; return how many. Raises AssertionError with the block."""
        count = 0
        if "127.0.0.2" in (ROOT / page).read_text():
            self.network = f"127.{random.randrange(1, 250)}.{random.randrange(250)}."
        for language, title, text in blocks(page):
            if title:
                (self.folder / title).write_text(self.here(text))
            elif language == "console":
                self.console(text)
            elif language == "python":
                code = compile(self.here(text), f"{page}, example {count + 1}", "exec")
                with contextlib.chdir(self.folder):
                    exec(code, self.names)
            else:
                continue
            count += 1
        return count

    def console(self, text: str) -> None:
        if text.startswith("^C"):
            self.stop()
        for entry in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            lines = entry.splitlines()
            end = next(at for at, line in enumerate(lines, 1) if not line.endswith("\\"))
            self.command("\n".join(lines[:end]), "\n".join(lines[end:]))

    def command(self, command: str, expected: str) -> None:
        """Run a command and compare its output with the page's."""
        if re.match(r"brokerd(?! (?:config|adopt|detach)| --version| --help)", command):
            output, status = self.start(command), 0
        else:
            ran = subprocess.Popen(["bash", "-c", self.here(command)], cwd=self.folder, text=True,
                                   env=self.environment(), stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   start_new_session=True)
            self.groups.append(ran.pid)
            output, status = ran.communicate(timeout=self.wait_s)[0], ran.returncode
        shown = f"$ {command}\n{output}"
        assert expected.strip() or status == 0, shown
        assert missing(expected, self.documented(output)) == [], shown

    def start(self, command: str) -> str:
        """Start a brokerd of the page; return its output up to the ready line."""
        own = "listeners=" in command or ".properties" in command
        given = "" if own else " --override listeners=PLAINTEXT://localhost:9092"
        given += " --override group.initial.rebalance.delay.ms=0"
        log = self.folder / f"brokerd-{len(self.brokers)}.out"
        with open(log, "wb") as out:
            self.brokers.append(subprocess.Popen(
                ["bash", "-c", f"exec {self.here(command + given)}"], cwd=self.folder,
                env=self.environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out))
        end_s = time.monotonic() + WAIT_S
        while "brokerd ready" not in (output := log.read_text()):
            assert self.brokers[-1].poll() is None and time.monotonic() < end_s, output
            time.sleep(0.01)
        return output

    def stop(self) -> None:
        broker = self.brokers.pop()
        broker.send_signal(signal.SIGINT)
        assert broker.wait(WAIT_S) == 0

    def close(self) -> None:
        for broker in self.brokers:
            broker.kill()
            broker.wait()
        for group in self.groups:  # Processes that a command left in the background.
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                pass
