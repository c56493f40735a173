"""`make bench-report`: makes tables in docs/benchmarks.md and plots in docs/img of the last figures."""

from __future__ import annotations

from typing import Any

from harness import broadcast, goals, heal, page, paths, peers, plots, python, rdma, scale_report
from harness.broadcast import BROADCAST
from harness.figures import Row
from harness.files import plots as files_plots
from harness.files import report as files
from harness.files.figures import FILES, Figure
from harness.goals import Figures
from harness.heal import HEAL
from harness.local import LOCAL
from harness.mpi import MPI
from harness.objects import OBJECTS, Stage
from harness.page import short, size_of, table
from harness.python import PYTHON
from harness.rdma import RDMA
from harness.remote import report as remote
from harness.remote.figures import REMOTE
from harness.remote.growth import GROWTH
from harness.scale import SCALE
from harness.tier import plots as tier_plots
from harness.tier import report as tier
from harness.tier.classes import SPANS
from harness.tier.command import TIER

_SHOWN = [4**power << 10 for power in (0, 2, 4, 6, 8)]
_PEERS = {kind.name: kind.label for kind in peers.ALL}
_STORES = [name for name in _PEERS if name != "raw"]
_RAW = {
    "socket_round_trip": "unix socket, 64 bytes there and back",
    "eventfd_round_trip": "eventfd, there and back",
    "futex_round_trip": "futex, there and back",
    "clock": "one reading of the clock, which is in every figure",
}
# Operation, memory, title, and which copy of the machine belongs beside it.
_LATENCIES = [
    ("get", "", "get and release", None),
    ("get_array", "", "get of a NumPy array", None),
    ("put", "first", "put, into memory that no object was in before", "memcpy_prefaulted"),
    ("put", "reused", "put, into memory that was used before", "memcpy"),
    ("put_array", "reused", "put of a NumPy array", "memcpy"),
    ("contains", "", "contains", None),
    ("delete", "", "delete", None),
]
_TOGETHER = [("put", 1), ("put_many", 64), ("get", 1), ("get_many", 64)]


def make() -> None:
    """Writes plots and page."""
    LOCAL.report(_local, "figures")
    REMOTE.report(remote.text)
    GROWTH.report(remote.growth_text)
    MPI.report(remote.mpi_text)
    BROADCAST.report(broadcast.text)
    HEAL.report(heal.text)
    PYTHON.report(python.text)
    TIER.report(_tier)
    FILES.report(_files)
    RDMA.report(rdma.text, "registration", paths.RDMA_PAGE)
    SCALE.report(scale_report.text, "figures", paths.SCALE_PAGE)


def _local(rows: list[Row], run: dict[str, Any]) -> list[str]:
    """Stores of one host, and many objects in one of them, if that run was made."""
    found = Figures(rows)
    stages, objects_run = OBJECTS.last() or ([], {})
    plots.draw(found, stages)
    sections = [
        _machine(run),
        page.goals("Goals", "median", goals.check(found, stages)),
        "![Latency of one client by size](img/local-latency.png)",
        *(_latency(found, run, *row) for row in _LATENCIES),
        "![Operations a second](img/local-throughput.png)",
        _together(found, run),
        _raw(found),
    ]
    if stages:
        sections += [_many(stages, objects_run), "![Many objects](img/objects.png)"]
    return sections


def _tier(rows: list[Row], run: dict[str, Any]) -> list[str]:
    """Regions, with their plots."""
    tier_plots.draw(rows)
    spans, _ = SPANS.last() or ([], {})
    tier_plots.draw_classes(spans)
    return tier.text(rows, run)


def _files(figures: list[Figure], run: dict[str, Any]) -> list[str]:
    """Files, with their plot."""
    files_plots.draw(figures, run["labels"])
    return files.text(figures, run)


def _machine(run: dict[str, Any]) -> str:
    """Description of the run as a list."""
    versions = [f"{_PEERS[name]} {version}" for name, version in run["versions"].items()]
    points = [
        *page.machine(run),
        f"Stores of {run['store_bytes'] >> 20} MiB. {', '.join([*versions, 'Python ' + run['python']])}.",
    ]
    for name, facts in run["plasmon"].items():
        seconds = facts["prefault_seconds"]
        points.append(f"{_PEERS[name]}: {facts['pages']} pages, all touched {seconds} s after it served.")
    points += page.quick(run)
    points += [f"{_PEERS[name]} was not installed: {reason}" for name, reason in run["missing"].items()]
    for name, reasons in run["failures"].items():
        reason = reasons[0].splitlines()[0]
        points.append(f"**{_PEERS[name]} failed**, and was measured until then: {reason}")
    return page.points(points)


