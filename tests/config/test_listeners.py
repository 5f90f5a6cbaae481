"""Which hosts name this machine only."""

import pytest

from pylog.config.listeners import is_loopback


@pytest.mark.parametrize(("host", "is_so"), [
    ("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("", False),
    ("0.0.0.0", False), ("10.0.0.1", False), ("::", False),
    # A name that anybody can register.
    ("127.0.0.1.example.org", False)])
def test_loopback_is_distinguished_from_reachable_addresses(host, is_so):
    assert is_loopback(host) is is_so
