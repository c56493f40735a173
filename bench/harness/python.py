"""`make bench-python`: values of Python's libraries, with Plasmon and without, in turn in one run.

A case is a process of the environment that has its library. `scripts/test-python.sh` makes the environments;
a case whose environment is missing is named, and left out.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import machine, page, paths
from harness.page import short, table
from harness.peers import absent
from harness.processes import PeerError, shown, spawn, stop
from harness.progress import Progress
from harness.series import Series

MB = 10**6
_WORKER = paths.ROOT / "bench" / "workers" / "libraries.py"


@dataclass(frozen=True)
class Case:
    """Case that a process of the worker measures."""

    name: str
    label: str
    environment: str
    size: int
    """Size of the value in bytes."""
    rounds: int


FULL = (
    Case("torch", "tensor of PyTorch", "torch", 80 * MB, 15),
    Case("polars", "frame of Polars", "libraries", 160 * MB, 15),
    Case("pandas", "frame of pandas", "libraries", 160 * MB, 15),
    Case("pickle", "dictionary of arrays", "libraries", 80 * MB, 15),
    Case("joblib", "joblib, 16 calls", "libraries", 80 * MB, 9),
    Case("dask", "Dask, two workers", "libraries", 160 * MB, 5),
)
QUICK = tuple(Case(case.name, case.label, case.environment, 4 * MB, 1) for case in FULL)


@dataclass(frozen=True)
class Row:
    """Figures of one operation of a case, with Plasmon or without."""

    case: str
    size: int
    """Size of the value in bytes."""
    way: str
    operation: str
    samples: int
    median_ms: float | None
    """Median of the times in milliseconds. `None` for memory."""
    least_ms: float | None
    most_ms: float | None
    rss_mib: float | None
    """Memory that is resident in a reader for the value, in MiB: median. `None` for times."""
    pss_mib: float | None
    """Memory that is resident in a reader, with its share of shared memory, in MiB: median."""
    private_mib: float | None
    """Memory that is resident in a reader and not shared, in MiB: median."""


PYTHON = Series("python", Row)


def interpreter(environment: str) -> Path:
    """Interpreter of an environment."""
    return paths.ROOT / ".cache" / "python" / environment / "bin" / "python"


def run(quick: bool, results: Path) -> int:
    """Measures, and writes the figures and the description of the run."""
    if reason := absent(paths.plasmon(), "make build"):
        raise SystemExit(f"nothing can be measured: {reason}")
    described: dict[str, Any] = machine.describe() | {"quick": quick}
    begin, say = time.monotonic(), Progress()
    rows: list[Row] = []
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for case in QUICK if quick else FULL:
            if reason := absent(interpreter(case.environment), "scripts/test-python.sh --environments"):
                missing[case.name] = reason
                continue
            try:
                rows += gather(_work(case, Path(folder), say))
            except PeerError as failure:
                missing[case.name] = str(failure)
    say.end()
    described |= {"missing": missing, "seconds": round(time.monotonic() - begin)}
    for name, reason in missing.items():
        print(f"Not measured: {name}: {reason}", file=sys.stderr)
    if not rows:
        return 1
    PYTHON.keep(results, rows, described)
    print(f"Measured in {described['seconds']} s: {results}/python.csv", file=sys.stderr)
    return 0


def _work(case: Case, folder: Path, say: Progress) -> list[dict[str, Any]]:
    """Lines of the worker."""
    lines, log = [], folder / f"{case.name}.log"
    words = [interpreter(case.environment), _WORKER, case.name, "--size", case.size, "--rounds", case.rounds]
    environment = {"PLASMON_BIN": str(paths.plasmon())}
    command = [str(word) for word in words]
    with spawn(command, log, environment, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        try:
            for said in worker.stdout:
                lines.append(json.loads(said))
                say(f"{case.label}: {lines[-1]['operation']} {lines[-1]['way']}")
            if worker.wait():
                raise PeerError(f"the worker failed. {shown(log)}")
        finally:
            stop(worker)
    return lines


def gather(lines: Sequence[dict[str, Any]]) -> list[Row]:
    """Medians of the worker's figures."""
    groups: dict[tuple[str, int, str, str], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["case"], line["bytes"], line["operation"], line["way"]), []).append(line)
    rows = []
    for (case, size, operation, way), some in groups.items():
        times = [line["ms"] for line in some if "ms" in line]
        memory = [
            round(statistics.median(line[name] for line in some), 1) if name in some[0] else None
            for name in ("rss_mib", "pss_mib", "private_mib")
        ]
        spread = [round(of(times), 3) if times else None for of in (statistics.median, min, max)]
        rows.append(Row(case, size, way, operation, len(some), *spread, *memory))
    return rows


def text(rows: list[Row], described: dict[str, Any]) -> list[str]:
    """The section of the page."""
    from harness import drawing_python  # Only here is matplotlib needed, which takes its time.

    drawing_python.draw(rows)
    labels = {case.name: case.label for case in FULL}
    points = [*page.machine(described), *page.quick(described)]
    points += [
        f"{labels[name]} was not measured: {reason.splitlines()[0]}"
        for name, reason in described["missing"].items()
    ]
    times = [row for row in rows if row.median_ms is not None]
    memory = [row for row in rows if row.median_ms is None]
    return [
        page.points(points),
        "Milliseconds: median (least to most).",
        table(["", "", "with Plasmon", "without", "without / with"], [*_times(times, labels)]),
        "![With Plasmon and without](img/python.png)",
        "Memory by which a process grows that has got a value, in MiB: of its own / its share (PSS) / "
        "resident. Four readers hold a value of the first cases at a time, both processes of joblib the "
        "program's own array, and one worker of Dask a frame that the other has made.",
        table(["", "size", "with Plasmon", "without"], [*_memory(memory, labels)]),
    ]


def _times(rows: list[Row], labels: dict[str, str]) -> list[list[str]]:
    cells = []
    for ours, theirs in pairs(rows):
        assert ours.median_ms is not None
        assert theirs.median_ms is not None
        cells.append(
            [
                f"{labels[ours.case]}, {ours.size // MB} MB",
                ours.operation,
                *(
                    f"{short(row.median_ms or 0)} ({short(row.least_ms or 0)} to {short(row.most_ms or 0)})"
                    for row in (ours, theirs)
                ),
                short(theirs.median_ms / ours.median_ms),
            ]
        )
    return cells


def _memory(rows: list[Row], labels: dict[str, str]) -> list[list[str]]:
    return [
        [
            labels[ours.case],
            f"{ours.size // MB} MB",
            *(f"{row.private_mib:.1f} / {row.pss_mib:.1f} / {row.rss_mib:.1f}" for row in (ours, theirs)),
        ]
        for ours, theirs in pairs(rows)
    ]


def pairs(rows: list[Row]) -> list[tuple[Row, Row]]:
    """Rows of the same operation, with Plasmon and without."""
    others = {(row.case, row.operation): row for row in rows if row.way == "without"}
    return [(row, others[row.case, row.operation]) for row in rows if row.way == "plasmon"]
