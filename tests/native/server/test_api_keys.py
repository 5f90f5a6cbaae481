"""API keys, versions and error codes in C equal the tables they are generated from."""

import re
from pathlib import Path

import pytest

from pylog._native.log.io_pool import IoPool
from pylog._native.server.grants import Grants
from pylog._native.server.reactor import NATIVE_VERSIONS, Reactors
from pylog.protocol import api
from pylog.protocol.errors import ErrorCode

CSRC = Path(__file__).resolve().parents[3] / "csrc"
LIMITS = {"request_bytes_max": 1 << 20, "idle_ms_max": -1, "queued_requests_max": 500,
          "fetch_bytes_max": 1 << 20, "sessions_max": 10}


def numbers(header: str, prefix: str) -> dict[str, int]:
    """Return name -> number of a header's enumerators that begin with `prefix`."""
    found = re.findall(rf"\b{prefix}(\w+) = (\d+)", (CSRC / header).read_text())
    assert found, header
    return {name: int(number) for name, number in found}


def test_native_code_serves_the_advertised_versions():
    assert {key: api.SERVED[key] for key in NATIVE_VERSIONS} == NATIVE_VERSIONS


@pytest.mark.parametrize("advertised", [(0, 2, 13, 9), (0, 3, 14, 9), (1, 4, 19, 12)])
def test_reactors_reject_versions_that_native_code_does_not_serve(advertised):
    with pytest.raises(ValueError, match="native code has"):
        Reactors(grants=Grants(), io_pool=IoPool(), network_threads=1, api_versions=[advertised],
                 **LIMITS)


def test_api_keys_match_the_protocol():
    named = numbers("serve/api_keys.h", "API_")
    assert named.pop("VERSIONS") == api.API_VERSIONS
    assert named == {name: getattr(api, name) for name in named}


def test_error_codes_match_the_protocol():
    named = numbers("tables/error_codes.h", "ERROR_")
    assert named == {name: int(getattr(ErrorCode, name)) for name in named}
