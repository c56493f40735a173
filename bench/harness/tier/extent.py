"""Regions from small to large, and from one client to many: what should cost the same.

A cluster of its own has a region of each size, on its first node. Reads and writes go to places all over the
region. Then clients of the other host connect, all of which have one region, and read one after the other.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.figures import Case, Row, Samples, percentile, rounded
from harness.network import Host
from harness.processes import Worker
from harness.progress import Progress
from harness.series import Series
from harness.tier.run import KIB, LITTLE, MANY_RUST, MIB, WORD
from harness.tier.workers import HOME, MAPPED, OTHER, REMOTE, RUST, Nodes

GIB = 1 << 30
_PLACES = 256
_PATIENCE = 300.0
_LITTLE_MEMORY = 256 * MIB
"""Memory of the node that has no region."""
_CROWD = 1
"""First part of the name of the region that many clients have."""
_CALLS = 2000
_ESTABLISHED = "01"


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    sizes: Sequence[int]
    """Sizes of regions, the largest last."""
    clients: Sequence[int]
    rounds: int
    turn: float
    """Approximate time in seconds of a turn."""


FULL = Plan((64 * MIB, 8 * GIB), (1, 10, 100, 1000), 12, 0.2)
QUICK = Plan((MIB, 16 * MIB), (1, 8), 1, 0.02)


@dataclass(frozen=True)
class Crowd:
    """Times of reads with a number of clients that have the same region."""

    clients: int
    read_us: float
    read_p99_us: float
    connections: int
    """Connections of the region's home over TCP."""


CROWD = Series("tier-crowd", Crowd)
KINDS = [
    *((MAPPED, operation, LITTLE, MANY_RUST) for operation in ("read", "write")),
    *((REMOTE, operation, size, 1) for size in (LITTLE, 64 * KIB) for operation in ("read", "write")),
]
"""Modes, operations, their sizes, and how many are timed together."""


def case(kind: tuple[str, str, int, int], region: int) -> Case:
    """Case of the rows of an operation on a region of so many bytes."""
    mode, operation, size, batch = kind
    return Case(mode, RUST, f"{operation}_over", f"{region} bytes", size, batch, 1)


def regions_of(rows: Iterable[Row]) -> list[int]:
    """Sizes of the regions that rows of `case` are about."""
    names = {f"{operation}_over" for _, operation, _, _ in KINDS}
    return sorted({int(row.memory.split()[0]) for row in rows if row.operation in names})


def measure(plan: Plan, hosts: Sequence[Host], folder: Path, say: Progress) -> tuple[list[Crowd], list[Row]]:
    """Measures both.

    Raises:
        PeerError: A node or a worker failed.
    """
    room = sum(plan.sizes) + 64 * MIB
    nodes = Nodes(["--region-memory", str(room)])
    try:
        nodes.start(hosts[:1], folder, room + _LITTLE_MEMORY)
        nodes.add(hosts[OTHER], _LITTLE_MEMORY)
        workers = {
            mode: nodes.regions(RUST, at, "mapped", f"extent-{mode}")
            for mode, at in ((MAPPED, HOME), (REMOTE, OTHER))
        }
        for worker in workers.values():
            worker.patience = _PATIENCE
        _make(workers[MAPPED], _CROWD, WORD)
        crowds = _crowds(plan, nodes, workers[REMOTE], say)
        return crowds, _sizes(plan, workers, say)
    finally:
        nodes.close()


def _make(home: Worker, owner: int, size: int) -> None:
    home.ask("measure", operation="make", size=size, owner=owner, numbers=(0, 1))


def _sizes(plan: Plan, workers: dict[str, Worker], say: Progress) -> list[Row]:
    samples, owners = Samples(), {size: _CROWD + 1 + at for at, size in enumerate(plan.sizes)}
    for size, owner in owners.items():
        say(f"a region of {size:,} bytes")
        _make(workers[MAPPED], owner, size)
    for number in range(plan.rounds + 1):
        for kind in KINDS:
            mode, operation, size, batch = kind
            say(f"regions of all sizes: {mode} {operation} of {size:,} bytes")
            for region in plan.sizes if number % 2 else reversed(plan.sizes):
                answer = workers[mode].ask(
                    "measure",
                    operation=f"{operation}_over",
                    size=size,
                    batch=batch,
                    owner=owners[region],
                    numbers=(0, _PLACES),
                    calls=_CALLS,
                    seconds=plan.turn,
                )
                # The first round is not counted.
                if number > 0:
                    samples.add(case(kind, region), answer["ns"], moves=True)
    return samples.rows()


def _crowds(plan: Plan, nodes: Nodes, other: Worker, say: Progress) -> list[Crowd]:
    found, there = [], 0
    for count in plan.clients:
        say(f"{count:,} clients")
        more = (there, count - there)
        other.ask("measure", operation="crowd", size=WORD, owner=_CROWD, numbers=more)
        there = count
        calls = max(_CALLS, 2 * count)
        ask = {"operation": "read_held", "size": WORD, "owner": _CROWD, "numbers": (0, 1), "calls": calls}
        # Each client has read once, at least.
        other.ask("measure", **ask)
        ns: list[int] = other.ask("measure", **ask)["ns"]
        found.append(
            Crowd(
                clients=count,
                read_us=rounded(statistics.median(ns) / 1e3),
                read_p99_us=rounded(percentile(ns, 0.99) / 1e3),
                connections=_connections(nodes.nodes[HOME].pid),
            )
        )
    other.ask("discard", owner=_CROWD, numbers=(0, 1))
    return found


def _connections(pid: int) -> int:
    """Connections over TCP of the host on which a process runs."""
    lines = [
        line
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    return sum(line.split()[3] == _ESTABLISHED for line in lines)
