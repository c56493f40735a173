"""`make bench-remote`: gets of what is on another host, by everyone in turn.

In every round each size is done by all contenders, one after the other, before the next size begins, and the
contender that begins moves on from round to round: whatever else the machine does hits all alike. A turn is
this: the holder puts objects, one getter or several get each of them once, the holder deletes them. What is
counted is the gets; the first few of a turn are not, nor is the first round. Rounds go on until time is up.
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
from harness.remote.contenders import Contender, Plasmon, Way
from harness.remote.figures import Collected, Fetches, Turn
from harness.remote.others import Fabric

KIB, MIB = 1 << 10, 1 << 20
SIZES = [64 * 4**power for power in range(12)]
"""64 B to 256 MiB; 1, 4 and 64 MiB are among them."""
MOST_OBJECTS = 200
"""In a turn, for each getter."""
BYTES_A_TURN = 64 * MIB
BYTES_TOGETHER = 256 * MIB
"""As much for several getters."""
NOT_COUNTED = 5
"""Gets at the begin of a turn, of four times as many: the contender was asleep, and its caches cold."""
HEAD_START = 60_000_000
"""Nanoseconds from the start signal to the start."""
BATCH = 64
TRIES = 3
"""Turns of a way that fail, one after the other, before it takes no more part."""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    memory: int
    """Bytes of every node."""
    sizes: Sequence[int]
    getters: Sequence[int]
    turn: float
    """Seconds of gets in a turn, at most; one get may take longer."""
    rounds: int
    seconds: float
    """For all rounds of the contenders that rest. No round is begun that would take longer."""
    restless_seconds: float
    """The same for the others."""


FULL = Plan(1024 * MIB, SIZES, (1, 8), turn=0.2, rounds=40, seconds=300.0, restless_seconds=45.0)
QUICK = Plan(512 * MIB, (KIB, MIB), (1, 2), turn=0.05, rounds=1, seconds=60.0, restless_seconds=30.0)

Keep = Callable[[list[Fetches]], None]
"""Called after every round with what there is so far."""


class Run:
    """One run, of contenders that may be measured together."""

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
        """Measures rounds until the time is up; says how many were counted."""
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
        """Ends everything."""
        for contender in self._contenders:
            contender.close()
        self._say.end()

    def _round(self, number: int, what: str, limit: float) -> bool:
        """Every size by everyone; says whether there was time for all."""
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
        """Whether it makes sense, and half of a store has room for what a turn needs."""
        sensible = way.least <= size <= way.most and (getters == 1 or way.together)
        return sensible and objects(size, getters, self._plan.memory) > 0

    def _take_turn(self, contender: Contender, way: Way, size: int, getters: int, counted: bool) -> None:
        """A way that fails too often takes no more part; the others go on."""
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
        count = objects(size, getters, self._plan.memory)
        count = count if counted else min(2, count)
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
        """The gets themselves, and what is known of them."""
        before, servers = contender.fetched(), contender.servers()
        spent = [cpu.seconds(pids) for pids in servers]
        if len(workers) == 1:
            ns, rate, calls, own = self._single(workers[0], way, size, numbers, counted)
        else:
            ns, rate, calls, own = self._together(workers, way, size, numbers)
        holder, getter = (cpu.seconds(pids) - already for pids, already in zip(servers, spent, strict=True))
        moved_by = moved(before, contender.fetched(), calls)
        return Turn(ns, rate, calls, holder, getter + own, moved_by)

    def _single(
        self, worker: Worker, way: Way, size: int, numbers: tuple[int, int], counted: bool
    ) -> tuple[list[int], float, int, float]:
        work = {"operation": way.operation, "size": size, "owner": 0, "numbers": numbers}
        answer = worker.ask("measure", **work, calls=numbers[1], seconds=self._plan.turn)
        ns: list[int] = answer["ns"]
        looked_at = ns[NOT_COUNTED:] if counted and len(ns) >= 4 * NOT_COUNTED else ns
        return looked_at, len(looked_at) / (sum(looked_at) / 1e9), len(ns), answer["cpu_ns"] / 1e9

    def _together(
        self, workers: dict[int, Worker], way: Way, size: int, numbers: tuple[int, int]
    ) -> tuple[list[int], float, int, float]:
        """All at once: the rate is that of all objects, until the last getter had its last one."""
        work: dict[int, dict[str, Any]] = {n: {"owner": n, "numbers": numbers} for n in workers}
        ask_all(workers, "prepare", {n: {**one, "operation": way.operation} for n, one in work.items()})
        start = time.monotonic_ns() + HEAD_START
        common = {"operation": way.operation, "size": size, "start": start, "seconds": self._plan.turn}
        answers = ask_all(workers, "sustain", {n: {**work[n], **common} for n in workers})
        calls = sum(answer["calls"] for answer in answers.values())
        last = max(answer["ns"] for answer in answers.values())
        ns = [one for answer in answers.values() for one in answer["sample"]]
        return ns, calls / (last / 1e9), calls, sum(answer["cpu_ns"] for answer in answers.values()) / 1e9


def objects(size: int, getters: int, memory: int) -> int:
    """New objects in a turn for each getter: none if half of a store has no room for one each."""
    most = BYTES_A_TURN if getters == 1 else BYTES_TOGETHER // getters
    return min(max(1, min(MOST_OBJECTS, most // size)), memory // 2 // getters // size)


def _follow_plasmon(fabric: Fabric, contenders: Sequence[Contender]) -> None:
    """Bare libfabric has to use the provider that Plasmon uses."""
    for contender in contenders:
        if isinstance(contender, Plasmon) and "provider" in contender.facts:
            fabric.provider = contender.facts["provider"]


def put(holder: Worker, size: int, owner: int, numbers: tuple[int, int]) -> None:
    """New objects, in batches where that is quicker."""
    work = {"size": size, "owner": owner, "numbers": numbers}
    if "put_many" in holder.operations and numbers[1] >= BATCH:
        holder.ask("measure", operation="put_many", batch=BATCH, **work)
    else:
        holder.ask("measure", operation="put", **work)


def _make_warm(workers: dict[int, Worker], size: int, numbers: tuple[int, int]) -> None:
    """Every object has been here, and is not any more: where it is, is known."""
    work = {n: {"operation": "fetch", "size": size, "owner": n, "numbers": numbers} for n in workers}
    ask_all(workers, "measure", work)
    evicted = workers[0].ask("evict")["bytes"]
    if evicted < (wanted := size * numbers[1] * len(workers)):
        raise PeerError(f"{evicted} bytes were evicted of {wanted}: not all gets would be of another host")


def moved(before: dict[str, int] | None, after: dict[str, int] | None, calls: int) -> dict[str, int] | None:
    """What moved the objects of a turn; every get must have been of one that was not here."""
    if before is None or after is None:
        return None
    grown = {name: count - before.get(name, 0) for name, count in after.items()}
    if sum(grown.values()) != calls:
        raise PeerError(f"{calls} gets, but {sum(grown.values())} objects came from other hosts")
    return {name: count for name, count in grown.items() if count}


def measure(
    contenders: Sequence[Contender], plan: Plan, hosts: Sequence[Host], folder: Path, keep: Keep
) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Measures contenders: failures by name, and how many rounds were counted; figures go to `keep`.

    Those that do not rest are measured after the others, which they would disturb.
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
