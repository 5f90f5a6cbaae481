"""Writes that may overlap, and writes that may not."""

import asyncio

from pylog.registry.write_gate import WriteGate


def run(*jobs):
    """Run one write for each subject, None: exclusive. Return the pairs that overlapped."""
    inside, overlaps = set(), set()

    async def job(gate, number, subject):
        held = gate.exclusive() if subject is None else gate.shared(subject)
        async with held:
            for other in inside:
                overlaps.add((other, number))
            inside.add(number)
            for _ in range(3):
                await asyncio.sleep(0)
            inside.discard(number)

    async def all_jobs():
        gate = WriteGate()
        async with asyncio.timeout(30):
            await asyncio.gather(*[job(gate, number, one) for number, one in enumerate(jobs)])
        assert not gate._subjects

    asyncio.run(all_jobs())
    return overlaps


def test_writes_of_different_subjects_overlap():
    assert run("a", "b") == {(0, 1)}


def test_writes_of_one_subject_do_not_overlap():
    assert run("a", "a", "a") == set()


def test_an_exclusive_write_overlaps_with_none():
    assert run("a", None, "b") == set()
    assert run(None, None) == set()
