"""Faults of machines. Each is a generator: the fault is active at its `yield`, then undone.

Owns: nothing.
Invariants: majority: a fault leaves a majority of the machines unaffected, unless its name contains
  `all` or `two`; recovery: afterwards every machine runs and reaches every other.
"""

import time
from contextlib import contextmanager

from bench.network import CLIENTS

FAULTS = {}
CLOCK_S = 50 * 60  # Less than an hour, the limit for record timestamps ahead of the broker's clock.


def fault(function):
    """Register a fault: it takes machines and a random source, and yields a description."""
    made = contextmanager(function)
    FAULTS[function.__name__] = made
    return made


def _victim(machines, chance):
    return machines.of[chance.choice(sorted(machines.of))]


def _seed(chance) -> int | None:
    """Return a seed that chooses which unsynced writes survive, or None to lose them all."""
    return chance.randrange(1, 1 << 32) if chance.random() < 0.5 else None


def _started(machine) -> None:
    machine.spawn()
    machine.await_ready()


@fault
def killed(machines, chance):
    machine = _victim(machines, chance)
    machine.kill()
    yield f"kill -9 of {machine.number}"
    _started(machine)


@fault
def killed_and_back(machines, chance):
    machine = _victim(machines, chance)
    machine.kill()
    _started(machine)
    yield f"kill -9 of {machine.number}, started at once"


@fault
def powerless(machines, chance):
    machine = _victim(machines, chance)
    # The other machines notice nothing: no connection is closed.
    machines.network.isolate(machine.number)
    machine.kill()
    machines.network.reboot(machine.number)
    machine.disk.cut(_seed(chance))
    yield f"power cut at {machine.number}"
    machines.network.heal()
    _started(machine)


@fault
def all_powerless(machines, chance):
    for machine in machines.of.values():
        machine.kill()
    for machine in machines.of.values():
        machine.disk.cut(_seed(chance))
    yield "power cut everywhere"
    for machine in machines.of.values():
        machine.spawn()
    for machine in machines.of.values():
        machine.await_ready()


@fault
def all_killed(machines, chance):
    for machine in machines.of.values():
        machine.kill()
    yield "kill -9 of all"
    for machine in machines.of.values():
        machine.spawn()
    for machine in machines.of.values():
        machine.await_ready()


def _one_by_one(machines, chance, count: int) -> list:
    """Return the given number of machines in random order."""
    return [machines.of[number] for number in chance.sample(sorted(machines.of), count)]


def _started_in_turn(chosen, chance) -> None:
    """Start the machines in the order in which they failed: the most outdated one starts first."""
    for machine in chosen:
        machine.spawn()
        time.sleep(chance.uniform(0, 3))
    for machine in chosen:
        machine.await_ready()


@fault
def two_killed_in_turn(machines, chance):
    first, second = chosen = _one_by_one(machines, chance, 2)
    first.kill()
    time.sleep(chance.uniform(0.5, 5))
    second.kill()
    yield f"kill -9 of {first.number}, later of {second.number}; they come back in that order"
    _started_in_turn(chosen, chance)


@fault
def all_killed_in_turn(machines, chance):
    chosen = _one_by_one(machines, chance, len(machines.of))
    for machine in chosen:
        machine.kill()
        time.sleep(chance.uniform(0, 4))
    yield f"kill -9 of {[machine.number for machine in chosen]}; they come back in that order"
    _started_in_turn(chosen, chance)


@fault
def all_powerless_in_turn(machines, chance):
    chosen = _one_by_one(machines, chance, len(machines.of))
    for machine in chosen:
        machine.kill()
        machine.disk.cut(_seed(chance))
    yield f"power cut at {[machine.number for machine in chosen]}; they come back in that order"
    _started_in_turn(chosen, chance)


@fault
def cut_off_and_killed(machines, chance):
    alone, other = _one_by_one(machines, chance, 2)
    machines.network.isolate(alone.number)
    time.sleep(chance.uniform(0.5, 5))
    other.kill()
    yield f"{alone.number} is cut off, then kill -9 of {other.number}"
    machines.network.heal()
    time.sleep(chance.uniform(0, 3))
    _started(other)


@fault
def hung(machines, chance):
    machine = _victim(machines, chance)
    machine.pause()
    yield f"{machine.number} hangs"
    machine.go_on()


@fault
def isolated(machines, chance):
    machine = _victim(machines, chance)
    machines.network.isolate(machine.number)
    yield f"{machine.number} is cut off"
    machines.network.heal()


@fault
def deaf(machines, chance):
    machine = _victim(machines, chance)
    for other in machines.of:
        if other != machine.number:
            machines.network.cut(other, machine.number)
    yield f"{machine.number} hears no machine"
    machines.network.heal()


@fault
def mute(machines, chance):
    machine = _victim(machines, chance)
    for other in machines.of:
        if other != machine.number:
            machines.network.cut(machine.number, other)
    yield f"no machine hears {machine.number}"
    machines.network.heal()


@fault
def one_way(machines, chance):
    source, goal = chance.sample(sorted(machines.of), 2)
    machines.network.cut(source, goal)
    yield f"{goal} does not hear {source}"
    machines.network.heal()


@fault
def apart(machines, chance):
    one, other = chance.sample(sorted(machines.of), 2)
    machines.network.cut(one, other)
    machines.network.cut(other, one)
    yield f"{one} and {other} do not hear each other"
    machines.network.heal()


@fault
def no_clients(machines, chance):
    machine = _victim(machines, chance)
    machines.network.cut(CLIENTS, machine.number)
    yield f"{machine.number} hears no client"
    machines.network.heal()


@fault
def full(machines, chance):
    machine = _victim(machines, chance)
    machine.fill()
    yield f"the disk of {machine.number} is full"
    machine.free()


@fault
def clock(machines, chance):
    machine = _victim(machines, chance)
    ahead_s = chance.uniform(-CLOCK_S, CLOCK_S)
    machine.set_clock(ahead_s)
    yield f"the clock of {machine.number} jumps by {ahead_s:.0f} s"
    machine.set_clock(0)


@fault
def restarted(machines, chance):
    machine = _victim(machines, chance)
    assert machine.stop() == 0, machine.tail()
    yield f"{machine.number} is stopped"
    _started(machine)


@fault
def replaced(machines, chance):
    machine = _victim(machines, chance)
    machine.kill()
    machine.wipe()
    yield f"{machine.number} is replaced by an empty machine"
    _started(machine)
