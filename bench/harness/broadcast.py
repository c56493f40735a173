"""`make bench-broadcast`: an object brought to many nodes by a broadcast, and by gets from its one holder.

Both ways are measured in turn, in one run, on nodes of this host, which share its cores: each node's copy
costs a sender and a receiver CPU time, whoever they are.
"""

from __future__ import annotations

import csv
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from harness import machine, page, paths
from harness.page import size_of, table
from harness.peers import absent
from harness.progress import Progress

NAME = "broadcast"
SIZE, QUICK_SIZE = 256 << 20, 16 << 20
MOST = 7
ROUNDS = 7
GOAL = 2.0
_WORKER = paths.ROOT / "bench" / "workers" / "broadcast.py"


@dataclass(frozen=True)
class Row:
    """Some rounds of one way to so many nodes."""

    way: str
    nodes: int
    """Those that did not have it."""
    size: int
    samples: int
    median_ms: float
    least_ms: float
    most_ms: float
    cpu_s: float
    """CPU time of all nodes' daemons in a round, median."""


def run(quick: bool, results: Path) -> int:
    """Measures, and writes figures and the description of the run."""
    if reason := absent(paths.plasmon(), "make build") or absent(paths.plasmon_python(), "make build"):
        raise SystemExit(f"nothing can be measured: {reason}")
    described: dict[str, Any] = machine.describe() | {"quick": quick}
    begin = time.monotonic()
    say = Progress()
    size, rounds = (QUICK_SIZE, 1) if quick else (SIZE, ROUNDS)
    command = [str(paths.plasmon_python()), str(_WORKER), str(size), str(MOST), str(rounds)]
    lines: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        for line in worker.stdout:
            lines.append(json.loads(line))
            say(f"{lines[-1]['way']} to {lines[-1]['nodes']} nodes: {lines[-1]['seconds']:.2f} s")
    say.end()
    if worker.returncode or not lines:
        print("the worker failed: see above", file=sys.stderr)
        return 1
    write(results / f"{NAME}.csv", gather(lines))
    described["seconds"] = round(time.monotonic() - begin)
    (results / f"{NAME}.json").write_text(json.dumps(described, indent=2) + "\n")
    print(f"Measured in {described['seconds']} s: {results / NAME}.csv", file=sys.stderr)
    return 0


def gather(lines: list[dict[str, Any]]) -> list[Row]:
    """Medians of what the worker said."""
    cases = sorted({(line["nodes"], line["way"], line["size"]) for line in lines})
    rows = []
    for nodes, way, size in cases:
        some = [line for line in lines if (line["nodes"], line["way"]) == (nodes, way)]
        times = [1e3 * line["seconds"] for line in some]
        rows.append(
            Row(
                way,
                nodes,
                size,
                len(some),
                round(statistics.median(times), 1),
                round(min(times), 1),
                round(max(times), 1),
                round(statistics.median(line["cpu_seconds"] for line in some), 2),
            )
        )
    return rows


def write(path: Path, rows: list[Row]) -> None:
    """Writes a CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def read(path: Path) -> list[Row]:
    """Reads what `write` has written."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    kinds = {"way": str, "nodes": int, "size": int, "samples": int}
    return [Row(**{name: kinds.get(name, float)(value) for name, value in row.items()}) for row in rows]


def report() -> None:
    """Writes the section of the page."""
    path = page.results(NAME)
    if path is None:
        page.replace(NAME, "Not measured yet: `make bench-broadcast`.")
        return
    rows, described = read(path), page.run(NAME)
    by_case = {(row.way, row.nodes): row for row in rows}
    cells = []
    for nodes in sorted({row.nodes for row in rows}):
        broadcast, gets = by_case["broadcast", nodes], by_case["gets", nodes]
        cells.append(
            [
                str(nodes),
                *(
                    f"{row.median_ms:,.0f} ({row.least_ms:,.0f} to {row.most_ms:,.0f})"
                    for row in (broadcast, gets)
                ),
                f"{gets.median_ms / broadcast.median_ms:.2f}",
                *(f"{row.cpu_s:.2f} s, {row.cpu_s / row.median_ms * 1e3:.1f}" for row in (broadcast, gets)),
            ]
        )
    most = max(row.nodes for row in rows)
    reached = by_case["gets", most].median_ms / by_case["broadcast", most].median_ms
    heads = ["nodes", "broadcast, ms", "gets, ms", "gets / broadcast", "CPU time, cores: broadcast", "gets"]
    body = [
        page.points([*page.machine(described), *page.quick(described)]),
        f"{size_of(rows[0].size)} to so many nodes: median (least to most) of {rows[0].samples} rounds; CPU "
        "time of all daemons in a round, and how many cores that is.",
        table(heads, cells),
        f"Goal: to {most} nodes {GOAL:g} times as fast as by gets; measured: {reached:.2f} times, reached: "
        f"{page.yes_or_no(reached >= GOAL)}.",
    ]
    page.replace(NAME, "\n\n".join(body))
