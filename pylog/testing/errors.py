"""What goes wrong with a broker under a test.

Owns: nothing.
Invariants: (1) both kinds can be sent from a child process to its parent.
"""


class BrokerFailed(Exception):
    """The broker did not start, ended by itself, or did not do what it was asked for."""


class Refused(BrokerFailed):
    """The broker answered with an error code. `code`: Kafka's."""

    def __init__(self, code: int, text: str):
        super().__init__(code, text)
        self.code = code

    def __str__(self) -> str:
        return f"{self.args[1]} (error {self.code})"
