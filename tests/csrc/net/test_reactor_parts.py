"""The parts of reactors, each in isolation at its limits."""

import pytest

from tests.csrc.programs import built
from tests.csrc.scenes import names, play

PARTS = {
    "reactor_messages": ("events", "io_pool", "mailbox", "ip_connections", "time_slice", "timers"),
    "reactor_storage": ("disk", "input", "ip_connections", "slab"),
}
PLAYED = {
    "reactor_messages": ("calloc", "eventfd", "malloc", "pthread_create", "realloc"),
    "reactor_storage": ("calloc", "fstatfs", "malloc", "realloc", "uname"),
}
SCENES = [(program, scene) for program in PARTS for scene in names(program)]
pytestmark = pytest.mark.timeout(300)  # the first test builds


@pytest.mark.parametrize("program, scene", SCENES, ids=[scene for _, scene in SCENES])
def test_single_part(program, scene):
    made = built(program, "address", tuple(f"*/{part}.c" for part in PARTS[program]),
                 *(f"-Wl,--wrap={name}" for name in PLAYED[program]))
    play(made, scene)
