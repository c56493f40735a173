"""What cannot be: gets of another host's object that are faster than the network between them.

A harness that gets what is there already measures something else, and its figures look good. Nothing that
goes through the kernel's TCP is much faster than a connection that does nothing else; more than twice as fast
is a mistake, and its figures are taken out of the results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from harness import page
from harness.remote.figures import Fetches
from harness.remote.goals import Found

TIMES = 2.0
"""So much faster than raw TCP is impossible. Less may be chance, or more than one connection."""


def impossible(rows: Iterable[Fetches], beside_tcp: Collection[str] = ()) -> list[tuple[Fetches, str]]:
    """The rows that cannot be, and why; those of contenders in `beside_tcp` have another network."""
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
    """What raw TCP takes at this size: at most what it took for more, when something disturbed it."""
    more = [
        _us(tcp)
        for size in found.sizes
        if size >= row.size and (tcp := found.find("tcp", size, row.clients)) is not None
    ]
    measured = found.find("tcp", row.size, row.clients) is not None
    return min(more) if measured else None


def _us(row: Fetches) -> float:
    """Microseconds an object: of one getter the median, of several what all of them together needed."""
    return row.median_us if row.clients == 1 else 1e6 / row.ops_per_s
