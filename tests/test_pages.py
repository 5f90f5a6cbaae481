"""Everything that the pages print exists: our commands and their options, make targets, modules.

Python blocks run elsewhere (README, client.md, testing.md), and so does the tour of the tools.
"""

import importlib.util
import re
import shlex

import click
import pytest

from pylog.config import Settings
from pylog.peer import securing
from pylog.testing.certificates import write
from pylog.tools.app import Root
from tests.checks import tidy
from tests.peer.secured import CA, now_ms

ROOT = tidy.ROOT
PAGES = [name for name in tidy.tracked(ROOT) if name.endswith(".md") and name != "CHANGELOG.md"]
FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = ("", "bash", "console")
INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
TARGETS = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
COMMANDS_MIN = 70


def lines_of(text: str) -> list[str]:
    """Return the lines of its blocks; continued lines are joined."""
    blocks = [block for language, block in FENCED.findall(text)
              if language.partition(" ")[0] in SHELL] + INDENTED.findall(text)
    return [line.strip().removeprefix("$ ")
            for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def commands_of(text: str) -> list[list[str]]:
    """Return the words of each of our commands, and of make."""
    found = []
    for line in lines_of(text):
        for part in re.split(r" (?:\||&&) ", line):
            try:
                words = shlex.split(part.removeprefix("sudo "), comments=True)
            except ValueError:  # Not a shell line: a bracket of Python, an apostrophe of a text.
                continue
            if words and words[0].rpartition("/")[2] in CHECKS:
                found.append(words)
    return found


def check_pylog(words: list[str], command: click.Command | None = None) -> None:
    command = command or Root("pylog")
    context = click.Context(command)
    # Values are not checked: a file named by a line does not exist here.
    rest = command.make_parser(context).parse_args(args=_before_redirection(words))[1]
    if isinstance(command, click.Group) and rest:
        below = command.get_command(context, rest[0])
        assert below is not None, f"no command {rest[0]}"
        check_pylog(rest[1:], below)


def _before_redirection(words: list[str]) -> list[str]:
    ends = [place for place, word in enumerate(words) if word in (">", "<", "&", "2>&1")]
    return words[:min(ends, default=len(words))]


def check_make(words: list[str]) -> None:
    targets = [word for word in words if "=" not in word]
    assert set(targets) <= TARGETS, targets


def check_python(words: list[str]) -> None:
    if words[:1] == ["-m"]:
        module = importlib.util.find_spec(words[1])
        assert module is not None, words[1]


def check_brokerd(words: list[str]) -> None:
    known = (ROOT / "pylog/cli.py").read_text()
    for word in words:
        assert not word.startswith("--") or f'"{word}"' in known, word


CHECKS = {"pylog": check_pylog, "make": check_make, "python": check_python,
          "brokerd": check_brokerd}


def wrong_in(text: str) -> list[str]:
    """Return the commands that do not exist, each with the reason."""
    found = []
    for words in commands_of(text):
        # A page contains brokerd's ready line too.
        if words[:2] == ["brokerd", "ready"]:
            continue
        try:
            CHECKS[words[0].rpartition("/")[2]](words[1:])
        except (AssertionError, click.ClickException, ImportError) as failure:
            found.append(f"{shlex.join(words)}: {failure}")
    return found


@pytest.mark.parametrize("page", PAGES)
def test_commands_printed_on_a_page_exist(page):
    assert wrong_in((ROOT / page).read_text()) == []


def test_commands_are_found_at_all():
    assert sum(len(commands_of((ROOT / page).read_text())) for page in PAGES) >= COMMANDS_MIN


@pytest.mark.parametrize("line", [
    "pylog topics create x --partitoins 3", "seq 3 | pylog prodcue x", "make tset",
    "brokerd --clutser h", "python -m pylog.nothing", "sudo pylog systemd --instal",
    "pylog topics create x \\\n    --no-such-option"])
def test_missing_command_is_reported(line):
    assert len(wrong_in(f"text\n\n    {line}\n")) == len(wrong_in(f"```\n{line}\n```\n")) == 1


def test_documented_settings_of_a_secured_cluster_are_accepted(tmp_path):
    text = (ROOT / "docs/howto/cluster-secure.md").read_text()
    block, = [block for _, block in FENCED.findall(text) if "sasl.jaas.config" in block]
    own = CA.issue("h1", ["h1"])
    given = dict([line.split("=", 1) for line in block.splitlines()])
    given["ssl.keystore.location"] = write(tmp_path, "own.pem", own.chain + own.key)
    given["ssl.truststore.location"] = write(tmp_path, "ca.pem", CA.pem)
    from pylog.config import clusters

    settings = Settings({**clusters.derived("h1,h2,h3", given, lambda host: host == "h1"), **given})
    for found in (securing.between_brokers(settings, now_ms),
                  securing.towards_controllers(settings, now_ms)):
        assert found is not None and found.has_tls and found.has_login
