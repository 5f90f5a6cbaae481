"""Details read from certificates."""

import pytest
from cryptography import x509

from pylog.security.tls import key_stores
from pylog.testing.certificates import Authority

AUTHORITY = Authority()


@pytest.mark.parametrize("days", [10, -2, 36_500])
def test_the_day_on_which_a_chain_ends_is_its_first_certificates(days):
    made = AUTHORITY.issue(days=days)
    first, *_ = x509.load_pem_x509_certificates(made.chain)
    ends = str(first.not_valid_after_utc.date())
    assert key_stores.chain_expiry(made.chain) == ends
    assert key_stores.chain_expiry(made.key + made.chain + AUTHORITY.pem) == ends


@pytest.mark.parametrize("text", [
    b"", b"-----BEGIN CERTIFICATE-----\nAAA\n-----END CERTIFICATE-----\n",
    b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_invalid_certificate_has_no_expiry(text):
    assert key_stores.chain_expiry(text) == ""
