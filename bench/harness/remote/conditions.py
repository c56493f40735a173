"""Gets of Plasmon in its default configuration: over a new connection, and beside a large get.

*First*: the first get of an object of the other host in a new cluster, and some further gets, repeated with
new clusters. *Beside*: small gets of one client while another client gets a large object, compared with small
gets without other load. Only gets that ended before the large one are counted.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.figures import Case, Samples
from harness.network import Host
from harness.processes import PeerError, ask_all
from harness.progress import Progress
from harness.remote.contenders import GETTER, HOLDER, Plasmon
from harness.remote.figures import Fetches
from harness.remote.run import HEAD_START, moved, put

KIB, MIB = 1 << 10, 1 << 20
CONNECTION, BESIDE = "connection", "beside"
"""Modes of the rows."""
FIRST, REUSED = "first", "reused"
IDLE, BUSY, LARGE_ALONE, LARGE = "idle", "busy", "large_alone", "large"
"""Operations of `BESIDE`: small gets and the large get, each alone and beside the other."""
SMALL = KIB
_AFTER = 3_000_000
"""Time in nanoseconds from the begin of the large get to that of the small ones, when it is under way."""
_HEAD_START = 5 * HEAD_START
"""Time in nanoseconds until two clients with different tasks are ready."""
_ROOM = 1.25
"""Memory of a node, as a multiple of the large object."""
_CLIENTS = 2
"""Number of copies of the large object that clients keep, to put it and to compare what they got."""
_OF_MEMORY = 0.6
"""Part of the free memory that all of that may take."""
FAILURES = (PeerError, OSError, subprocess.SubprocessError)
"""Errors of a node that does not start or answer, and of a worker that could not carry out a request."""
_SMALL_SECONDS = 0.5
"""Largest number of small gets in a turn."""


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    clusters: int = 10
    sizes: Sequence[int] = (KIB, 4 * MIB)
    """Sizes in bytes of objects over a new connection."""
    reused: int = 10
    """Number of gets in each cluster after the first."""
    small: int = 2000
    """Number of small objects in a turn, which is also the number of times that the worker reports."""
    large: int = 1024 * MIB
    """Size in bytes of the large object, if there is memory."""
    turns: int = 5


FULL = Plan()
QUICK = Plan(clusters=2, reused=3, small=500, large=128 * MIB, turns=1)
_MEMORY = 256 * MIB
"""Protocols of nodes that get single objects."""


def fit(plan: Plan, available: int) -> int:
    """Size in bytes of the large object, for the free memory."""
    return min(plan.large, int(available * _OF_MEMORY / (2 * _ROOM + _CLIENTS)) // MIB * MIB)


def measure(
    make: Callable[[], Plasmon],
    hosts: Sequence[Host],
    folder: Path,
    plan: Plan,
    available: int,
    peer: str = "plasmon-auto",
) -> tuple[list[Fetches], list[str]]:
    """Measures everything. Returns the rows, and the failures."""
    say = Progress()
    collected = Kept(peer)
    failures: list[str] = []
    try:
        _first(make, hosts, folder, plan, collected, say)
    except FAILURES as failure:
        failures.append(f"first transfers: {failure}")
    try:
        _beside(make(), hosts, folder, plan, available, collected, say)
    except FAILURES as failure:
        failures.append(f"small gets beside a large one: {failure}")
    for failed in failures:
        say(f"Plasmon failed, {failed}\n")
    say.end()
    return collected.rows(), failures


class Kept:
    """Times over the turns, and the number of turns."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._samples = Samples()
        self._turns: dict[Case, int] = {}
        self._moved_by: dict[Case, set[str]] = {}

    def add(
        self,
        mode: str,
        operation: str,
        memory: str,
        size: int,
        ns: Sequence[int],
        moved_by: dict[str, int] | None = None,
    ) -> None:
        """Adds the times of a turn."""
        if not ns:
            raise PeerError(f"no get of {size} bytes ended in time ({mode}, {operation})")
        case = Case(mode, self._peer, operation, memory, size, 1, 1)
        self._samples.add(case, ns, moves=True)
        self._turns[case] = self._turns.get(case, 0) + 1
        self._moved_by.setdefault(case, set()).update(moved_by or {})

    def rows(self) -> list[Fetches]:
        """Rows of all cases."""
        rows = []
        for row in self._samples.rows():
            case = Case(row.mode, row.peer, row.operation, row.memory, row.size, row.batch, row.clients)
            by = " ".join(sorted(self._moved_by[case]))
            rows.append(
                Fetches(
                    **asdict(row),
                    turns=self._turns[case],
                    holder_cpu_s_per_gib=None,
                    getter_cpu_s_per_gib=None,
                    moved_by=by,
                )
            )
        return rows


