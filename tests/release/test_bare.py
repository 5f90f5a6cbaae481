"""Which wheels can be tested in a bare root on this machine."""

from pathlib import Path

import pytest

from release import bare

OURS = "pylog_broker-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
OTHER = "pylog_broker-0.1.0-cp311-cp311-manylinux_2_28_aarch64.whl"


@pytest.fixture
def proven(monkeypatch, tmp_path):
    """Return the names of the wheels that were run, on an x86-64 machine without emulators."""
    names = []
    monkeypatch.setattr(bare.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(bare, "EMULATORS", tmp_path)
    monkeypatch.setattr(bare, "proven", lambda wheel: names.append(wheel.name))
    return names


def test_wheels_that_cannot_run_here_are_named_at_the_end(proven, capsys):
    assert bare.main(["--if-possible", f"dist/{OTHER}", f"dist/{OURS}"]) == 0
    assert proven == [OURS]
    assert capsys.readouterr().out == (f"{OTHER}: not run: aarch64 cannot run here: "
                                       "apt install qemu-user-static binfmt-support\n")


def test_wheels_of_another_machine_run_under_a_registered_emulator(proven, tmp_path, capsys):
    (tmp_path / "qemu-aarch64").touch()
    assert bare.main(["--if-possible", f"dist/{OTHER}"]) == 0
    assert proven == [OTHER] and capsys.readouterr().out == ""


@pytest.mark.parametrize("name", [OTHER.replace("manylinux_2_28", "musllinux_1_2"), "other.whl"])
def test_wheel_without_a_debian_python_is_rejected(name):
    with pytest.raises(SystemExit, match="no Debian has a Python for it"):
        bare.main([name])


def test_missing_emulator_stops_a_test_that_was_requested(monkeypatch, tmp_path):
    monkeypatch.setattr(bare.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(bare, "EMULATORS", tmp_path)
    with pytest.raises(SystemExit, match="qemu-user-static"):
        bare.proven(Path(OTHER))
