"""The console's own permissions."""

import pytest

from pylog.config.errors import ConfigError
from pylog.console import permissions
from tests.console.served import Served


def load(tmp_path, text):
    path = tmp_path / "permissions.toml"
    path.write_text(text)
    return permissions.load(str(path))


def test_without_a_file_everything_is_allowed():
    assert permissions.load("").permits("anyone", "administer")


def test_a_permission_needs_a_matching_user(tmp_path):
    found = load(tmp_path, 'browse = ["*"]\nproduce = ["User:team-*"]')
    assert found.permits("bob", "browse") and found.permits("team-a", "produce")
    assert not found.permits("bob", "produce") and not found.permits("team-a", "administer")


@pytest.mark.parametrize("text", ["delete = ['*']", "browse = '*'", "browse = [1]", "["])
def test_a_damaged_file_is_rejected(tmp_path, text):
    with pytest.raises(ConfigError, match=r"console\.permissions\.file"):
        load(tmp_path, text)


def test_pages_without_the_permission_are_denied(tmp_path, broker):
    path = tmp_path / "permissions.toml"
    path.write_text('browse = ["*"]')
    broker.create_topic("guarded")
    with Served({"test": {"bootstrap.servers": broker.bootstrap}},
                **{"console.permissions.file": path}) as served:
        client = served.client()
        text = client.get("/topics/guarded").text
        assert "Partitions" in text
        assert "/topics/guarded/delete" not in text and "/topics/guarded/produce" not in text
        for path in ("/topics/new", "/topics/guarded/produce", "/topics/guarded/delete", "/audit"):
            response = client.get(path)
            assert response.status == 403 and "You may not use this page" in response.text, path
        assert client.get("/topics/guarded/records/0/0/value").status == 403