def _first(
    make: Callable[[], Plasmon],
    hosts: Sequence[Host],
    folder: Path,
    plan: Plan,
    collected: Kept,
    say: Progress,
) -> None:
    for number in range(plan.clusters):
        for size in plan.sizes:
            say(f"first transfers: cluster {number + 1} of {plan.clusters}, {size:,} bytes")
            cluster = make()
            try:
                cluster.start(hosts, folder / f"first-{number}-{size}", _MEMORY)
                holder, getter = cluster.client(HOLDER, 0), cluster.client(GETTER, 0)
                count = 1 + plan.reused
                put(holder, size, 0, (0, count))
                before = cluster.fetched()
                ask = {"operation": "fetch", "size": size, "owner": 0, "numbers": (0, count)}
                ns: list[int] = getter.ask("measure", **ask)["ns"]
                by = moved(before, cluster.fetched(), count)
                collected.add(CONNECTION, FIRST, "cold", size, ns[:1], by)
                collected.add(CONNECTION, REUSED, "cold", size, ns[1:], by)
            finally:
                cluster.close()


def _beside(
    cluster: Plasmon,
    hosts: Sequence[Host],
    folder: Path,
    plan: Plan,
    available: int,
    collected: Kept,
    say: Progress,
) -> None:
    large = fit(plan, available)
    try:
        cluster.start(hosts, folder / "beside", int(large * _ROOM) + _MEMORY)
        Beside(cluster, plan, large, collected).measure(say)
    finally:
        cluster.close()


class Beside:
    """Measurement of small gets beside a large one, by two clients of one node."""

    def __init__(self, cluster: Plasmon, plan: Plan, large: int, collected: Kept) -> None:
        self._cluster, self._plan, self._large, self._collected = cluster, plan, large, collected
        self._holder = cluster.client(HOLDER, 0)
        self._small, self._big = cluster.client(GETTER, 0), cluster.client(GETTER, 1)
        self._next = 1
        """Numbers the objects. Object 0 of owner 1 is the large one."""

    def measure(self, say: Progress) -> None:
        """Measures all operations in each turn. The first turn is not counted."""
        put(self._holder, self._large, 1, (0, 1))
        for turn in range(-1, self._plan.turns):
            say(f"small gets beside one of {self._large >> 20} MiB: turn {turn + 1} of {self._plan.turns}")
            for memory in ("cold", "warm"):
                self._idle(memory, counted=turn >= 0)
                self._busy(memory, counted=turn >= 0)
            self._alone(counted=turn >= 0)

    def _idle(self, memory: str, counted: bool) -> None:
        numbers = self._prepare(memory)
        before = self._cluster.fetched()
        start = time.monotonic_ns() + _HEAD_START
        answer = self._small.ask("sustain", **self._gets(numbers, start))
        by = moved(before, self._cluster.fetched(), answer["calls"])
        if counted:
            self._collected.add(BESIDE, IDLE, memory, SMALL, answer["sample"], by)
        self._holder.ask("discard", owner=0, numbers=numbers)

    def _busy(self, memory: str, counted: bool) -> None:
        numbers = self._prepare(memory)
        before = self._cluster.fetched()
        start = time.monotonic_ns() + _HEAD_START
        answers = ask_all(
            {0: self._big, 1: self._small},
            "sustain",
            {0: self._large_get(start), 1: self._gets(numbers, start + _AFTER)},
        )
        big, small = answers[0], answers[1]
        # The counters do not tell which protocol moved which objects.
        moved(before, self._cluster.fetched(), small["calls"] + big["calls"])
        if counted:
            within = until(small["sample"], big["ns"] - _AFTER)
            self._collected.add(BESIDE, BUSY, memory, SMALL, within)
            self._collected.add(BESIDE, LARGE, memory, self._large, [big["ns"]])
        self._holder.ask("discard", owner=0, numbers=numbers)

    def _alone(self, counted: bool) -> None:
        self._small.ask("evict")
        before = self._cluster.fetched()
        big = self._big.ask("sustain", **self._large_get(time.monotonic_ns() + _HEAD_START))
        by = moved(before, self._cluster.fetched(), big["calls"])
        if counted:
            self._collected.add(BESIDE, LARGE_ALONE, "", self._large, [big["ns"]], by)

    def _prepare(self, memory: str) -> tuple[int, int]:
        """Makes new small objects, which are not here, as the large object is not."""
        numbers = (self._next, self._plan.small)
        self._next += self._plan.small
        put(self._holder, SMALL, 0, numbers)
        if memory == "warm":
            self._small.ask("measure", operation="fetch", size=SMALL, owner=0, numbers=numbers)
        self._small.ask("evict")
        self._small.ask("prepare", owner=0, numbers=numbers)
        self._big.ask("prepare", owner=1, numbers=(0, 1))
        return numbers

    def _gets(self, numbers: tuple[int, int], start: int) -> dict[str, object]:
        common = {"operation": "fetch", "size": SMALL, "owner": 0, "numbers": numbers}
        return {**common, "start": start, "seconds": _SMALL_SECONDS}

    def _large_get(self, start: int) -> dict[str, object]:
        common = {"operation": "fetch", "size": self._large, "owner": 1, "numbers": (0, 1)}
        return {**common, "start": start, "seconds": 1.0}


def until(ns: Sequence[int], end: int) -> list[int]:
    """Times of consecutive calls that were over by then."""
    whole, now = [], 0
    for one in ns:
        now += one
        if now > end:
            break
        whole.append(one)
    return whole
