"""Times in human-readable formats."""

from datetime import UTC, datetime

import click
import pytest

from pylog.tools.cli.time_arguments import moment, shown

NOW_MS = 1_767_225_600_000


@pytest.mark.parametrize(("text", "ms"), [
    ("now", NOW_MS), ("-10m", NOW_MS - 600_000), ("-1h30m", NOW_MS - 5_400_000),
    ("-1.5s", NOW_MS - 1500), ("-250ms", NOW_MS - 250), ("-2d", NOW_MS - 172_800_000),
    ("1767225600", NOW_MS), ("1767225600000", NOW_MS), ("2026-01-01T00:00:00Z", NOW_MS),
    ("2026-01-01T02:00+02:00", NOW_MS), ("2026-01-01T00:00:00.250Z", NOW_MS + 250),
])
def test_a_time_is_read(text, ms):
    assert moment(text, NOW_MS) == ms


def test_a_time_without_a_zone_is_local():
    local = datetime.fromtimestamp(NOW_MS / 1000).strftime("%Y-%m-%dT%H:%M")
    assert moment(local, 0) == NOW_MS


@pytest.mark.parametrize("text", ["", "yesterday", "-10", "10m", "2026-13-01", "-m"])
def test_invalid_time_is_rejected(text):
    with pytest.raises(click.BadParameter):
        moment(text, NOW_MS)


def test_a_time_is_shown_in_utc():
    assert shown(NOW_MS + 7) == "2026-01-01T00:00:00.007Z"
    assert shown(-1) == shown(None) == "-"
    assert datetime.fromisoformat(shown(NOW_MS)).astimezone(UTC).timestamp() * 1000 == NOW_MS
