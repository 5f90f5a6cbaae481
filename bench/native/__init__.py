"""Kernels on their own: pytest-benchmark, rates in extra_info."""


def note_rate(benchmark, unit: str, amount: float) -> None:
    """Puts `amount` per second into the bench's extra_info as `unit`, at the best round: what else
    runs on the machine only ever adds.
    """
    if benchmark.stats is not None:  # None under --benchmark-disable
        benchmark.extra_info[unit] = round(amount / benchmark.stats.stats.min, 3)
