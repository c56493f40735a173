"""Figures of fetches: times and rates, and the CPU time on either host."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field

from harness.figures import Case, Row, Samples, rounded
from harness.remote.contenders import Way
from harness.series import Series

GIB = 1 << 30


@dataclass(frozen=True)
class Fetches(Row):
    """Results for one way, size and number of getters."""

    turns: int
    """Number of turns."""
    holder_cpu_s_per_gib: float | None
    """CPU time in seconds of server and clients on the host that has the objects."""
    getter_cpu_s_per_gib: float | None
    """CPU time in seconds of server and clients on the host that gets the objects."""
    moved_by: str
    """Protocol of Plasmon that moved the objects, by its own counters."""


REMOTE = Series("remote", Fetches)


@dataclass
class Turn:
    """Results of one turn."""

    ns: list[int]
    """Times of single calls, without warm-ups."""
    rate: float
    """Objects per second, of all getters together."""
    objects: int
    """Number of all objects that were got."""
    holder_cpu: float
    getter_cpu: float
    moved_by: dict[str, int] | None = None


@dataclass
class _Costs:
    turns: int = 0
    bytes: int = 0
    holder: float = 0.0
    getter: float = 0.0
    moved_by: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class Collected:
    """Collector of turns over the rounds of a run."""

    def __init__(self) -> None:
        self._samples = Samples()
        self._costs: dict[Case, _Costs] = defaultdict(_Costs)

    def add(self, way: Way, size: int, getters: int, turn: Turn) -> None:
        """Adds the results of a turn."""
        case = Case("remote", way.peer, way.operation, way.memory, size, way.batch, getters)
        self._samples.add(case, turn.ns, moves=True, rate=turn.rate)
        costs = self._costs[case]
        costs.turns += 1
        costs.bytes += turn.objects * size
        costs.holder += turn.holder_cpu
        costs.getter += turn.getter_cpu
        for name, count in (turn.moved_by or {}).items():
            costs.moved_by[name] += count

    def rows(self) -> list[Fetches]:
        """Rows of all cases."""
        return [self._row(row) for row in self._samples.rows()]

    def _row(self, row: Row) -> Fetches:
        case = Case(row.mode, row.peer, row.operation, row.memory, row.size, row.batch, row.clients)
        costs = self._costs[case]
        gib = costs.bytes / GIB
        return Fetches(
            **asdict(row),
            turns=costs.turns,
            holder_cpu_s_per_gib=rounded(costs.holder / gib),
            getter_cpu_s_per_gib=rounded(costs.getter / gib),
            moved_by=" ".join(sorted(costs.moved_by)),
        )
