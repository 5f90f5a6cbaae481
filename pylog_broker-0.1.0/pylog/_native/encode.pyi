class Encoded:
    """What Program.encoded gives: a struct that is written already."""

    def __len__(self) -> int: ...
