"""The scenes that run with sanitizers elsewhere, here as brokers are built: without assert_slow, at
their speed."""

import subprocess

import pytest

from tests.native.plain import ENVIRONMENT
from tests.native.programs import SERVE, built
from tests.native.test_serve_requests import SCENES as REQUESTS
from tests.native.test_tails import SCENES as TAILS

pytestmark = pytest.mark.timeout(300)  # the first of them builds it


def played(name: str, parts: tuple[str, ...], *arguments: object) -> None:
    ran = subprocess.run([str(built(name, "", parts)), *map(str, arguments)], capture_output=True,
                         text=True, timeout=60, env=ENVIRONMENT)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize("scene", REQUESTS.values(), ids=REQUESTS.keys())
def test_requests(tmp_path, scene):
    played("serve_requests", SERVE, tmp_path / "data", scene)


@pytest.mark.parametrize("scene", TAILS.values(), ids=TAILS.keys())
def test_tails(tmp_path, scene):
    played("serve_tails", SERVE, tmp_path / "data", scene)


def test_gathering():
    played("gather_units", ("serve/gather.c",))


def test_sessions(random_source):
    played("sessions_units", ("serve/sessions.c",), random_source.randrange(1 << 30))
