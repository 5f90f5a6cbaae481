"""What ends a login.

Owns: nothing.
Invariants: (1) a text never says which part of the credentials was wrong, nor repeats any of it.
Source: Kafka's SaslAuthenticationException.
"""


class AuthenticationFailed(Exception):
    """The client is not who it says; `text` is told to it, None for the usual one. `reason`: what
    only the log says, None where that says the text too."""

    def __init__(self, text: str | None = None, reason: str | None = None):
        super().__init__(text)
        self.text, self.reason = text, reason


class TokenRefused(Exception):
    """A token that does not count, with a text for the log."""
