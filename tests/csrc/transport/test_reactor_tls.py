"""TLS without a reactor: records, rejections and names, between two ends in one process."""

import pytest

from tests.csrc.programs import built
from tests.csrc.scenes import names, play

PARTS = ("transport/tls_context.c", "transport/certificate_name.c", "transport/tls_transport.c",
         "transport/plain_transport.c")
LINKED = "-Wl,--wrap=send,--wrap=recv,--no-as-needed,-lssl,-lcrypto"
pytestmark = pytest.mark.timeout(300)  # the first test builds


@pytest.mark.parametrize("scene", names("reactor_tls"))
def test_tls_without_a_reactor(scene):
    play(built("reactor_tls", "address", PARTS, LINKED), scene)
