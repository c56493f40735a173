"""Section of the page for files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness import page
from harness.files import bare, fio, goals, project
from harness.files.figures import CORES, OTHER, OWN, SECONDS, SWITCHES, TIME, Figure, Found
from harness.files.run import (
    ANY,
    CROWD,
    DIRECT,
    FAR,
    FIRST,
    NAMES,
    NEAR,
    RANDOM,
    READ,
    SHAPES,
    SHARED,
    SMALL,
    UNALIGNED,
    WRITE,
)
from harness.page import short, size_of, table

_ORDER = ("plasmon", "plasmon-2", "plasmon-socket", "moosefs", "juicefs", "tmpfs", "null", bare.NAME)
_NOT_PLACED = (
    "This build places no volume on another host than the writer's. So what other hosts read was written on "
    "the host that stores it, and nothing is said of writes from other hosts."
)


def text(figures: Sequence[Figure], run: dict[str, Any]) -> list[str]:
    """The section."""
    found, labels = Found(figures), run["labels"]
    judged = goals.check(figures)
    return [
        _points(run),
        page.goals("Goals of files", "measured, median", judged) if judged else "",
        "![Files of another host](img/files.png)",
        _in_order(found, labels),
        _near(found, labels),
        _crowd(found, labels),
        _shapes(found, labels),
        _random(found, labels),
        _names(found, labels),
        _small(found, labels),
        _fio(found, labels),
        _direct(found, labels),
        _project(found, labels),
        _spent(found, labels),
    ]


def _points(run: dict[str, Any]) -> str:
    versions = [f"{label} {version}" for label, version in run["versions"].items()]
    provider = run.get("facts", {}).get("provider", "none")
    lines = [
        *page.machine(run),
        *filter(None, [run.get("network") and f"{run['network']}; libfabric's provider: {provider}."]),
        *([f"{', '.join(versions)}."] if versions else []),
        *page.quick(run),
        *([] if run["places"] else [_NOT_PLACED]),
    ]
    if not run["whole"]:
        lines.append("**The run was ended before its time: this is what there was until then.**")
    labels = run["labels"]
    for name, reason in run["missing"].items():
        lines.append(f"{labels.get(name, name)} was not measured: {reason.splitlines()[0]}")
    lines += [f"**Impossible, and left out:** {one}" for one in run["across"]]
    for name, reasons in run["failures"].items():
        first = reasons[0].splitlines()[0]
        lines.append(f"**{labels.get(name, name)} failed {len(reasons)} times**, first: {first}")
    return page.points(lines)


def _stores(found: Found, part: str) -> list[str]:
    there = found.stores(part)
    return [name for name in _ORDER if name in there]


def _by_processes(
    found: Found, labels: dict[str, str], part: str, where: str, operations: Sequence[str]
) -> str:
    """Table of rates with a row for each store, and columns for numbers of processes."""
    operations = [operation for operation in operations if found.processes(part, operation)]
    counts = sorted({count for operation in operations for count in found.processes(part, operation)})
    heads = ["", *(f"{operation}, {count}" for operation in operations for count in counts)]
    lines = []
    for store in _stores(found, part):
        cells = [
            _cell(found.find(part, store, operation, where, count))
            for operation in operations
            for count in counts
        ]
        if any(cells):
            lines.append([labels.get(store, store), *cells])
    return table(heads, lines) if lines else ""


def _in_order(found: Found, labels: dict[str, str]) -> str:
    body = _by_processes(found, labels, FAR, OTHER, (WRITE, READ))
    return _section(
        "Files in order, from another host",
        "MB/s of all processes, as many as the column says, each with a file of its own. A write ends with "
        "fsync and close; nothing that is read is in a cache.",
        body,
    )


def _near(found: Found, labels: dict[str, str]) -> str:
    tables = [
        _by_processes(found, labels, NEAR, OWN, [name + suffix for name in (WRITE, READ, DIRECT)])
        for suffix in ("", UNALIGNED)
    ]
    return _section(
        "Files in order, on the host that stores",
        "MB/s as above. The page cache is empty before a read, but for that of tmpfs, which is the file. A "
        "direct read passes it by (O_DIRECT). Buffers begin with a page, or 16 bytes behind its begin.",
        "\n\n".join(filter(None, tables)),
    )


def _crowd(found: Found, labels: dict[str, str]) -> str:
    body = _by_processes(found, labels, CROWD, OTHER, (WRITE, READ))
    return _section(
        "Four hosts on one that stores", "MB/s of all together, one process on each of the four.", body
    )


def _shapes(found: Found, labels: dict[str, str]) -> str:
    sizes = sorted({one.size for one in found.figures if one.part == SHAPES and one.operation == READ})
    heads = ["", *(f"{operation}, {size_of(size)}" for operation in (WRITE, READ) for size in sizes)]
    shared = [f"{SHARED} {operation}" for operation in (WRITE, READ)]
    lines = []
    for store in _stores(found, SHAPES):
        cells = [
            _cell(found.find(SHAPES, store, operation, OTHER, 1, size))
            for operation in (WRITE, READ)
            for size in sizes
        ]
        cells += [_cell(found.find(SHAPES, store, operation, OTHER, 4)) for operation in shared]
        lines.append([labels.get(store, store), *cells])
    return _section(
        "Calls of other sizes, and one file of four processes",
        "MB/s from another host: of one process with calls of so many bytes, and of four, each of which has "
        "a range of one file and calls of 1 MiB.",
        table([*heads, *(f"one file, {operation}" for operation in (WRITE, READ))], lines) if lines else "",
    )


def _random(found: Found, labels: dict[str, str]) -> str:
    of_part = [one for one in found.figures if one.part == RANDOM]
    sizes = sorted({one.size for one in of_part})
    heads = ["", *(f"{operation}, {size_of(size)}" for size in sizes for operation in (FIRST, ANY))]
    lines = []
    for store in _stores(found, RANDOM):
        cells = []
        for size in sizes:
            for operation in (FIRST, ANY):
                asked = READ if store == bare.NAME else operation
                rows = [found.find(RANDOM, store, asked, where, 1, size) for where in (OTHER, OWN)]
                cells.append(_cell(next(filter(None, rows), None)))
        lines.append([labels.get(store, store), *cells])
    return _section(
        "Reads at random",
        "Microseconds of a read, one at a time, from another host; of tmpfs and the null mount on the own "
        "one. First touches are the first 100 reads.",
        table(heads, lines) if lines else "",
    )


def _names(found: Found, labels: dict[str, str]) -> str:
    tables = []
    for where in (OWN, OTHER):
        body = _by_processes(found, labels, NAMES, where, ("create", "stat", "unlink"))
        if body:
            tables.append(f"On {_HOSTS[where]}:\n\n{body}")
    return _section(
        "Names of empty files", "Operations a second, of so many processes together.", "\n\n".join(tables)
    )


_HOSTS = {OWN: "the host that decides about names", OTHER: "another host"}


def _small(found: Found, labels: dict[str, str]) -> str:
    cases = [(where, operation) for where in (OWN, OTHER) for operation in (WRITE, READ)]
    lines = [
        [
            labels.get(store, store),
            *(_cell(found.find(SMALL, store, operation, where)) for where, operation in cases),
        ]
        for store in _stores(found, SMALL)
    ]
    heads = ["", *(f"{operation}, {where} host" for where, operation in cases)]
    return _section(
        "Files of 4,000 bytes",
        "Files a second that one process writes or reads whole, with open and close.",
        table(heads, lines) if lines else "",
    )


def _project(found: Found, labels: dict[str, str]) -> str:
    cases = [(where, operation) for where in (OWN, OTHER) for operation in (project.UNPACK, project.BUILD)]
    lines = [
        [
            labels.get(store, store),
            *(_cell(found.find(project.PROJECT, store, operation, where)) for where, operation in cases),
        ]
        for store in _stores(found, project.PROJECT)
    ]
    heads = ["", *(f"{operation}, {where} host" for where, operation in cases)]
    return _section(
        "A project",
        "Seconds in which the source of zlib is unpacked, and then configured and built with `make -j2`.",
        table(heads, lines) if lines else "",
    )


def _fio(found: Found, labels: dict[str, str]) -> str:
    heads = [f"{job.kind}, {size_of(job.block)}, {job.processes}" for job in fio.JOBS]
    return _section(
        "By fio",
        "MB/s of as many jobs of fio (psync) as the column says, each with a file of its own, written with "
        "an fsync at the end and read when nothing is cached; of `randread` the median of a call in "
        "microseconds.",
        _by_jobs(found, labels, fio.JOBS, heads),
    )


def _direct(found: Found, labels: dict[str, str]) -> str:
    heads = [f"{size_of(job.block)}, {job.depth} under way" for job in fio.DIRECT_JOBS]
    return _section(
        "Direct writes by fio",
        "MB/s of one job of fio that writes at random over a file past the page cache (libaio, O_DIRECT), "
        "with as many writes under way as the column says, and an fsync at the end.",
        _by_jobs(found, labels, fio.DIRECT_JOBS, heads),
    )


def _by_jobs(found: Found, labels: dict[str, str], jobs: Sequence[fio.Job], heads: Sequence[str]) -> str:
    lines = []
    for where in (OTHER, OWN):
        for store in _stores(found, fio.FIO):
            cells = [
                _cell(found.find(fio.FIO, store, job.operation, where, job.processes, job.block))
                for job in jobs
            ]
            if any(cells):
                lines.append([f"{labels.get(store, store)}, {where} host", *cells])
    return table(["", *heads], lines) if lines else ""


_MOVED = (
    (f"write, {OTHER} host", FAR, WRITE, OTHER),
    (f"read, {OTHER} host", FAR, READ, OTHER),
    (f"write, {OWN} host", NEAR, WRITE, OWN),
    (f"read, {OWN} host", NEAR, READ, OWN),
    (f"direct read, {OWN} host", NEAR, DIRECT, OWN),
)
"""Columns of what a MB costs: title, part, operation, host."""
_MOVERS = 4
_ASKED = (
    (f"create, {OWN} host", NAMES, "create", OWN, 0),
    (f"stat, {OWN} host", NAMES, "stat", OWN, 0),
    (f"unlink, {OWN} host", NAMES, "unlink", OWN, 0),
    (f"stat, {OTHER} host", NAMES, "stat", OTHER, 0),
    (f"write of 4,000 bytes, {OWN} host", SMALL, WRITE, OWN, 4_000),
    (f"read of 4,000 bytes, {OWN} host", SMALL, READ, OWN, 4_000),
    (f"read of 4 KiB at random, {OTHER} host", RANDOM, ANY, OTHER, 4 << 10),
)
"""Columns of what an operation of one process costs: title, part, operation, host, bytes."""


def _spent(found: Found, labels: dict[str, str]) -> str:
    moved, asked = [], []
    for store in _ORDER:
        rates = [found.find(part, store, operation, where, _MOVERS) for _, part, operation, where in _MOVED]
        costs = [_cost(found, one, CORES) for one in rates]
        moved += [[labels.get(store, store), *costs]] if any(costs) else []
        costs = []
        for _, part, operation, where, size in _ASKED:
            called = READ if (store, part) == (bare.NAME, RANDOM) else operation
            one = found.find(part, store, called, where, 1, size)
            costs.append(" / ".join(filter(None, (_cost(found, one, unit) for unit in (CORES, SWITCHES)))))
        asked += [[labels.get(store, store), *costs]] if any(costs) else []
    tables = [
        f"Microseconds of a core for each MB that {_MOVERS} processes move. The microseconds that all cores "
        "have in a second, divided by this, are the most MB/s that the machine can do:",
        table(["", *(column[0] for column in _MOVED)], moved),
        "Microseconds of a core, and changes of the thread that a core runs, for each operation of one "
        "process:",
        table(["", *(column[0] for column in _ASKED)], asked),
    ]
    return _section(
        "What the machine spends",
        "Time in which cores do not idle, and how often they go on with another thread, of programs, stores "
        "and the kernel together, from /proc/stat.",
        "\n\n".join(tables) if moved or asked else "",
    )


def _cost(found: Found, one: Figure | None, unit: str) -> str:
    spent = found.spent(one, unit) if one else None
    return short(spent.median) if spent else ""


def _section(title: str, about: str, body: str) -> str:
    return f"### {title}\n\n{about}\n\n{body}" if body else ""


def _cell(one: Figure | None) -> str:
    if one is None:
        return ""
    digits = f"{one.median:.3g}" if one.unit in (TIME, SECONDS) else f"{one.median:,.0f}"
    return digits if one.rounds == 1 else f"{digits} ({short(one.least)} to {short(one.most)})"
