import pytest

from pylog.protocol.counts import counted


@pytest.mark.parametrize(("number", "said"), [
    (0, "0 partitions"), (1, "1 partition"), (2, "2 partitions")])
def test_count_of_one_is_singular(number, said):
    assert counted(number, "partition") == said


def test_irregular_plural_is_used():
    assert [counted(number, "batch is whole", "batches are whole") for number in (1, 2)] == [
        "1 batch is whole", "2 batches are whole"]
