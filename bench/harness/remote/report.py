"""Tables of the page for the figures between hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness import mpi, page
from harness.figures import Row
from harness.page import size_of, table
from harness.remote import conditions_report, goals, growth, plots
from harness.remote.conditions_report import latency, throughput
from harness.remote.contenders import ONE_PLACE, PLACES
from harness.remote.figures import Fetches
from harness.remote.goals import AUTO, FOUR, PYTHON, Found

# Column, contender, memory.
_COLUMNS = [
    ("auto", AUTO, "cold"),
    ("auto, warm", AUTO, "warm"),
    ("auto, Python", PYTHON, "cold"),
    ("Python, warm", PYTHON, "warm"),
    ("Python, four nodes", FOUR, "cold"),
    ("socket", "plasmon-socket", "cold"),
    ("send", "plasmon-send", "cold"),
    ("read", "plasmon-read", "cold"),
    ("read-register", "plasmon-read-register", "cold"),
    ("TCP", "tcp", PLACES),
    ("libfabric", "fabric", PLACES),
    ("Redis", "redis", ""),
    ("Mooncake", "mooncake", ""),
    ("Ray", "ray", ""),
]
_FABRIC_WAYS = {
    "read": "one read, polling",
    "read_chunks": "four reads of 512 KiB, polling",
    "read_asleep": "one read, asleep",
    "read_chunks_asleep": "four reads of 512 KiB, asleep",
}
SMALL = 1 << 10
_Cell = Callable[[Fetches], str]


def text(rows: Sequence[Fetches], run: dict[str, Any]) -> list[str]:
    """The section of gets, and its plots."""
    plots.draw(rows)
    found = Found(rows)
    several = max(found.getters)
    sections = [
        _points(run),
        page.goals("Goals between hosts", "measured", goals.check(rows)),
        "![Small objects](img/remote-small.png)",
        "![Large objects](img/remote-large.png)",
        _table(found, 1, "One getter", "Microseconds a get: median (p99).", latency),
        _table(found, 1, "One getter, throughput", "10^9 bytes a second.", throughput, 64 << 10),
        _ratios(found),
        _hops(found),
        _bare(found),
    ]
    if several > 1:
        title = f"{several} getters at a time"
        text = "Gets a second, of all together; from 64 KiB on 10^9 bytes a second."
        sections.append(_table(found, several, title, text, _together))
    text = "Seconds for each GiB: host of the holder / host of the getter, servers and clients together."
    sections.append(_table(found, 1, "Processor time", text, _cpu, 64 << 10))
    return sections + [_batches(found)] * bool(found.batches) + conditions_report.sections(rows)


def _points(run: dict[str, Any]) -> str:
    labels, rounds = run["labels"], run["rounds"]
    # All nodes of Plasmon are of the same build.
    named = {
        ("Plasmon" if "plasmon" in name else labels[name]): said for name, said in run["versions"].items()
    }
    versions = [f"{name} {version}" for name, version in named.items()]
    providers = {facts["provider"] for facts in run["facts"].values() if "provider" in facts}
    points = [
        *page.machine(run),
        f"{run['network']}; libfabric's provider: {', '.join(sorted(providers)) or 'none'}.",
        f"Stores of {run['store_bytes'] >> 20} MiB. {', '.join(versions)}.",
        f"Rounds counted: {rounds.get('all', 0)}, of Ray {rounds.get('restless', 0)}.",
        *page.quick(run),
    ]
    if not run["whole"]:
        points.append("**The run was ended before its time: this is what there was until then.**")
    points += [f"{name} was not installed: {reason}" for name, reason in run["missing"].items()]
    points += [
        f"**{labels.get(name, name)}: impossible, and left out:** {why}"
        for name, why in run.get("impossible", [])
    ]
    for name, reasons in run["failures"].items():
        points.append(
            f"**{labels[name]} failed {len(reasons)} times**, first to {reasons[0].splitlines()[0]}"
        )
    return page.points(points)


def _table(found: Found, getters: int, title: str, text: str, cell: _Cell, least: int = 0) -> str:
    sizes = [size for size in found.sizes if size >= least]
    columns = []
    for head, peer, memory in _COLUMNS:
        rows = [found.find(peer, size, getters, memory) for size in sizes]
        if any(rows):
            columns.append((head, [cell(row) if row else "" for row in rows]))
    lines = [[size_of(size), *(cells[at] for _, cells in columns)] for at, size in enumerate(sizes)]
    return f"### {title}\n\n{text}\n\n" + table(["", *(head for head, _ in columns)], lines)


def _batches(found: Found) -> str:
    """Table of calls for many objects."""
    labels = {peer: head for head, peer, memory in _COLUMNS if memory != "warm"}
    lines = [
        [
            labels.get(row.peer, row.peer),
            f"{row.batch} x {size_of(row.size)}",
            f"{row.median_us * row.batch:,.4g}",
            f"{row.ops_per_s:,.0f}",
        ]
        for row in found.batches
    ]
    text = "Calls for many objects, cold. Redis is asked by MGET."
    return f"### Many objects in a call\n\n{text}\n\n" + table(["", "call", "µs a call", "objects/s"], lines)


def _ratios(found: Found) -> str:
    """Table of Plasmon's times as multiples of those of the network without a store."""
    lines = []
    for size in found.sizes:
        cells = []
        for memory in ("cold", "warm"):
            ours = found.find(AUTO, size, 1, memory)
            for peer in ("tcp", "fabric"):
                bare = found.find(peer, size, 1, PLACES)
                cells.append(f"{ours.median_us / bare.median_us:.2f}" if ours and bare else "")
        lines.append([size_of(size), *cells])
    heads = ["", "cold / TCP", "cold / libfabric", "warm / TCP", "warm / libfabric"]
    text = "Medians of `auto` divided by those of the bare network; of libfabric's ways the fastest."
    return f"### Against the network without a store\n\n{text}\n\n" + table(heads, lines)


