"""Check for impossible figures: gets from another host that are faster than the network.

A harness that by mistake gets objects that are here already reports good figures. Nothing that goes through
the kernel's TCP is much faster than a bare connection. A figure that is more than twice as fast is a mistake,
and is removed from the results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from harness import page
from harness.remote.figures import Fetches
from harness.remote.goals import Found

TIMES = 2.0
"""Factor over raw TCP that is impossible. A smaller one may be chance, or several connections."""


def impossible(rows: Iterable[Fetches], beside_tcp: Collection[str] = ()) -> list[tuple[Fetches, str]]:
    """Impossible rows, with the reasons. Contenders in `beside_tcp` have another network."""
    found = Found(rows)
    wrong = []
    for row in found.rows:
        if row.peer in ("tcp", "hop") or row.peer in beside_tcp:
            continue
        floor = _of_tcp(found, row)
        if floor is not None and _us(row) * TIMES < floor:
            why = (
                f"{row.operation} of {page.size_of(row.size)} by {row.clients} takes {_us(row):,.4g} µs an "
                f"object, and raw TCP {floor:,.4g} µs: what was got was not on the other host"
            )
            wrong.append((row, why))
    return wrong


def _of_tcp(found: Found, row: Fetches) -> float | None:
    """Time of raw TCP at this size: at most that of larger sizes, in case it was disturbed."""
    more = [
        _us(tcp)
        for size in found.sizes
        if size >= row.size and (tcp := found.find("tcp", size, row.clients)) is not None
    ]
    measured = found.find("tcp", row.size, row.clients) is not None
    return min(more) if measured else None


def _us(row: Fetches) -> float:
    """Time in microseconds for an object: the median for one getter, the joint time for several."""
    return row.median_us if row.clients == 1 else 1e6 / row.ops_per_s
