"""A walk through all calls that take a time-out, while a node is stopped: each ends within its time-out."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import Any

import plasmon
import pytest
from api import LEFT_OUT, ROWS, World, calls, parameters
from conftest import ANTI_HANG

TIMEOUT = 0.2
"""Time-out of each call in seconds."""
AT_ONCE = 1.0
"""Seconds after which a call with a time-out of 0 ends, if a node stands still."""
SLACK = 0.5
"""Seconds that a call may take beyond its time-out."""
THREADS = 8
"""Number of threads that make a call at a time."""
TRIES = 2
"""Number of times that a call which was late is made again."""
AT_A_TIME = 96
"""Number of threads that make calls at a time. A client may have 256 operations under way."""
NOT_AT_ONCE = {
    "Client.buffer": "it makes room",
    "Client.create": "it makes room",
    "Client.create_and_seal": "it makes room",
    "Client.create_region": "it makes room",
    "Client.put": "it makes room",
    "Client.put_from": "it makes room",
    "Client.put_many": "it makes room",
    "Client.map_region": "it waits for the answer of nodes",
    "Client.service": "it waits for the answer of nodes",
}
"""Calls with another meaning of a time-out of 0, as docs/guide.md says."""


REPLACING: dict[str, dict[str, Any]] = {
    "Client.put": {"name": "walk-replaced", "replace": True},
    "Client.put_many": {"ids": ["walk-replaced", "walk-replaced-too"], "replace": True},
    "Client.put_from": {"name": "walk-replaced", "replace": True},
    "Client.create_and_seal": {"id": "walk-replaced", "replace": True},
    "Client.get": {"version": True},
    "aio.Client.get": {"version": True},
}
"""Arguments with which these calls replace, or tell a version."""


def takes_time_out(call: Callable[..., Any]) -> bool:
    return any(one.name == "timeout" for one in parameters(call))


TIMED = sorted(
    name for name, call in calls() if takes_time_out(call) and name not in LEFT_OUT and name in ROWS
)
"""Calls that take a time-out."""


@pytest.fixture
def stopped(request: pytest.FixtureRequest) -> Iterator[tuple[World, Callable[[], None]]]:
    """World of a client, and what stops its node or another, as the parameter says. Leases are long, so that
    a node that stands still stays a member."""
    with plasmon.LocalCluster(nodes=2, memory="256MiB", arguments=["--lease", "60"]) as cluster:
        world = World(cluster)
        pid = cluster.pids[request.param]
        try:
            yield world, lambda: os.kill(pid, signal.SIGSTOP)
        finally:
            os.kill(pid, signal.SIGCONT)
        world.close()


class Call:
    """A call that is made again and again."""

    def __init__(self, name: str, world: World, timeout: float, /, **others: Any) -> None:
        self.name = f"{name}(timeout={timeout}, **{others})"
        call, arguments = ROWS[name](world)
        self._call = call
        self._arguments = arguments | others | {"timeout": timeout}
        self._longest = (timeout or AT_ONCE) + SLACK

    def late(self) -> str | None:
        """Makes the call. Says by how much it was late, if it was."""
        began = time.monotonic()
        raised = None
        try:
            self._call(**self._arguments)
        except plasmon.Error as error:
            raised = error
        took = time.monotonic() - began
        return f"{self.name} took {took:.1f} s: {raised!r}" if took > self._longest else None

    def late_twice(self) -> bool:
        """Makes the call two times. Returns whether it was late in any."""
        return any([self.late(), self.late()])


def together(calls: list[Call], times: int) -> list[str]:
    """Makes each of the calls in `times` threads at a time, twice in each.

    A call that was late is made again when all others are over, alone, since machines are loaded. Returns
    those that were late each time.
    """
    again: set[Call] = set()
    for first in range(0, len(calls), AT_A_TIME // times):
        some = calls[first : first + AT_A_TIME // times]
        with ThreadPoolExecutor(len(some) * times) as threads:
            made = [(call, threads.submit(call.late_twice)) for call in some * times]
            again |= {call for call, one in made if one.result(ANTI_HANG)}
    late: list[str] = []
    for call in sorted(again, key=lambda one: one.name):
        tries = (call.late() for _ in range(TRIES))
        said = list(takewhile(bool, tries))
        if len(said) == TRIES:
            late.append(f"{said[-1]}")
    return late


@pytest.mark.parametrize("stopped", [0, 1], ids=["own node", "home"], indirect=True)
def test_no_call_outlives_its_time_out(stopped: tuple[World, Callable[[], None]]) -> None:
    world, stop = stopped
    calls = [Call(name, world, TIMEOUT) for name in TIMED]
    calls += [Call(name, world, TIMEOUT, **others) for name, others in REPLACING.items()]
    stop()
    late = together(calls, 1)
    assert late == []
    late = together(calls, THREADS)
    assert late == []


@pytest.mark.parametrize("stopped", [0], ids=["own node"], indirect=True)
def test_a_call_that_is_not_to_wait_ends_at_once(stopped: tuple[World, Callable[[], None]]) -> None:
    world, stop = stopped
    at_once = [name for name in TIMED if name.removeprefix("aio.") not in NOT_AT_ONCE]
    calls = [Call(name, world, 0) for name in at_once]
    stop()
    # The node said that it lives until now.
    with pytest.raises(plasmon.TimedOut):
        world.client.get("absent", timeout=0)
    assert together(calls, 1) == []