def _latency(
    found: Figures, run: dict[str, Any], operation: str, memory: str, title: str, copy: str | None
) -> str:
    columns: dict[str, str] = {}
    for name in _STORES:
        if any(found.find(name, operation, size, memory) for size in _SHOWN):
            columns[_PEERS[name]] = name
    rows = []
    for size in _SHOWN:
        cells = [_time_of(found.find(name, operation, size, memory)) for name in columns.values()]
        if copy:
            cells.append(_time_of(found.find("raw", copy, size)))
        rows.append([size_of(size), *cells, _ratio(found, operation, size, memory)])
    heads = ["", *columns, *(["memcpy"] if copy else []), "Plasmon / Plasma"]
    return f"### {title[0].upper()}{title[1:]}\n\nMicroseconds: median (p99).{_absent(run)}\n\n" + table(
        heads, rows
    )


def _absent(run: dict[str, Any]) -> str:
    names = [_PEERS[name] for name in run["missing"]]
    return f" Not installed: {', '.join(names)}." if names else ""


def _ratio(found: Figures, operation: str, size: int, memory: str) -> str:
    ours = found.find(goals.PYTHON, operation, size, memory)
    theirs = found.find("plasma", operation, size, memory)
    if not ours or not theirs:
        return ""
    ratio = ours.median_us / theirs.median_us
    return f"1/{1 / ratio:.1f}" if ratio < 0.95 else f"{ratio:.2f}"


def _together(found: Figures, run: dict[str, Any]) -> str:
    heads = [""]
    for operation, batch in _TOGETHER:
        named = f"{operation} of {batch}" if batch > 1 else operation
        heads += [f"{named}, {clients}" for clients in _clients(found)]
    rows = []
    for name in _STORES:
        cells = []
        for operation, batch in _TOGETHER:
            memory = "reused" if operation.startswith("put") else ""
            for clients in _clients(found):
                row = found.find(name, operation, 1 << 10, memory, batch, clients, "sustained")
                cells.append(f"{row.ops_per_s:,.0f}" if row else "")
        if any(cells):
            rows.append([_PEERS[name], *cells])
    text = "Objects of 1 KiB a second, from as many clients as the column says, all together."
    return f"### Clients at full speed\n\n{text}{_absent(run)}\n\n" + table(heads, rows)


def _clients(found: Figures) -> list[int]:
    return sorted({row.clients for row in found.rows if row.mode == "sustained"})


def _raw(found: Figures) -> str:
    rows = [[text, _time_of(found.find("raw", operation, 0))] for operation, text in _RAW.items()]
    for size in _SHOWN:
        copies = [found.find("raw", copy, size) for copy in ("memcpy", "memcpy_prefaulted", "memcpy_fresh")]
        cells = " / ".join(short(row.median_us) if row else "" for row in copies)
        rows.append([f"memcpy of {size_of(size)} into used / populated / untouched shared memory", cells])
    return "### The machine without a store\n\nMicroseconds: median (p99).\n\n" + table(["", "µs"], rows)


def _many(stages: list[Stage], run: dict[str, Any]) -> str:
    heads = [
        "",
        "objects",
        "put/s",
        "get, µs (p99)",
        "contains, µs",
        "bytes beside an object",
        "of that in the store's memory / in tables / the server's own",
    ]
    rows = [
        [
            _PEERS[stage.peer],
            f"{stage.objects:,}",
            f"{stage.put_per_s:,.0f}",
            f"{short(stage.get_median_us)} ({short(stage.get_p99_us)})",
            short(stage.contains_median_us),
            f"{stage.bytes_per_object:.0f}",
            f"{stage.segments_per_object:.0f} / {stage.tables_per_object:.0f} / {stage.own_per_object:.0f}",
        ]
        for stage in stages
    ]
    title = f"### Many objects of {stages[0].size} bytes"
    quick = " **A quick run: these figures are no good.**" if run["quick"] else ""
    text = f"On {run['date']}, Linux {run['kernel']}, {run['cores']} cores.{quick}"
    return f"{title}\n\n{text}\n\n{table(heads, rows)}"


def _time_of(row: Row | None) -> str:
    return f"{short(row.median_us)} ({short(row.p99_us)})" if row else ""
