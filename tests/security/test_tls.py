"""The TLS of a listener, as its broker tells of it."""

import logging

from pylog._native.tls import library
from pylog.testing import Broker


def test_a_start_says_which_library_encrypts(caplog):
    with caplog.at_level(logging.INFO, "pylog.tls"), Broker(tls=True):
        [told] = [one for one in caplog.records if one.message == "the listener speaks TLS"]
    assert (told.library, told.listener) == (library(), "SSL")
