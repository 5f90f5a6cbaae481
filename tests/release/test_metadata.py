"""Metadata of the package, and what a build reports when it cannot succeed."""

import importlib.util
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from release.pythons import PYTHONS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def setup_script():
    """Return the module setup.py."""
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_the_readme_lead_to_the_files_of_the_release(setup_script):
    text = "[a](docs/x.md#part), [b](https://example.org/y), [c](#here), [`d`](../LICENSE)"
    assert setup_script.readme(text, "https://forge.example/pylog", "0.1.0") == (
        "[a](https://forge.example/pylog/blob/v0.1.0/docs/x.md#part), "
        "[b](https://example.org/y), [c](#here), "
        "[`d`](https://forge.example/pylog/blob/v0.1.0/../LICENSE)")


def test_readme_without_a_repository_has_no_relative_links(setup_script):
    text = setup_script.readme((ROOT / "README.md").read_text(), "", "0.1.0")
    targets = {target for _, target in setup_script.LINK.findall(text)}
    assert all(target.startswith(("https://", "http://", "#")) for target in targets), targets


def test_metadata_names_the_repository_and_the_changelog(setup_script):
    found = setup_script.urls("https://forge.example/pylog", "0.1.0")
    assert found["Repository"] == "https://forge.example/pylog"
    assert found["Changelog"] == "https://forge.example/pylog/blob/v0.1.0/CHANGELOG.md"
    assert setup_script.urls("", "0.1.0") == {}


def test_classifiers_name_the_python_versions_that_wheels_are_built_for():
    prefix = "Programming Language :: Python :: 3."
    named = {text.removeprefix(prefix) for text in PROJECT["project"]["classifiers"]
             if text.startswith(prefix)}
    assert {f"3.{minor}" for minor in named} == set(PYTHONS)


def test_classifiers_state_linux_only_and_typed():
    classifiers = PROJECT["project"]["classifiers"]
    assert [text for text in classifiers if text.startswith("Operating System")] == [
        "Operating System :: POSIX :: Linux"]
    assert "Typing :: Typed" in classifiers


def test_tools_of_developers_are_groups_and_not_public_extras():
    assert {"dev", "release"} <= set(PROJECT["dependency-groups"])
    assert not {"dev", "release"} & set(PROJECT["project"]["optional-dependencies"])


@pytest.fixture
def include(tmp_path, setup_script):
    """Return a folder with all headers that a build needs, which are empty."""
    for name in ("stdio.h", *setup_script.HEADERS):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_missing_headers_are_reported_with_their_debian_and_fedora_packages(setup_script, include):
    flags = ["-nostdinc", f"-I{include}"]
    assert setup_script.missing_headers(["gcc"], flags) == []
    (include / "isa-l/igzip_lib.h").unlink()
    (include / "openssl/ssl.h").unlink()
    missing = setup_script.missing_headers(["gcc"], flags)
    assert missing == ["isa-l/igzip_lib.h", "openssl/ssl.h"]
    advice = setup_script.installation_advice(missing)
    assert "without the headers isa-l/igzip_lib.h, openssl/ssl.h." in advice
    assert "apt install libisal-dev libssl-dev" in advice
    assert "dnf install isa-l-devel openssl-devel" in advice


@pytest.mark.parametrize("compiler, flags", [("no-such-compiler", []), ("gcc", ["-nostdinc"])])
def test_missing_compiler_is_reported_with_all_packages(setup_script, compiler, flags):
    missing = setup_script.missing_headers([compiler], flags)
    assert missing is None
    assert "apt install gcc libc6-dev python3-dev libisal-dev" in (
        setup_script.installation_advice(missing))


def test_other_systems_and_free_threaded_python_are_rejected_with_the_reason(
        setup_script, monkeypatch):
    assert setup_script.unsupported_reason() is None
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: 1)
    assert "free-threaded Python" in setup_script.unsupported_reason()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Linux only" in setup_script.unsupported_reason()


def test_installation_guide_lists_every_extra():
    text = (ROOT / "docs/howto/install.md").read_text()
    missing = [name for name in PROJECT["project"]["optional-dependencies"]
               if f"`{name}`" not in text]
    assert missing == []
