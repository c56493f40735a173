"""Operations on regions, and what they are held against, in turns.

A step is what belongs together: one operation of one size, by all who have it. In every round each step is
measured with all of them, one after the other, and each round begins with the next one. The first round, and
the first calls of a turn, are not counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from harness.figures import Case, Row, Samples
from harness.processes import PeerError
from harness.progress import Progress
from harness.tier.workers import (
    FABRIC,
    MACHINE,
    MAPPED,
    PYTHON,
    REDIS_PYTHON,
    REDIS_RUST,
    REMOTE,
    RUST,
    SLOT,
    TCP,
    Workers,
)

KIB, MIB = 1 << 10, 1 << 20
LITTLE = 64
"""Size in bytes of the reads and writes that are measured on one host, and in flight."""
WORD = 8
IN_FLIGHT = 64
BUSY = "busy"
"""Mark of rows whose turns are taken while a program of the region's host computes."""
MANY_RUST, MANY_PYTHON = 1000, 100
"""Operations between two readings of the clock, where one takes less than the clock."""
_PLACES = 256
"""Number of places that an operation visits, as far as there is room."""
_ONE_PLACE_FROM = 64 * KIB
"""Size in bytes from which all go to one place again and again, from and to one buffer of their own."""
_CALLS = 400
_NOT_COUNTED = 5
_TRIES = 3
"""Number of consecutive failures after which a way is left out."""


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    memory: int
    """Memory of a node in bytes."""
    sizes: Sequence[int]
    """Sizes of reads and writes from another host."""
    bulk: int
    """Size of fills and copies."""
    moved: Sequence[int]
    """Sizes of regions that move."""
    turn: float
    """Approximate time in seconds of a turn."""
    rounds: int
    seconds: float
    """Time in seconds for all rounds. No longer one is begun."""
    ucx: int
    """Number of calls in a test of UCX, of few bytes each."""
    ucx_seconds: float
    """Longest time in seconds of such a test."""


FULL = Plan(
    memory=5120 * MIB,
    sizes=(8, 64, KIB, 4 * KIB, 64 * KIB, MIB, 16 * MIB),
    bulk=64 * MIB,
    moved=(256 * MIB, 1024 * MIB),
    turn=0.1,
    rounds=10,
    seconds=200.0,
    ucx=10_000,
    ucx_seconds=20.0,
)
QUICK = Plan(
    memory=768 * MIB,
    sizes=(64, MIB),
    bulk=4 * MIB,
    moved=(4 * MIB,),
    turn=0.02,
    rounds=1,
    seconds=60.0,
    ucx=100,
    ucx_seconds=3.0,
)


@dataclass(frozen=True)
class Turn:
    """Way to do something: who does it in a run, and its names in rows."""

    mode: str
    peer: str
    operation: str
    size: int = WORD
    batch: int = 1
    asked: str = ""
    """Operation of the worker, if it has another name there."""
    places: int = _PLACES
    calls: int = _CALLS
    busy: bool = False
    """Whether a program of the region's host computes meanwhile."""

    @property
    def case(self) -> Case:
        """Case of the row of this turn."""
        memory = BUSY if self.busy else ""
        return Case(self.mode, self.peer, self.operation, memory, self.size, self.batch, 1)


BULK = ("fill", "copy", "copy_between", "memset", "memcpy", "move")
_MOVING = ("read", "write", "read_begun", "read_chunks", *BULK)
"""Operations that move as many bytes as they name."""


def steps(plan: Plan) -> Iterator[tuple[str, list[Turn]]]:
    """All steps of a round, with their names."""
    yield from _on_one_host()
    for size in plan.sizes:
        for operation in ("read", "write"):
            yield f"{operation} of {size:,} bytes", list(_from_afar(operation, size))
    yield (
        "adds",
        [
            *(Turn(REMOTE, peer, "fetch_add") for peer in (RUST, PYTHON, REDIS_RUST, REDIS_PYTHON)),
            *(Turn(REMOTE, peer, "fetch_add", busy=True) for peer in (RUST, REDIS_RUST)),
        ],
    )
    yield (
        "messages and wakes",
        [
            Turn(REMOTE, FABRIC, "message", asked="message_asleep"),
            *(Turn(mode, RUST, "wake", calls=50) for mode in (SLOT, REMOTE)),
        ],
    )
    yield (
        "many in flight",
        [
            Turn(REMOTE, RUST, "read_begun", LITTLE, IN_FLIGHT),
            Turn(REMOTE, PYTHON, "read_begun", LITTLE, IN_FLIGHT),
            Turn(REMOTE, FABRIC, "read_begun", LITTLE, IN_FLIGHT, "read_begun_asleep_places"),
            Turn(REMOTE, RUST, "add_begun", WORD, IN_FLIGHT),
        ],
    )
    yield "fills and copies", list(_in_bulk(plan.bulk))
    for size in plan.moved:
        yield f"move of {size >> 20} MiB", [Turn(REMOTE, RUST, "move", size, calls=2)]
    least = min(plan.moved)
    yield f"reads of {least >> 20} MiB", list(_reads_of_fabric(least))


