"""Tables of the page for gets over new connections and beside a large one."""

from __future__ import annotations

from collections.abc import Sequence

from harness.figures import Row
from harness.page import short, size_of, table
from harness.remote import conditions, lanes, making
from harness.remote.figures import Fetches


def sections(rows: Sequence[Fetches]) -> list[str]:
    """Sections for which there are figures."""
    return [section for section in (connections(rows), beside(rows), laned(rows), made(rows)) if section]


def connections(rows: Sequence[Fetches]) -> str:
    """Table of first gets over a connection, and of later ones."""
    found = {(row.operation, row.size): row for row in rows if row.mode == conditions.CONNECTION}
    lines = []
    for size in sorted({size for _, size in found}):
        first, reused = (found.get((name, size)) for name in (conditions.FIRST, conditions.REUSED))
        if first and reused:
            ratio = f"{first.median_us / reused.median_us:.2f}"
            lines.append([size_of(size), latency(first), latency(reused), ratio, str(first.turns)])
    if not lines:
        return ""
    text = "Of `auto`, cold, in clusters that were just started; microseconds: median (p99)."
    heads = ["", "first get", "gets behind it", "first / behind it", "clusters"]
    return f"### Over a new connection\n\n{text}\n\n" + table(heads, lines)


def beside(rows: Sequence[Fetches]) -> str:
    """Table of small gets while the same node fetches a large object."""
    found = {(row.operation, row.memory): row for row in rows if row.mode == conditions.BESIDE}
    alone = found.get((conditions.LARGE_ALONE, ""))
    lines = []
    for memory in ("cold", "warm"):
        names = (conditions.IDLE, conditions.BUSY, conditions.LARGE)
        idle, busy, large = (found.get((name, memory)) for name in names)
        if idle and busy and large and alone:
            ratio = f"{busy.median_us / idle.median_us:.2f}"
            rates = [throughput(alone), throughput(large)]
            lines.append([f"{size_of(busy.size)}, {memory}", latency(idle), latency(busy), ratio, *rates])
    if not lines or alone is None:
        return ""
    text = (
        f"One client gets an object of {size_of(alone.size)}, another one small objects meanwhile, both of "
        "`auto` and on one node. Microseconds of the small gets: median (p99); 10^9 bytes a second of the "
        "large one."
    )
    heads = ["", "alone", "meanwhile", "meanwhile / alone", "large, alone", "large, meanwhile"]
    return f"### Beside a large object\n\n{text}\n\n" + table(heads, lines)


def laned(rows: Sequence[Fetches]) -> str:
    """Table of large gets over several connections, where each has a limit."""
    found = sorted((row for row in rows if row.mode == lanes.LANES), key=lambda row: int(row.operation))
    if not found:
        return ""
    one = found[0]
    lines = [
        [row.operation, latency(row), throughput(row), f"{one.median_us / row.median_us:.2f}"]
        for row in found
    ]
    text = (
        f"Gets of {size_of(one.size)} by `auto`, cold, over a network that gives each connection "
        f"{lanes.FULL.flow_gbit:g} Gbit/s; microseconds: median (p99)."
    )
    heads = ["`--lanes`", "get", "GB/s", f"times as fast as with {one.operation}"]
    return f"### Where a connection has a limit\n\n{text}\n\n" + table(heads, lines)


def made(rows: Sequence[Fetches]) -> str:
    """Table of puts, replacements, creations and deletions."""
    found = {(row.memory, row.size, row.operation): row for row in rows if row.mode == making.MAKING}
    lines = []
    for cluster, head in ((making.ALONE, "alone"), (making.PAIR, "of two")):
        for size in sorted({size for memory, size, _ in found if memory == cluster}):
            row = [
                found.get((cluster, size, operation))
                for operation in (making.PUT, making.REPLACE, making.CREATE, making.DELETE)
            ]
            lines.append([f"{size_of(size)}, node {head}", *(latency(one) if one else "" for one in row)])
    if not lines:
        return ""
    text = "From Python, into memory that was used before; microseconds: median (p99)."
    heads = ["", "put", "replace", "create, copy, seal", "delete"]
    return f"### Making and deleting objects\n\n{text}\n\n" + table(heads, lines)


def latency(row: Row) -> str:
    """Formats median and p99."""
    return f"{short(row.median_us)} ({short(row.p99_us)})"


def throughput(row: Row) -> str:
    """Formats a number with three digits."""
    return f"{row.gb_per_s:.3g}" if row.gb_per_s else ""
