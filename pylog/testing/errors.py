"""Errors of brokers under test.

Owns: nothing.
Invariants: both types can be sent from a child process to its parent.
"""


class BrokerFailed(Exception):
    """The broker did not start, ended unexpectedly, or could not do what was requested."""


class Refused(BrokerFailed):
    """The broker responded with an error. code: Kafka's error code."""

    def __init__(self, code: int, text: str):
        super().__init__(code, text)
        self.code = code

    def __str__(self) -> str:
        return f"{self.args[1]} (error {self.code})"
