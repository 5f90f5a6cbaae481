"""`brokerd completion`: the scripts complete commands, options and settings in their shells."""

import shutil
import subprocess

import pytest

from pylog import cli


@pytest.fixture(scope="module")
def scripts():
    """Return the script of each shell."""
    import contextlib
    import io

    found = {}
    for shell in ("bash", "zsh", "fish"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert cli.brokerd(["completion", shell]) == 0
        found[shell] = out.getvalue()
    return found


def in_bash(script: str, *words: str) -> list[str]:
    """Return the completions of the last word."""
    listed = " ".join(f"'{word}'" for word in ("brokerd", *words))
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\nCOMP_WORDS=({listed}); COMP_CWORD={len(words)}\n"
         "_brokerd_completion; printf '%s\\n' \"${COMPREPLY[@]}\""],
        capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_and_settings(scripts):
    script = scripts["bash"]
    assert in_bash(script, "ad") == ["adopt"]
    assert in_bash(script, "--over") == ["--override"]
    assert in_bash(script, "--override", "num.network.th") == ["num.network.threads="]
    assert in_bash(script, "config", "explain", "log.flush.acks") == ["log.flush.acks.all.enable"]
    assert in_bash(script, "config", "") == ["explain", "list"]
    assert in_bash(script, "server.prop") == []  # Files: `-o default`.


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.parametrize("line, expected", [
    ("brokerd ad", "adopt"), ("brokerd --over", "--override"),
    ("brokerd --override num.network.th", "num.network.threads"),
    ("brokerd config explain log.flush.acks", "log.flush.acks.all.enable")])
def test_fish_completes_commands_options_and_settings(scripts, tmp_path, line, expected):
    done = subprocess.run(["fish", "--no-config", "-c", f"{scripts['fish']}\ncomplete -C '{line}'"],
                          capture_output=True, text=True, timeout=30,
                          env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert done.stderr == ""
    assert [row.partition("\t")[0] for row in done.stdout.splitlines()] == [expected]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_accepts_the_script(scripts, tmp_path):
    done = subprocess.run(["zsh", "-f", "-c", f"{scripts['zsh']}\nprint $_comps[brokerd]"],
                          capture_output=True, text=True, timeout=30,
                          env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "TERM": "dumb"})
    assert done.stdout.strip() == "_brokerd"


def test_help_of_brokerd_names_its_commands(capsys):
    with pytest.raises(SystemExit):
        cli.brokerd(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for name, (_, text) in cli.COMMANDS.items():
        assert f"brokerd {name}: {text}" in shown
