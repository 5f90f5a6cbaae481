"""A virtual clock that advances only when nothing else can run, for the controller's periodic work.
"""

import random

from tests.sim.loop import Loop

HOURS = 3600 * 24


def run(scenario):
    """Return the result of the coroutine scenario(loop); threads run as iterations of the loop."""
    loop = Loop(random.Random(7), lambda work: False)
    try:
        task = loop.create_task(scenario(loop))
        end = loop.time() + HOURS
        while not task.done():
            assert loop.time() < end, "it waits for ever"
            loop.run_for(1.0)
        return task.result()
    finally:
        loop.close()
