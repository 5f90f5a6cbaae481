"""The record of the public Python API: it is current, and every kind of change shows in it."""

import pytest

from release import public_api

SOURCE = '''
__all__ = ["Client", "call"]

class Base:
    def close(self) -> None: ...

class Client(Base):
    name: str = ""
    def __init__(self, host: str, /, *, port: int = 1): ...
    def _private(self): ...

def call(x: int) -> str: ...
def hidden(): ...
'''


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Return the lines of the record of a source text."""
    monkeypatch.setattr(public_api, "MODULES", ("pylog.client",))

    def of(source: str) -> list[str]:
        folder = tmp_path / "pylog" / "client"
        folder.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pylog" / "__init__.py").touch()
        (folder / "__init__.py").write_text(source)
        return public_api.recorded(tmp_path).splitlines()[1:]

    return of


def test_the_record_is_current():
    assert public_api.RECORD.read_text() == public_api.recorded(), (
        "the public API has changed: run `make docs`, and name the change in CHANGELOG.md")


def test_classes_are_recorded_with_inherited_members(record):
    assert record(SOURCE) == [
        "pylog.client.Client(Base)",
        "pylog.client.Client.__init__(self, host: str, /, *, port: int = 1)",
        "pylog.client.Client.close(self) -> None", "pylog.client.Client.name",
        "pylog.client.call(x: int) -> str"]


@pytest.mark.parametrize("old, new", [
    ("close", "shut"), ("port", "gate"), ("= 1", "= 2"), ("x: int", "x: int | None"),
    ("-> str", "-> bytes"), (', "call"', ""), ("host: str, /", "host: str"),
    ("*, port", "port")])
def test_a_change_shows_in_the_record(record, old, new):
    assert record(SOURCE.replace(old, new)) != record(SOURCE)
