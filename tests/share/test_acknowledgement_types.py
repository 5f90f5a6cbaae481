"""Members' acknowledgements become runs of one type."""

import random

from pylog.share.acknowledgement_types import ACCEPT, GAP, REJECT, RELEASE, Span, spans

CASES = 300


def test_consecutive_equal_types_become_runs():
    types = [ACCEPT, ACCEPT, RELEASE, REJECT, REJECT, REJECT, GAP]
    assert spans([(10, 16, types)]) == [
        Span(10, 16, [(10, 11, ACCEPT), (12, 12, RELEASE), (13, 15, REJECT), (16, 16, GAP)])]


def test_adjacent_acknowledgement_rows_with_equal_type_are_merged():
    rows = [(5, 5, [ACCEPT]), (6, 9, [ACCEPT]), (10, 11, [ACCEPT, REJECT]), (12, 12, [REJECT])]
    assert spans(rows) == [Span(5, 12, [(5, 10, ACCEPT), (11, 12, REJECT)])]


def test_gap_between_rows_starts_a_new_range():
    assert spans([(0, 1, [ACCEPT]), (3, 4, [ACCEPT])]) == [
        Span(0, 1, [(0, 1, ACCEPT)]), Span(3, 4, [(3, 4, ACCEPT)])]
    assert spans([]) == []


def test_spans_agree_with_the_rows_for_each_offset(request):
    seed = request.config.getoption("--seed")
    for number in range(CASES) if seed is None else (seed,):
        rng, rows, said, at = random.Random(number), [], {}, 0
        for _ in range(rng.randrange(1, 12)):
            at += rng.choice((0, 0, 0, 1, 5))
            size = rng.randrange(1, 8)
            types = [rng.randrange(5) for _ in range(rng.choice((1, size)))]
            rows.append((at, at + size - 1, types))
            said.update((at + index, types[index % len(types)]) for index in range(size))
            at += size
        found = spans(rows)
        runs = [run for span in found for run in span.runs]
        assert {offset: kind for first, last, kind in runs
                for offset in range(first, last + 1)} == said, f"--seed {number}"
        for span in found:
            assert (span.first, span.last) == (span.runs[0][0], span.runs[-1][1])
            assert all(one[1] + 1 == other[0] and one[2] != other[2] for one, other
                       in zip(span.runs, span.runs[1:], strict=False)), f"--seed {number}"
