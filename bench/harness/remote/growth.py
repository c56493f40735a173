"""`make bench-growth`: measures how the rate changes with the number of objects, nodes and getters.

There is one cluster of Plasmon in its default configuration, with clients in Rust. Every object is got once,
from another node.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import machine
from harness.network import Network
from harness.processes import PeerError, Worker, ask_all
from harness.progress import Progress
from harness.remote.contenders import GETTER, Plasmon, plasmon
from harness.remote.run import HEAD_START, TRIES, moved
from harness.series import Series

KIB, MIB = 1 << 10, 1 << 20
AXES = {"objects": "number of objects", "nodes": "nodes", "getters": "getters"}
BATCH = 64
KINDS = ((KIB, 1), (KIB, BATCH), (MIB, 1))
"""Size of an object in bytes, and number of objects in a call."""
BYTES_AN_OBJECT = 1536
"""Size of a store in bytes for each object of 1 KiB."""
PATIENCE = 300.0
"""Longest time in seconds for a million objects."""


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    objects: Sequence[int] = (1, 10, 100, 1_000, 10_000, 100_000)
    nodes: Sequence[int] = (2, 3, 4, 5, 6, 7, 8)
    getters: Sequence[int] = (1, 2, 4, 8, 16, 32)
    some: int = 4096
    """Number of objects of 1 KiB where their number does not grow; those of 1 MiB fill an eighth of a
    store."""
    memory: int = 512 * MIB
    runs: int = 5
    """Number of rounds of each point, if there is time."""
    seconds: float = 240.0
    """Time in seconds for everything. Points that are not done by then are left out."""


FULL = Plan()
QUICK = Plan(
    objects=(1, 100, 1000), nodes=(2, 3), getters=(1, 2), some=512, memory=256 * MIB, runs=1, seconds=60.0
)


@dataclass(frozen=True)
class Grown:
    """Point of a curve: objects per second for a number of objects, nodes or getters."""

    axis: str
    """Quantity that grows: a key of `AXES`."""
    at: int
    size: int
    batch: int
    nodes: int
    getters: int
    objects: int
    runs: int
    objects_per_s: float
    slowest_per_s: float
    fastest_per_s: float


GROWTH = Series("growth", Grown)


class Growing:
    """Cluster that gets more nodes as the run goes on."""

    def __init__(self, cluster: Plasmon, network: Network, plan: Plan) -> None:
        self._cluster = cluster
        self._network = network
        self._plan = plan
        self._next = 0

    def points(self) -> Iterator[Grown]:
        """Measures all points, in an order in which nodes are only added."""
        for _ in range(2):
            self._add()
        for kind in KINDS[:2]:
            for count in self._plan.objects:
                yield self._point("objects", count, kind, 1, count)
        for kind in (KINDS[0], KINDS[2]):
            for getters in self._plan.getters:
                yield self._point("getters", getters, kind, getters, self._some(kind))
        for nodes in self._plan.nodes:
            while len(self._cluster.nodes) < nodes:
                self._add()
            for kind in KINDS:
                yield self._point("nodes", nodes, kind, 1, self._some(kind))

    def _add(self) -> None:
        host = self._network.hosts[len(self._cluster.nodes)]
        self._cluster.add(host, self._plan.memory)

    def _some(self, kind: tuple[int, int]) -> int:
        size, _ = kind
        return self._plan.some if size == KIB else self._plan.memory // 8 // size

    def _point(self, axis: str, at: int, kind: tuple[int, int], getters: int, count: int) -> Grown:
        size, batch = kind
        self._try(kind, getters, min(count, 64 * getters))  # Connections and page tables; is not counted.
        rates = [self._try(kind, getters, count) for _ in range(self._plan.runs)]
        return Grown(
            axis=axis,
            at=at,
            size=size,
            batch=batch,
            nodes=len(self._cluster.nodes),
            getters=getters,
            objects=count,
            runs=len(rates),
            objects_per_s=round(statistics.median(rates), 1),
            slowest_per_s=round(min(rates), 1),
            fastest_per_s=round(max(rates), 1),
        )

    def _try(self, kind: tuple[int, int], getters: int, count: int) -> float:
        """Runs a point, twice if needed: on a busy machine a getter may not be ready in time."""
        for _ in range(TRIES - 1):
            try:
                return self._run(kind, getters, count)
            except PeerError:
                continue
        return self._run(kind, getters, count)

    def _run(self, kind: tuple[int, int], getters: int, count: int) -> float:
        """Puts objects on all nodes but the getters', and gets all. Returns objects per second."""
        size, _ = kind
        each = max(1, count // getters)
        first, self._next = self._next, self._next + each
        workers = {number: self._worker(GETTER, number) for number in range(getters)}
        nodes = [node for node in range(len(self._cluster.nodes)) if node != GETTER]
        try:
            for place, node in enumerate(nodes):
                if mine := len(range(place, each, len(nodes))):
                    numbers = (first + place, mine, len(nodes))
                    for owner in workers:
                        self._put(node, size, owner, numbers)
            before = self._cluster.fetched()
            rate = self._get(workers, kind, (first, each))
            moved(before, self._cluster.fetched(), each * getters)
            return rate
        finally:
            holder = self._worker(nodes[0], 0)
            for owner in workers:
                holder.ask("discard", owner=owner, numbers=(first, each))

    def _get(self, workers: dict[int, Worker], kind: tuple[int, int], numbers: tuple[int, int]) -> float:
        size, batch = kind
        operation = "fetch" if batch == 1 else "fetch_many"
        work = {n: {"owner": n, "numbers": numbers} for n in workers}
        ask_all(workers, "prepare", work)
        common = {"operation": operation, "size": size, "batch": batch, "seconds": PATIENCE}
        start = time.monotonic_ns() + HEAD_START * (1 + len(workers) // 8)
        answers = ask_all(workers, "sustain", {n: {**work[n], **common, "start": start} for n in workers})
        last: int = max(answer["ns"] for answer in answers.values())
        return numbers[1] * len(workers) / (last / 1e9)

    def _put(self, node: int, size: int, owner: int, numbers: tuple[int, int, int]) -> None:
        work = {"size": size, "owner": owner, "numbers": numbers, "batch": BATCH}
        self._worker(node, 0).ask("measure", operation="put_many", **work)

    def _worker(self, node: int, number: int) -> Worker:
        worker = self._cluster.client(node, number)
        worker.patience = PATIENCE
        return worker


def run(quick: bool, million: bool, results: Path) -> int:
    """Measures, and keeps the results even if it is interrupted."""
    plan = QUICK if quick else FULL
    if million:
        objects = (*plan.objects, 1_000_000)
        plan = Plan(objects=objects, memory=1_000_000 * BYTES_AN_OBJECT, seconds=4 * plan.seconds)
    (cluster, *_) = plasmon(["auto"])
    if reason := cluster.missing():
        raise SystemExit(f"Plasmon cannot be measured: {reason}")
    described: dict[str, Any] = machine.describe() | {"quick": quick, "failures": []}
    say, begin, points, failures = Progress(), time.monotonic(), [], described["failures"]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, Network(max(plan.nodes)) as network:
        described["network"] = network.description
        try:
            cluster.start([], Path(folder) / "cluster", plan.memory)
            for point in Growing(cluster, network, plan).points():
                say(f"{point.at:,} {point.axis}, {point.size:,} bytes: {point.objects_per_s:,.0f}/s")
                points.append(point)
                if time.monotonic() - begin > plan.seconds:
                    failures.append("the time was up before all was measured")
                    break
        except (PeerError, OSError) as failure:
            failures.append(str(failure))
        except KeyboardInterrupt:
            failures.append("it was ended before its time")
        finally:
            say.end()
            cluster.close()
    described |= {"seconds": round(time.monotonic() - begin), "store_bytes": plan.memory}
    GROWTH.keep(results, points, described)
    for reason in failures:
        print(f"Not all was measured: {reason}", file=sys.stderr)
    print(f"Measured in {described['seconds']} s: {results}/growth.csv", file=sys.stderr)
    return 1 if failures else 0
