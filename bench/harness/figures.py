"""Figures of the measurements, summarized and kept as CSV."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Case:
    """Operation that was measured."""

    mode: str
    """ "single": one call after the other, each looked at; "sustained": as many calls as there can be.
    "remote", "connection" and "beside" are of several hosts."""
    peer: str
    operation: str
    memory: str
    """For a put, state of the memory: "first" if it was never used, else "reused"."""
    size: int
    """Size of an object in bytes."""
    batch: int
    """Number of objects in a call."""
    clients: int
    """Number of processes at a time."""


@dataclass(frozen=True)
class Row(Case):
    """Result of a measurement. Times are those of a call divided by the objects in it."""

    samples: int
    median_us: float
    p99_us: float
    """99th percentile; the largest value of fewer than a hundred samples."""
    ops_per_s: float
    """Objects per second, of all clients together."""
    gb_per_s: float | None
    """Bytes moved in 10^9 per second; `None` for operations that leave them in place."""


Kind = TypeVar("Kind", bound="DataclassInstance")
Some = TypeVar("Some", bound=Row)


class Samples:
    """Collector of times and rates over the rounds of a run."""

    def __init__(self) -> None:
        self._ns: dict[Case, list[int]] = defaultdict(list)
        self._rates: dict[Case, list[float]] = defaultdict(list)
        self._moving: dict[Case, bool] = {}

    def add(self, case: Case, ns: Iterable[int], moves: bool, rate: float | None = None) -> None:
        """Adds the times of calls, and objects per second if clients were timed together."""
        self._ns[case].extend(ns)
        self._moving[case] = moves
        if rate is not None:
            self._rates[case].append(rate)

    def rows(self) -> list[Row]:
        """Rows of all cases."""
        return [self._row(case, ns) for case, ns in self._ns.items() if ns]

    def _row(self, case: Case, ns: list[int]) -> Row:
        rates = self._rates.get(case)
        rate = statistics.median(rates) if rates else len(ns) * case.batch / (sum(ns) / 1e9)
        return Row(
            **asdict(case),
            samples=len(ns),
            median_us=rounded(statistics.median(ns) / case.batch / 1e3),
            p99_us=rounded(percentile(ns, 0.99) / case.batch / 1e3),
            ops_per_s=rounded(rate),
            gb_per_s=rounded(rate * case.size / 1e9) if self._moving[case] else None,
        )


def percentile(values: Iterable[int], part: float) -> int:
    """Smallest value that is not below a part of all values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def ordered(rows: Iterable[Some]) -> list[Some]:
    """Rows in an order that does not depend on that of the run."""
    return sorted(
        rows,
        key=lambda row: (
            *(row.mode, row.operation, row.peer, row.memory),
            *(row.clients, row.batch, row.size),
        ),
    )


def write(path: Path, rows: Iterable[Kind], kind: type[Kind]) -> None:
    """Writes rows of any kind as a CSV, as they come."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [field.name for field in fields(kind)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def read(path: Path, kind: type[Kind]) -> list[Kind]:
    """Reads what `write` has written."""
    convert: dict[str, Callable[[str], Any]]
    convert = {
        "str": str,
        "int": int,
        "float": float,
        "float | None": lambda text: float(text) if text else None,
    }
    types = {field.name: str(field.type) for field in fields(kind)}
    with path.open(newline="") as file:
        return [
            kind(**{name: convert[types[name]](text) for name, text in line.items()})
            for line in csv.DictReader(file)
        ]


def rounded(value: float) -> float:
    """Rounds to four digits, because more are not significant."""
    return float(f"{value:.4g}")