def _on_one_host() -> Iterator[tuple[str, list[Turn]]]:
    for operation, size in (("read", LITTLE), ("write", LITTLE), ("fetch_add", WORD)):
        yield (
            f"{operation} on one host",
            [
                Turn(MAPPED, RUST, operation, size, MANY_RUST),
                Turn(MAPPED, PYTHON, operation, size, MANY_PYTHON),
                Turn(SLOT, RUST, operation, size),
                Turn(SLOT, PYTHON, operation, size),
                Turn(MAPPED, REDIS_RUST, operation, size),
                Turn(MAPPED, REDIS_PYTHON, operation, size),
            ],
        )
    yield (
        "the machine",
        [
            Turn(MAPPED, MACHINE, "locked_add", WORD, MANY_RUST),
            Turn(MAPPED, MACHINE, "futex_round_trip", 0),
        ],
    )


def _from_afar(operation: str, size: int) -> Iterator[Turn]:
    for peer in (RUST, PYTHON, REDIS_RUST, REDIS_PYTHON):
        yield Turn(REMOTE, peer, operation, size)
    if operation == "write":
        yield Turn(REMOTE, FABRIC, "write", size, asked="write_asleep_places")
        return
    yield Turn(REMOTE, TCP, "read", size, asked="fetch_places")
    yield from _reads_of_fabric(size)


def _reads_of_fabric(size: int) -> Iterator[Turn]:
    yield Turn(REMOTE, FABRIC, "read", size, asked="read_asleep_places")
    if size >= MIB:
        yield Turn(REMOTE, FABRIC, "read_chunks", size, asked="read_chunks_asleep_places")


def _in_bulk(size: int) -> Iterator[Turn]:
    for mode in (MAPPED, REMOTE):
        for operation in ("fill", "copy"):
            yield Turn(mode, RUST, operation, size)
    yield Turn(REMOTE, RUST, "copy_between", size)
    for operation in ("memset", "memcpy"):
        yield Turn(MAPPED, MACHINE, operation, size, places=1)
    yield from _reads_of_fabric(size)


class Run:
    """Run over all rounds."""

    def __init__(self, workers: Workers, plan: Plan, say: Progress) -> None:
        self.failures: dict[str, list[str]] = {}
        self._workers, self._plan, self._say = workers, plan, say
        self._samples = Samples()
        self._failed: Counter[Turn] = Counter()

    def measure(self, keep: Callable[[list[Row]], None]) -> int:
        """Measures until the time is up, and keeps the rows after every round. Returns their number."""
        begin = time.monotonic()
        self._round(-1, "warming up")
        longest = 0.0
        for number in range(self._plan.rounds):
            started = time.monotonic()
            if number > 0 and started + longest > begin + self._plan.seconds:
                return number
            self._round(number, f"round {number + 1}")
            keep(self._samples.rows())
            longest = max(longest, time.monotonic() - started)
        return self._plan.rounds

    def _round(self, number: int, what: str) -> None:
        for name, turns in steps(self._plan):
            self._say(f"{what}: {name}")
            first = number % len(turns)
            for turn in [*turns[first:], *turns[:first]]:
                if self._failed[turn] < _TRIES:
                    self._take(turn, counted=number >= 0)

    def _take(self, turn: Turn, counted: bool) -> None:
        """Takes a turn. Who fails too often is left out; the others go on."""
        try:
            worker = self._workers.client(turn.mode, turn.peer)
            if worker is None:
                return
            places = 1 if turn.size >= _ONE_PLACE_FROM else turn.places
            work = {"size": turn.size, "batch": turn.batch, "owner": 0, "numbers": (0, places)}
            seconds = self._plan.turn if counted else self._plan.turn / 2
            asked = turn.asked or turn.operation
            with self._workers.computing() if turn.busy else nullcontext():
                answer = worker.ask("measure", operation=asked, calls=turn.calls, seconds=seconds, **work)
        except (PeerError, OSError) as failure:
            self._failed[turn] += 1
            reason = f"{turn.operation} of {turn.size:,} bytes, {turn.mode}: {failure}"
            self.failures.setdefault(turn.peer, []).append(reason)
            self._say(f"{turn.peer} failed: {reason}\n")
            return
        self._failed[turn] = 0
        ns: list[int] = answer["ns"]
        if counted:
            looked_at = ns[_NOT_COUNTED:] if len(ns) >= 4 * _NOT_COUNTED else ns
            self._samples.add(turn.case, looked_at, moves=turn.operation in _MOVING)
