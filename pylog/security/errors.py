"""Errors that end a login.

Owns: nothing.
Invariants: an error text never reveals which part of the credentials was wrong and never repeats a
  part of them.
Source: Kafka's SaslAuthenticationException.
"""


class AuthenticationFailed(Exception):
    """The login failed. text: sent to the client; None: the default text. reason: for the log only;
    None: the same as text.
    """

    def __init__(self, text: str | None = None, reason: str | None = None):
        super().__init__(text)
        self.text, self.reason = text, reason


class TokenRefused(Exception):
    """The token is not valid. The text is for the log."""
