"""Check for impossible figures: gets from another host that are faster than the network.

A harness that by mistake gets objects that are here already reports good figures. Nothing that goes through
the kernel's TCP is much faster than the bare network: one connection, or libfabric's reads by several. A
figure that is more than twice as fast is a mistake, and is removed from the results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from harness import page
from harness.remote.figures import Fetches
from harness.remote.goals import Found

TIMES = 2.0
"""Factor over the bare network that is impossible. A smaller one may be chance."""
_BARE = ("tcp", "fabric")
"""Contenders without a store. libfabric counts where all contenders go through the kernel's TCP."""


def impossible(rows: Iterable[Fetches], beside_tcp: Collection[str] = ()) -> list[tuple[Fetches, str]]:
    """Impossible rows, with the reasons. Contenders in `beside_tcp` have another network."""
    found = Found(rows)
    wrong = []
    for row in found.rows:
        if row.peer in (*_BARE, "hop") or row.peer in beside_tcp:
            continue
        floor = _of_the_network(found, row, _BARE[:1] if beside_tcp else _BARE)
        if floor is not None and _us(row) * TIMES < floor:
            why = (
                f"{row.operation} of {page.size_of(row.size)} by {row.clients} takes {_us(row):,.4g} µs an "
                f"object, and the bare network {floor:,.4g} µs: what was got was not on the other host"
            )
            wrong.append((row, why))
    return wrong


def _of_the_network(found: Found, row: Fetches, bare: Sequence[str]) -> float | None:
    """Time of the bare network at this size: at most that of larger sizes, in case it was disturbed."""
    more = [
        _us(there)
        for size in found.sizes
        for peer in bare
        if size >= row.size and (there := found.find(peer, size, row.clients)) is not None
    ]
    measured = found.find("tcp", row.size, row.clients) is not None
    return min(more) if measured else None


def _us(row: Fetches) -> float:
    """Time in microseconds for an object: the median for one getter, the joint time for several."""
    return row.median_us if row.clients == 1 else 1e6 / row.ops_per_s
