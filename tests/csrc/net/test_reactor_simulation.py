"""The timing of reactors, with simulated clock, kernel and serve.

Each scene is a process of a few milliseconds. Time advances only when the scene says so.
"""

import pytest

from tests.csrc.programs import built
from tests.csrc.scenes import names, play

PARTS = tuple(f"*/{name}.c" for name in (
    "accept", "auth_gate", "connection", "connection_list", "events", "eviction", "frames",
    "handshake", "heartbeat_cache", "input", "ip_connections", "listener", "mailbox", "output",
    "plain_transport", "quotas", "reactor", "reactor_pool", "receive", "request_timing", "requests",
    "response", "slab", "time_slice", "timers"))
PLAYED = ("accept4", "calloc", "clock_gettime", "epoll_ctl", "epoll_wait", "getsockname", "malloc",
          "realloc", "recv", "sched_yield", "send", "sendfile", "sendmsg", "timerfd_settime")
PROGRAMS = ("reactor_responses", "reactor_buffers", "reactor_deadlines", "reactor_accepts",
            "reactor_closing", "reactor_authentication", "reactor_quotas", "reactor_heartbeats",
            "reactor_loop", "reactor_sends", "reactor_starts")
# Functions that a program replaces in addition.
MORE = {"reactor_starts": ("bind", "epoll_create1", "eventfd", "getaddrinfo", "listen",
                           "pthread_create", "setsockopt", "socket", "timerfd_create")}
SCENES = [(program, scene) for program in PROGRAMS for scene in names(program)]
pytestmark = pytest.mark.timeout(600)  # the first test builds


@pytest.mark.parametrize("program, scene", SCENES, ids=[scene for _, scene in SCENES])
def test_simulated_reactor(program, scene):
    wrapped = (*PLAYED, *MORE.get(program, ()))
    play(built(program, "address", PARTS, *(f"-Wl,--wrap={name}" for name in wrapped)), scene)
