"""What `make release` checks before it prints the commands for the upload."""

import hashlib
import json
import subprocess
import zipfile
from pathlib import Path

import pytest

from release import __main__ as release
from release import components, reproduce
from release.targets import TARGETS

ROOT = Path(__file__).parents[2]


def made_wheel(folder: Path, licences, listed) -> Path:
    path = folder / "pylog_broker-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    info = "pylog_broker-0.1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for name in licences:
            archive.writestr(f"{info}/licenses/LICENSE.{name}", name)
        if listed is not None:
            archive.writestr(f"{info}/sboms/pylog-broker.cdx.json",
                             json.dumps({"components": [{"name": name} for name in listed]}))
    return path


def test_wheel_with_all_licences_and_components_passes(tmp_path):
    complete = list(components.EXPRESSIONS)
    assert release.file_problems(made_wheel(tmp_path, complete, complete)) == []


def test_wheel_without_a_licence_a_component_or_a_bill_is_rejected(tmp_path):
    complete = list(components.EXPRESSIONS)
    rest = [name for name in complete if name != "openssl"]
    [problem] = release.file_problems(made_wheel(tmp_path, rest, complete))
    assert problem.endswith(".whl: the licence of openssl is missing")
    [problem] = release.file_problems(made_wheel(tmp_path, complete, rest))
    assert problem.endswith(".whl: the component openssl is missing")
    [problem] = release.file_problems(made_wheel(tmp_path, complete, None))
    assert problem.endswith("has 0 bills of materials instead of one")


@pytest.fixture
def repository(tmp_path):
    """Return a clean repository that is ready for a release."""
    files = {
        "pylog/__init__.py": '__version__ = "0.1.0"\n',
        "pyproject.toml": '[tool.pylog]\nrepository = "https://forge.example/pylog"\n',
        "CHANGELOG.md": "# Changelog\n\n## Unreleased\n\n## 0.1.0\n\nText.\n\n## 0.0.1\n\nOld.\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for words in (["init", "-q"], ["add", "."],
                  ["-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_clean_repository_with_a_changelog_section_is_ready(repository):
    assert release.version_of(repository) == "0.1.0"
    assert release.repository_problems(repository, "0.1.0") == []


def test_open_points_of_the_repository_are_named(repository):
    (repository / "pyproject.toml").write_text('[tool.pylog]\nrepository = ""\n')
    address, changelog, changes = release.repository_problems(repository, "0.2.0")
    assert "tool.pylog.repository" in address
    assert changelog == "CHANGELOG.md: add a section `## 0.2.0`"
    assert "git status" in changes


def test_changelog_has_an_unreleased_section_above_a_short_one_of_this_version():
    text = (ROOT / "CHANGELOG.md").read_text()
    section = release.changelog_section(text, release.version_of(ROOT))
    assert 0 < len(section) <= release.CHANGELOG_LINES_MAX
    assert text.index("\n## Unreleased\n") < text.index(section[0])


def test_section_ends_where_the_next_version_begins(repository):
    text = (repository / "CHANGELOG.md").read_text()
    assert release.changelog_section(text, "0.1.0") == ["## 0.1.0", "", "Text."]
    assert release.changelog_section(text, "0.1") == []


def test_incomplete_folder_of_files_is_rejected(tmp_path):
    made_wheel(tmp_path, [], [])
    with pytest.raises(SystemExit, match="must contain an sdist and wheels of 0.1.0"):
        release.released(tmp_path, "0.1.0")
    (tmp_path / "pylog_broker-0.1.0.tar.gz").touch()
    assert len(release.released(tmp_path, "0.1.0")) == 2


def test_hashes_can_be_checked_with_sha256sum(tmp_path):
    path = tmp_path / "a.whl"
    path.write_bytes(b"content")
    assert release.sums([path]) == f"{hashlib.sha256(b'content').hexdigest()}  a.whl\n"
    subprocess.run(["sha256sum", "--check", "--quiet"], input=release.sums([path]), text=True,
                   cwd=tmp_path, check=True)


def test_remaining_commands_tag_and_upload_this_version():
    lines = "\n".join(release.remaining("0.1.0", [release.DIST / "a.whl"]))
    assert "git tag -s v0.1.0" in lines and "twine upload dist/a.whl" in lines


def test_differing_files_of_two_builds_are_named(tmp_path):
    first, second = tmp_path / "a.whl", tmp_path / "b.whl"
    for path, content in ((first, "1"), (second, "2")):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(zipfile.ZipInfo("same.py"), "")
            archive.writestr(zipfile.ZipInfo("module.so"), content)
    assert reproduce.differences(first, first) == []
    assert reproduce.differences(first, second) == ["module.so"]


def test_one_wheel_of_each_target_is_built_again(tmp_path):
    names = [f"pylog_broker-0.1.0-{python}-{python}-{target}.whl"
             for python in ("cp311", "cp313") for target in TARGETS]
    for name in (*names, "pylog_broker-0.1.0.tar.gz"):
        (tmp_path / name).touch()
    chosen = reproduce.default_files(tmp_path)
    assert len(chosen) == 1 + len(TARGETS) and chosen[0].name.endswith(".tar.gz")
