"""Figures of files: rates and times over the rounds of a run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from harness.cpu import Spent
from harness.figures import rounded
from harness.series import Series

RATE, OPERATIONS, TIME, SECONDS = "MB/s", "operations/s", "us", "s"
"""Units. Of the first two more is better."""
CORES, SWITCHES = "core-us", "switches"
"""Units of what the machine spends on a MB that is moved, or on an operation: time of cores, and changes of
the thread that a core runs."""
OTHER, OWN = "other", "own"
"""Hosts of programs: another one than the host that stores and decides, or that host itself."""


@dataclass(frozen=True)
class Task:
    """Measurement that a figure is of."""

    part: str
    """Part of the measurement to which the task belongs."""
    store: str
    operation: str
    where: str
    """`OTHER` or `OWN`."""
    processes: int
    size: int
    """Bytes in a call, or of a small file."""
    unit: str


@dataclass(frozen=True)
class Figure(Task):
    """Result over all rounds."""

    rounds: int
    median: float
    least: float
    most: float


FILES = Series("files", Figure)


class Collected:
    """Values of all rounds."""

    def __init__(self) -> None:
        self._values: dict[Task, list[float]] = defaultdict(list)

    def add(self, task: Task, value: float) -> None:
        """Adds the value of a round."""
        self._values[task].append(value)

    def spend(self, task: Task, spent: Spent, amount: float) -> None:
        """Adds what the machine spent in a round on so many MB, or operations."""
        self.add(replace(task, unit=CORES), spent.core_seconds * 1e6 / amount)
        self.add(replace(task, unit=SWITCHES), spent.switches / amount)

    def figures(self) -> list[Figure]:
        """Figures of everything that was measured."""
        return [
            Figure(
                **asdict(task),
                rounds=len(values),
                median=rounded(statistics.median(values)),
                least=rounded(min(values)),
                most=rounded(max(values)),
            )
            for task, values in self._values.items()
        ]


def ordered(figures: Iterable[Figure]) -> list[Figure]:
    """Figures in an order that does not depend on that of the run."""
    return sorted(figures, key=_key)


def _key(one: Figure) -> tuple[object, ...]:
    return one.part, one.operation, one.where, one.store, one.size, one.processes, one.unit


class Found:
    """Figures by what they measure."""

    def __init__(self, figures: Iterable[Figure]) -> None:
        self.figures = list(figures)

    def find(
        self, part: str, store: str, operation: str, where: str, processes: int = 1, size: int | None = None
    ) -> Figure | None:
        """Figure of a measurement, if there is one; of any size, if none is given."""
        wanted = (part, store, operation, where, processes)
        for one in self.figures:
            is_it = (one.part, one.store, one.operation, one.where, one.processes) == wanted
            if is_it and size in (None, one.size) and one.unit not in (CORES, SWITCHES):
                return one
        return None

    def spent(self, like: Figure, unit: str) -> Figure | None:
        """Cost to the machine of the work that a figure tells of, in `CORES` or `SWITCHES`."""
        key = _key(replace(like, unit=unit))
        return next((one for one in self.figures if _key(one) == key), None)

    def processes(self, part: str, operation: str) -> list[int]:
        """Numbers of processes with which an operation was measured."""
        found = {one.processes for one in self.figures if (one.part, one.operation) == (part, operation)}
        return sorted(found)

    def stores(self, part: str) -> list[str]:
        """Names of all that were measured in a part."""
        return sorted({one.store for one in self.figures if one.part == part})
