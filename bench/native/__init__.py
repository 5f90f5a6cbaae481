"""Benches of kernels with pytest-benchmark; rates are in extra_info."""


def note_rate(benchmark, unit: str, amount: float) -> None:
    """Put `amount` per second into the bench's extra_info as `unit`, from the best round:
    interference from other processes only adds time.
    """
    if benchmark.stats is not None:  # None under --benchmark-disable
        benchmark.extra_info[unit] = round(amount / benchmark.stats.stats.min, 3)
