"""Goals of Plasmon on one host, compared with the figures."""

from __future__ import annotations

from collections.abc import Callable

from harness.figures import Row
from harness.objects import Stage
from harness.page import Goal

PYTHON, RUST = "plasmon-python", "plasmon-rust"
_ANY_SIZE = {"memory": "", "batch": 1, "clients": 1, "mode": "single"}
Key = tuple[str, str, str, str, int, int, int]


class Figures:
    """Rows of a CSV by what they measure."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self._by_case: dict[Key, Row] = {
            (row.mode, row.peer, row.operation, row.memory, row.size, row.batch, row.clients): row
            for row in rows
        }

    def find(
        self,
        peer: str,
        operation: str,
        size: int,
        memory: str = "",
        batch: int = 1,
        clients: int = 1,
        mode: str = "single",
    ) -> Row | None:
        """Row of a measurement, if there is one."""
        return self._by_case.get((mode, peer, operation, memory, size, batch, clients))

    def sizes(self, operation: str) -> list[int]:
        """Sizes at which an operation was measured, one call at a time."""
        return sorted({row.size for row in self.rows if row.operation == operation and row.mode == "single"})


def check(figures: Figures, stages: list[Stage]) -> list[Goal]:
    """All goals for which there are figures."""
    kib, mib = 1 << 10, 1 << 20
    goals = [
        _slowest(figures, "Python: `get_buffers` of one object and release, any size", PYTHON, "get", 2.0),
        _against_plasma(figures, "the same, against Plasma", "get", figures.sizes("get"), 15),
        _slowest(figures, "Python: `get` of a NumPy array, any size", PYTHON, "get_array", 5.0),
        _slowest(figures, "Rust: `get_here`, any size", RUST, "get_here", 0.3),
        _slowest(figures, "Rust: `get` of one object, any size", RUST, "get", 0.3),
        _slowest(figures, "Python: `contains`, any size", PYTHON, "contains", 1.0),
        _at_most(figures, "Python: `put` of 1 KiB", figures.find(PYTHON, "put", kib, "reused"), 15.0),
        _against_plasma(figures, "the same, against Plasma", "put", [kib], 5, "reused"),
        *(
            _puts_together(figures, *puts)
            for puts in (
                (PYTHON, "put", 1),
                (RUST, "put", 1),
                (PYTHON, "put_many", 64),
                (RUST, "put_many", 64),
            )
        ),
        *(
            _against_memcpy(figures, peer, label, size, memory)
            for peer, label in ((PYTHON, "Python"), (RUST, "Rust"))
            for size in (4 * mib, 64 * mib)
            for memory in ("first", "reused")
        ),
        *_many_objects(stages),
    ]
    return [goal for goal in goals if goal is not None]


def _slowest(figures: Figures, what: str, peer: str, operation: str, most: float) -> Goal | None:
    rows = [figures.find(peer, operation, size) for size in figures.sizes(operation)]
    return _at_most(figures, what, max(filter(None, rows), key=lambda row: row.median_us, default=None), most)


def _at_most(figures: Figures, what: str, row: Row | None, most: float) -> Goal | None:
    if row is None:
        return None
    return Goal(what, f"≤ {most:g} µs", f"{row.median_us:.3g} µs", row.median_us <= most)


def _against_plasma(
    figures: Figures, what: str, operation: str, sizes: list[int], times: int, memory: str = ""
) -> Goal | None:
    ratios = _ratios(figures, sizes, lambda size, peer: figures.find(peer, operation, size, memory))
    if not ratios:
        return None
    return Goal(what, f"≤ 1/{times}", f"1/{1 / max(ratios):.1f}", max(ratios) <= 1 / times)


def _ratios(figures: Figures, sizes: list[int], find: Callable[[int, str], Row | None]) -> list[float]:
    pairs = [(find(size, PYTHON), find(size, "plasma")) for size in sizes]
    return [ours.median_us / theirs.median_us for ours, theirs in pairs if ours and theirs]


def _puts_together(figures: Figures, peer: str, operation: str, batch: int) -> Goal | None:
    row = figures.find(peer, operation, 1 << 10, "reused", batch, 8, "sustained")
    if row is None:
        return None
    what = f"{'Python' if peer == PYTHON else 'Rust'}: 8 clients, `{operation}` of 1 KiB"
    return Goal(what, "≥ 300,000/s", f"{row.ops_per_s:,.0f}/s", row.ops_per_s >= 300_000)


def _against_memcpy(figures: Figures, peer: str, label: str, size: int, memory: str) -> Goal | None:
    put = figures.find(peer, "put", size, memory)
    copy = figures.find("raw", "memcpy_prefaulted" if memory == "first" else "memcpy", size)
    return hardly_slower(f"{label}: `put` of {size >> 20} MiB, memory {memory}, against memcpy", put, copy)


def hardly_slower(what: str, ours: Row | None, bare: Row | None) -> Goal | None:
    """The goal to take at most 15 % longer than the machine without a store."""
    if ours is None or bare is None:
        return None
    ratio = ours.median_us / bare.median_us
    measured = f"{ratio:.2f} ({ours.median_us:,.0f} µs / {bare.median_us:,.0f} µs)"
    return Goal(what, "≤ 1.15", measured, ratio <= 1.15)


def _many_objects(stages: list[Stage]) -> list[Goal]:
    ours = [stage for stage in stages if stage.peer == PYTHON]
    if not ours:
        return []
    few, many = min(ours, key=lambda stage: stage.objects), max(ours, key=lambda stage: stage.objects)
    flat = f"{few.get_median_us:.2f} µs → {many.get_median_us:.2f} µs"
    split = (
        f"{many.bytes_per_object:.0f} B: table {many.tables_per_object:.0f}, room lost in segments "
        f"{many.segments_per_object:.0f}, the daemon's own with the directory {many.own_per_object:.0f}"
    )
    return [
        Goal(f"Python: get with {few.objects:,} → {many.objects:,} objects", "flat", flat, None),
        Goal(
            f"Memory an object of {many.size} B costs beside it, with {many.objects:,}",
            "≤ 192 B without the directory",
            split,
            None,
        ),
    ]