def _hops(found: Found) -> str:
    """Table of the time of a small get by its parts."""
    own = goals.own_part(found, SMALL)
    hop = found.find("hop", SMALL, 1)
    read = found.find("fabric", SMALL, 1, PLACES, "read_asleep_places")
    warm, cold = (found.find(AUTO, SMALL, 1, memory) for memory in ("warm", "cold"))
    if own is None or not (hop and read and warm and cold):
        return ""
    parts = {
        "client to node and back: a round trip over a unix socket, both asleep": hop.median_us,
        "node to node and back: a read of as many bytes by libfabric, both asleep": read.median_us,
        "what Plasmon does itself, and wakes that cost more beside other processes": own,
        "**with a warm location**": warm.median_us,
        "the directory: one more node to ask, or to be asked": cold.median_us - warm.median_us,
        "**with a cold location**": cold.median_us,
    }
    text = (
        f"Medians of a get of {size_of(SMALL)}. The first two were measured by themselves, in turn with the "
        "gets; the rest is the difference."
    )
    lines = [[what, f"{us:.1f}"] for what, us in parts.items()]
    return f"### Where the time of a small get goes\n\n{text}\n\n" + table(["", "µs"], lines)


def _bare(found: Found) -> str:
    ways = [("TCP", "tcp", "fetch_places"), ("TCP, one place", "tcp", "fetch")]
    for operation, label in _FABRIC_WAYS.items():
        ways.append((label, "fabric", f"{operation}_places"))
    ways.append(("libfabric's fastest, one place", "fabric", ""))
    lines = []
    for size in found.sizes:
        rows = [
            found.find(peer, size, 1, "" if operation else ONE_PLACE, operation)
            for _, peer, operation in ways
        ]
        lines.append([size_of(size), *(latency(row) if row else "" for row in rows)])
    text = (
        "Microseconds: median (p99). Asleep is how a daemon waits where cores are few. Memory is as a store "
        "has it, and every read is of another place, to another one; in one place it is in huge pages and in "
        "the caches."
    )
    return f"### The network without a store\n\n{text}\n\n" + table(
        ["", *(label for label, *_ in ways)], lines
    )


def growth_text(rows: Sequence[growth.Grown], run: dict[str, Any]) -> list[str]:
    """The section of how cost grows, and its plot."""
    plots.draw_growth(rows)
    sections = [page.points([*page.machine(run), f"{run['network']}.", *page.quick(run)])]
    sections.append("![How cost grows](img/growth.png)")
    for axis, title in growth.AXES.items():
        lines = [
            [
                f"{row.at:,}",
                size_of(row.size),
                str(row.batch),
                f"{row.objects_per_s:,.0f}",
                f"{row.slowest_per_s:,.0f} to {row.fastest_per_s:,.0f}",
                str(row.runs),
            ]
            for row in rows
            if row.axis == axis
        ]
        heads = [title, "object", "objects a call", "objects/s, median", "range", "runs"]
        sections.append(f"### By {title}\n\n" + table(heads, lines))
    return sections


def mpi_text(rows: Sequence[Row], run: dict[str, Any]) -> list[str]:
    """The section of ranks that get what others have put."""
    points = [*page.machine(run), f"{run['ranks']} ranks on {run['network']}.", *page.quick(run)]
    lines = []
    for size in sorted({row.size for row in rows}):
        found = {row.operation: row for row in rows if row.size == size}
        cells = [latency(found[name]) if name in found else "" for name in mpi.OPERATIONS]
        fetch = found.get("fetch")
        lines.append([size_of(size), *cells, f"{fetch.gb_per_s:.3g}" if fetch and fetch.gb_per_s else ""])
    heads = ["", *mpi.OPERATIONS.values(), "GB/s from the others"]
    return [page.points(points), "Microseconds: median (p99).", table(heads, lines)]


def _together(row: Fetches) -> str:
    return throughput(row) if row.size >= 64 << 10 else f"{row.ops_per_s:,.0f}"


def _cpu(row: Fetches) -> str:
    holder, getter = row.holder_cpu_s_per_gib, row.getter_cpu_s_per_gib
    return f"{holder:.3g} / {getter:.3g}" if holder is not None and getter is not None else ""
