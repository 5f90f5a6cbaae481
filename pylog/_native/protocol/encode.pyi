class Encoded:
    """The result of Program.encoded: an encoded struct."""

    def __len__(self) -> int: ...
