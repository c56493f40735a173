"""`make bench-remote`: measures gets of objects on another host, by all contenders in turn.

In every round each size is measured with all contenders, one after the other, before the next size, and each
round begins with the next contender, so that other load of the machine affects all alike. In a turn the
holder puts objects, one or several getters get each object once, and the holder deletes them. Only the gets
are counted, without the first few of a turn and without the first round. Rounds go on until the time is up.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import cpu
from harness.network import Host
from harness.processes import HungError, PeerError, Worker, ask_all
from harness.progress import Progress
from harness.remote.contenders import BATCH, Contender, Plasmon, Way
from harness.remote.figures import Collected, Fetches, Turn
from harness.remote.others import Fabric

KIB, MIB = 1 << 10, 1 << 20
SIZES = [64 * 4**power for power in range(12)]
"""Sizes of objects: 64 B to 256 MiB, with 1, 4 and 64 MiB among them."""
MOST_CALLS = 200
"""Largest number of calls in a turn for each getter."""
BYTES_A_TURN = 64 * MIB
"""Number of bytes in a turn for one getter."""
BYTES_TOGETHER = 256 * MIB
"""Number of bytes in a turn for several getters."""
NOT_COUNTED = 5
"""Number of gets in four at the begin of a turn that are not counted, as caches are cold."""
HEAD_START = 150_000_000
"""Time in nanoseconds from the start signal to the start."""
_RELEASED = 5.0
"""Longest time in seconds until a node has heard that its clients have released what they got."""
TRIES = 3
"""Number of consecutive failed turns after which a way is excluded."""


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    memory: int
    """Memory of every node in bytes."""
    sizes: Sequence[int]
    getters: Sequence[int]
    turn: float
    """Time in seconds of gets in a turn. One get may take longer."""
    rounds: int
    seconds: float
    """Time in seconds for all rounds of the contenders that are quiet when idle. No longer round is begun."""
    restless_seconds: float
    """Time in seconds for all rounds of the other contenders."""


FULL = Plan(1024 * MIB, SIZES, (1, 8), turn=0.2, rounds=40, seconds=600.0, restless_seconds=45.0)
QUICK = Plan(512 * MIB, (KIB, MIB), (1, 2), turn=0.05, rounds=1, seconds=60.0, restless_seconds=30.0)

Keep = Callable[[list[Fetches]], None]
"""Function that is called after every round with the results so far."""


class Run:
    """Run of contenders that may be measured together."""

    def __init__(
        self,
        contenders: Sequence[Contender],
        plan: Plan,
        collected: Collected,
        hosts: Sequence[Host],
        folder: Path,
    ) -> None:
        self.failures: dict[str, list[str]] = {}
        self._plan = plan
        self._collected = collected
        self._say = Progress()
        self._failed: Counter[tuple[str, Way]] = Counter()
        self._next = 0
        self._contenders: list[Contender] = []
        for contender in contenders:
            self._say(f"starting {contender.label}")
            if isinstance(contender, Fabric):
                _follow_plasmon(contender, self._contenders)
            self._contenders.append(contender)
            try:
                contender.start(hosts, folder / contender.name, plan.memory)
            except (PeerError, OSError) as failure:
                self._failed_to(contender, "start", failure)
                self._drop(contender)

    def measure(self, seconds: float, keep: Keep) -> int:
        """Measures rounds until the time is up. Returns the number of counted rounds."""
        begin = time.monotonic()
        limit = begin + 1.25 * seconds
        self._round(-1, "warming up", limit)
        longest = 0.0
        for number in range(self._plan.rounds):
            started = time.monotonic()
            if number > 0 and started + longest > begin + seconds:
                return number
            whole = self._round(number, f"round {number + 1}", limit)
            keep(self._collected.rows())
            if not whole:
                self._say(f"the time is up in the middle of round {number + 1}\n")
                return number
            longest = max(longest, time.monotonic() - started)
        return self._plan.rounds

    def close(self) -> None:
        """Ends all contenders."""
        for contender in self._contenders:
            contender.close()
        self._say.end()

    def _round(self, number: int, what: str, limit: float) -> bool:
        """Measures every size with every contender. Returns whether there was time for all."""
        for size in self._plan.sizes:
            for getters in self._plan.getters:
                self._say(f"{what}: {size:,} bytes, {getters} getter{'s' * (getters > 1)}")
                for contender, way in self._turns(number):
                    if not self._fits(way, size, getters):
                        continue
                    if time.monotonic() > limit:
                        return False
                    self._take_turn(contender, way, size, getters, counted=number >= 0)
        return True

    def _turns(self, number: int) -> Iterator[tuple[Contender, Way]]:
        for place in range(len(self._contenders)):
            contender = self._contenders[(place + number) % len(self._contenders)]
            for way in contender.ways:
                if self._failed[contender.name, way] < TRIES:
                    yield contender, way

    def _fits(self, way: Way, size: int, getters: int) -> bool:
        """Whether the case makes sense, and half of a store has room for the objects of a turn."""
        sensible = way.least <= size <= way.most and (getters == 1 or way.together)
        return sensible and objects(size, getters, self._plan.memory, way.batch) > 0

    def _take_turn(self, contender: Contender, way: Way, size: int, getters: int, counted: bool) -> None:
        """Excludes a way that fails too often; the others go on."""
        try:
            turn = self._turn(contender, way, size, getters, counted)
            self._failed[contender.name, way] = 0
            if counted:
                self._collected.add(way, size, getters, turn)
        except (PeerError, OSError) as failure:
            self._failed[contender.name, way] += 1
            if isinstance(failure, HungError):
                self._drop(contender)  # Its other clients may hang as well, and the run has a limit.
            self._failed_to(contender, f"{way.operation} {size:,} bytes by {getters}", failure)

    def _drop(self, contender: Contender) -> None:
        for way in contender.ways:
            self._failed[contender.name, way] = TRIES

    def _failed_to(self, contender: Contender, what: str, failure: Exception) -> None:
        self.failures.setdefault(contender.name, []).append(f"{what}: {failure}")
        self._say(f"{contender.label} could not {what}: {failure}\n")

    def _turn(self, contender: Contender, way: Way, size: int, getters: int, counted: bool) -> Turn:
        count = objects(size, getters, self._plan.memory, way.batch)
        count = count if counted else min(2 * way.batch, count)
        numbers = (self._next, count)
        self._next += count
        workers = {number: contender.getter(way, number) for number in range(getters)}
        holders = {number: contender.holder(way, number) for number in workers}
        puts = {number: holder for number, holder in holders.items() if holder}
        try:
            for number, holder in puts.items():
                put(holder, size, number, numbers)
            if way.memory == "warm":
                _make_warm(workers, size, numbers)
            return self._get(contender, way, workers, size, numbers, counted)
        finally:
            for number, holder in puts.items():
                holder.ask("discard", owner=number, numbers=numbers)

    def _get(
        self,
        contender: Contender,
        way: Way,
        workers: dict[int, Worker],
        size: int,
        numbers: tuple[int, int],
        counted: bool,
    ) -> Turn:
        """Runs the gets. Returns their results."""
        before, servers = contender.fetched(), contender.servers()
        spent = [cpu.seconds(pids) for pids in servers]
        if len(workers) == 1:
            ns, rate, got, own = self._single(workers[0], way, size, numbers, counted)
        else:
            ns, rate, got, own = self._together(workers, way, size, numbers)
        holder, getter = (cpu.seconds(pids) - already for pids, already in zip(servers, spent, strict=True))
        moved_by = moved(before, contender.fetched(), got)
        return Turn(ns, rate, got, holder, getter + own, moved_by)

    def _single(
        self, worker: Worker, way: Way, size: int, numbers: tuple[int, int], counted: bool
    ) -> tuple[list[int], float, int, float]:
        work = {"operation": way.operation, "size": size, "owner": 0, "numbers": numbers, "batch": way.batch}
        answer = worker.ask("measure", **work, calls=numbers[1], seconds=self._plan.turn)
        ns: list[int] = answer["ns"]
        looked_at = ns[NOT_COUNTED:] if counted and len(ns) >= 4 * NOT_COUNTED else ns
        rate = len(looked_at) * way.batch / (sum(looked_at) / 1e9)
        return looked_at, rate, len(ns) * way.batch, answer["cpu_ns"] / 1e9

    def _together(
        self, workers: dict[int, Worker], way: Way, size: int, numbers: tuple[int, int]
    ) -> tuple[list[int], float, int, float]:
        """Runs all getters together. The rate is that of all objects, until the last getter has ended."""
        work: dict[int, dict[str, Any]] = {n: {"owner": n, "numbers": numbers} for n in workers}
        ask_all(workers, "prepare", {n: {**one, "operation": way.operation} for n, one in work.items()})
        start = time.monotonic_ns() + HEAD_START
        common = {"operation": way.operation, "size": size, "start": start, "seconds": self._plan.turn}
        answers = ask_all(workers, "sustain", {n: {**work[n], **common} for n in workers})
        calls = sum(answer["calls"] for answer in answers.values())
        last = max(answer["ns"] for answer in answers.values())
        ns = [one for answer in answers.values() for one in answer["sample"]]
        return ns, calls / (last / 1e9), calls, sum(answer["cpu_ns"] for answer in answers.values()) / 1e9


def objects(size: int, getters: int, memory: int, batch: int = 1) -> int:
    """Number of new objects in a turn for each getter. 0 if half of a store has no room for a call each."""
    most = BYTES_A_TURN if getters == 1 else BYTES_TOGETHER // getters
    call = size * batch
    return min(max(1, min(MOST_CALLS, most // call)), memory // 2 // getters // call) * batch


def _follow_plasmon(fabric: Fabric, contenders: Sequence[Contender]) -> None:
    """Sets bare libfabric to the provider that Plasmon uses."""
    for contender in contenders:
        if isinstance(contender, Plasmon) and "provider" in contender.facts:
            fabric.provider = contender.facts["provider"]


def put(holder: Worker, size: int, owner: int, numbers: tuple[int, int]) -> None:
    """Puts new objects, in batches where that is faster."""
    work = {"size": size, "owner": owner, "numbers": numbers}
    if "put_many" in holder.operations and numbers[1] >= BATCH:
        holder.ask("measure", operation="put_many", batch=BATCH, **work)
    else:
        holder.ask("measure", operation="put", **work)


def _make_warm(workers: dict[int, Worker], size: int, numbers: tuple[int, int]) -> None:
    """Gets every object once and evicts it, so that its location is known."""
    work = {n: {"operation": "fetch", "size": size, "owner": n, "numbers": numbers} for n in workers}
    ask_all(workers, "measure", work)
    wanted, evicted = size * numbers[1] * len(workers), 0
    deadline = time.monotonic() + _RELEASED
    while evicted < wanted:
        # A node may hear that another client has released an object only after it was asked to evict.
        evicted += workers[0].ask("evict")["bytes"]
        if evicted < wanted and time.monotonic() > deadline:
            raise PeerError(
                f"{evicted} bytes were evicted of {wanted}: not all gets would be of another host"
            )


def moved(before: dict[str, int] | None, after: dict[str, int] | None, calls: int) -> dict[str, int] | None:
    """Protocols that moved the objects of a turn. Checks that no object was here before its get."""
    if before is None or after is None:
        return None
    grown = {name: count - before.get(name, 0) for name, count in after.items()}
    if sum(grown.values()) != calls:
        raise PeerError(f"{calls} gets, but {sum(grown.values())} objects came from other hosts")
    return {name: count for name, count in grown.items() if count}


def measure(
    contenders: Sequence[Contender], plan: Plan, hosts: Sequence[Host], folder: Path, keep: Keep
) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Measures contenders. Returns failures by name and the counted rounds; figures go to `keep`.

    Contenders that use the CPU when idle are measured after the others, because they would disturb them.
    """
    collected = Collected()
    failures: dict[str, list[str]] = {}
    rounds: dict[str, int] = {}
    for restless, seconds in ((False, plan.seconds), (True, plan.restless_seconds)):
        together = [contender for contender in contenders if contender.restless == restless]
        if not together:
            continue
        run = Run(together, plan, collected, hosts, folder)
        try:
            rounds["restless" if restless else "all"] = run.measure(seconds, keep)
        finally:
            failures |= run.failures
            run.close()
    return failures, rounds
