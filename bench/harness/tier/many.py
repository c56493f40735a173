"""Growth of time and memory with the number of regions, and of the time of a map with the size of a region.

Regions of 64 bytes are made on one of two nodes. Both nodes keep the whole directory, so what the home has
beyond the other one is what the regions themselves cost. Memory is that of the process which no other process
shares (`RssAnon`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.figures import Case, Row, Samples, percentile, rounded
from harness.network import Host
from harness.processes import Worker
from harness.progress import Progress
from harness.series import Series
from harness.tier.workers import HOME, OTHER, REMOTE, RUST, Nodes

SIZE = 64
LARGE = 64 << 20
"""Size in bytes of a region whose map is held against that of a small one."""
_OWNER = 1
_LOOKED_AT = 1000
"""Number of calls that are looked at: the last ones of those that make, and as many maps and reads."""
_MAPS = 100
"""Number of maps of each size."""
_HELD = 100_000
"""Number of mappings whose memory is measured: many, since the nodes give memory back meanwhile."""
_SETTLED = 1.0
"""Time in seconds after which the directory knows what was made."""
_PATIENCE = 300.0


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    regions: Sequence[int]
    memory: int
    """Memory of a node in bytes."""


FULL = Plan((1_000, 10_000, 100_000, 1_000_000), 1024 << 20)
QUICK = Plan((100, 1_000), 256 << 20)


@dataclass(frozen=True)
class Many:
    """Times of operations, and memory, with a number of regions."""

    regions: int
    make_us: float
    make_p99_us: float
    map_home_us: float
    """Time to map a region from the host of its home."""
    map_us: float
    """Time to map a region from another host."""
    map_p99_us: float
    read_us: float
    """Time to read one region after the other, from another host."""
    read_p99_us: float
    own_bytes: float
    """Bytes a region that the home has beyond the other node."""
    directory_bytes: float
    """Bytes a region that the other node has, which knows only where regions are."""
    store_bytes: float
    """Bytes a region of the home's store."""
    mapping_bytes: float
    """Bytes a mapping, of both nodes together."""


MANY = Series("tier-many", Many)


def measure(plan: Plan, hosts: Sequence[Host], folder: Path, say: Progress) -> tuple[list[Many], list[Row]]:
    """Measures with a cluster of its own: stages of many regions, and maps of a small and a large one.

    Raises:
        PeerError: A node or a worker failed.
    """
    nodes = Nodes()
    try:
        nodes.start(hosts, folder, plan.memory)
        growing = _Growing(nodes, say)
        maps = growing.maps()
        return growing.measure(plan.regions), maps
    finally:
        nodes.close()


class _Growing:
    """Cluster whose regions become more."""

    def __init__(self, nodes: Nodes, say: Progress) -> None:
        self._nodes, self._say = nodes, say
        self._home = nodes.regions(RUST, HOME, "called", "many-home")
        self._other = nodes.regions(RUST, OTHER, "called", "many-other")
        for worker in (self._home, self._other):
            worker.patience = _PATIENCE

    def measure(self, counts: Sequence[int]) -> list[Many]:
        """Makes so many regions, and looks each time."""
        # Connections and tables are made; it is not counted.
        self._ask(self._home, "make", 0, 16, owner=_OWNER + 1)
        self._ask(self._other, "map", 0, 16, owner=_OWNER + 1)
        before, found, made = self._memory(), [], 0
        for count in counts:
            self._say(f"{count:,} regions")
            make = self._ask(self._home, "make", made, count - made)[-_LOOKED_AT:]
            made = count
            found.append(self._look(count, make, before))
        return found

    def maps(self) -> list[Row]:
        """Times to map regions of two sizes from another host, in turns."""
        samples, owners = Samples(), {SIZE: _OWNER + 2, LARGE: _OWNER + 3}
        for size, owner in owners.items():
            self._ask(self._home, "make", 0, 1, owner=owner, size=size)
        for _ in range(_MAPS):
            for size, owner in owners.items():
                ns = self._ask(self._other, "map", 0, 1, owner=owner)
                samples.add(Case(REMOTE, RUST, "map", "", size, 1, 1), ns, moves=False)
        return samples.rows()

    def _look(self, count: int, make: list[int], before: tuple[int, int, int]) -> Many:
        home, other, store = (now - then for now, then in zip(self._memory(), before, strict=True))
        some = min(count, _LOOKED_AT)
        step = count // some
        at_home = self._ask(self._home, "map", 0, some, step)
        mapped = self._ask(self._other, "map", 0, some, step)
        held = min(count, _HELD)
        without = self._memory()
        self._ask(self._other, "hold", 0, held, count // held)
        mapping = sum(self._memory()[:2]) - sum(without[:2])
        read = self._ask(self._other, "read_held", 0, 1, calls=2 * _LOOKED_AT)
        self._other.ask("discard", owner=_OWNER, numbers=(0, 1))
        return Many(
            regions=count,
            make_us=_median(make),
            make_p99_us=rounded(percentile(make, 0.99) / 1e3),
            map_home_us=_median(at_home),
            map_us=_median(mapped),
            map_p99_us=rounded(percentile(mapped, 0.99) / 1e3),
            read_us=_median(read),
            read_p99_us=rounded(percentile(read, 0.99) / 1e3),
            own_bytes=rounded((home - other) / count),
            directory_bytes=rounded(other / count),
            store_bytes=rounded(store / count),
            mapping_bytes=rounded(mapping / held),
        )

    def _ask(
        self,
        worker: Worker,
        operation: str,
        first: int,
        count: int,
        step: int = 1,
        owner: int = _OWNER,
        size: int = SIZE,
        **more: Any,
    ) -> list[int]:
        work = {"size": size, "owner": owner, "numbers": (first, count, step)}
        ns: list[int] = worker.ask("measure", operation=operation, **work, **more)["ns"]
        return ns

    def _memory(self) -> tuple[int, int, int]:
        """Bytes that only the home has, that only the other node has, and that regions take in the store."""
        time.sleep(_SETTLED)
        home, other = (_anonymous(node.pid) for node in self._nodes.nodes)
        return home, other, int(self._nodes.nodes[HOME].status()["regions"]["bytes"])


def _median(ns: list[int]) -> float:
    return rounded(statistics.median(ns) / 1e3)


def _anonymous(pid: int) -> int:
    """Bytes of a process that no other process shares."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
