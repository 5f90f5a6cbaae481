"""The error for one part of a request.

Owns: nothing.
Invariants: it never ends a request: it becomes an error code in the response.
Source: Kafka's error codes.
"""


class Refusal(Exception):
    """`error`: an ErrorCode. `message`: the text for the client, or None."""

    def __init__(self, error: int, message: str | None = None):
        super().__init__(message)
        self.error = error
        self.message = message
