"""`make bench-broadcast`: brings an object to many nodes, by a broadcast and by gets from its only holder.

Both ways are measured in turn, in one run, on nodes of this host. In one variant the nodes share its cores,
and each node's copy costs CPU time of a sender and a receiver. In the other variant each node is on a host of
its own with a link so slow that the cores are no limit.
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
from harness.network import Network
from harness.page import size_of, table
from harness.peers import absent
from harness.processes import PeerError, shown, spawn, stop
from harness.progress import Progress
from harness.remote.contenders import Plasmon
from harness.series import Series

MIB = 1 << 20
GOAL = 2.0
_WORKER = paths.ROOT / "bench" / "workers" / "broadcast.py"


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    size: int
    """Size of the object in bytes."""
    nodes: Sequence[int]
    """Numbers of nodes that get the object from the one that has it."""
    rounds: int
    link_gbit: float = 0
    """Rate of each node's link in Gbit/s, in each direction; 0 without links."""

    @property
    def memory(self) -> int:
        """Memory of a node in bytes: room for one replica."""
        return self.size + self.size // 8 + 32 * MIB


FULL = (Plan(256 * MIB, range(2, 8), 7), Plan(64 * MIB, (2, 4, 7), 5, link_gbit=1))
QUICK = (Plan(16 * MIB, range(2, 8), 1), Plan(16 * MIB, (2, 7), 1, link_gbit=1))


@dataclass(frozen=True)
class Row:
    """Figures of one way to a number of nodes, over some rounds."""

    way: str
    nodes: int
    """Number of nodes that did not have the object."""
    size: int
    link_gbit: float
    """Rate of each node's link in Gbit/s, in each direction; 0 without links."""
    samples: int
    median_ms: float
    least_ms: float
    most_ms: float
    cpu_s: float
    """CPU time of all nodes' daemons in a round in seconds, median."""


BROADCAST = Series("broadcast", Row)


def run(quick: bool, results: Path) -> int:
    """Measures, and writes the figures and the description of the run."""
    if reason := absent(paths.plasmon(), "make build") or absent(paths.plasmon_python(), "make build"):
        raise SystemExit(f"nothing can be measured: {reason}")
    described: dict[str, Any] = machine.describe() | {"quick": quick}
    begin, say = time.monotonic(), Progress()
    shared, linked = QUICK if quick else FULL
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            folder = Path(name)
            lines = measure(shared, folder, say)
            with Network(max(linked.nodes) + 1, linked.link_gbit) as network:
                described |= {"network": network.description, "no_links": network.why_not}
                if network.why_not is None:
                    lines += measure(linked, folder, say, network)
    except (PeerError, OSError) as failure:
        print(f"Nothing was measured: {failure}", file=sys.stderr)
        return 1
    finally:
        say.end()
    described["seconds"] = round(time.monotonic() - begin)
    BROADCAST.keep(results, gather(lines), described)
    if described["no_links"]:
        print(f"Not measured with links: {described['no_links']}", file=sys.stderr)
    print(f"Measured in {described['seconds']} s: {results}/broadcast.csv", file=sys.stderr)
    return 0


def measure(plan: Plan, folder: Path, say: Progress, network: Network | None = None) -> list[dict[str, Any]]:
    """Measures with a node on each host of a network, or on a cluster that the worker starts.

    Raises:
        PeerError: The nodes did not start, or the worker failed.
    """
    words: list[object] = ["--size", plan.size, "--rounds", plan.rounds, "--memory", plan.memory]
    words += ["--nodes", *plan.nodes]
    if network is None:
        return _work(plan, words, folder, say)
    cluster = Plasmon("auto", [])
    try:
        cluster.start(network.hosts, folder / "nodes", plan.memory)
        words += ["--sockets", *(node.socket for node in cluster.nodes)]
        words += ["--pids", *(node.pid for node in cluster.nodes)]
        return _work(plan, words, folder, say)
    finally:
        cluster.close()


def _work(plan: Plan, words: Sequence[object], folder: Path, say: Progress) -> list[dict[str, Any]]:
    """Lines of the worker."""
    lines, log = [], folder / "worker.log"
    command = [str(word) for word in (paths.plasmon_python(), _WORKER, *words)]
    link = f", links of {plan.link_gbit:g} Gbit/s" if plan.link_gbit else ""
    with spawn(command, log, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        try:
            for said in worker.stdout:
                line: dict[str, Any] = json.loads(said)
                lines.append({**line, "link_gbit": plan.link_gbit})
                say(f"{line['way']} to {line['nodes']} nodes{link}: {line['seconds']:.2f} s")
            if worker.wait():
                raise PeerError(f"the worker failed. {shown(log)}")
        finally:
            stop(worker)
    return lines


def gather(lines: list[dict[str, Any]]) -> list[Row]:
    """Medians of the worker's figures."""
    cases: dict[tuple[float, int, str, int], list[dict[str, Any]]] = {}
    for line in lines:
        case = (line["link_gbit"], line["nodes"], line["way"], line["size"])
        cases.setdefault(case, []).append(line)
    rows = []
    for (link_gbit, nodes, way, size), some in sorted(cases.items()):
        times = [1e3 * line["seconds"] for line in some]
        rows.append(
            Row(
                way,
                nodes,
                size,
                link_gbit,
                len(some),
                round(statistics.median(times), 1),
                round(min(times), 1),
                round(max(times), 1),
                round(statistics.median(line["cpu_seconds"] for line in some), 2),
            )
        )
    return rows


def text(rows: list[Row], described: dict[str, Any]) -> list[str]:
    """The section of the page."""
    shared = [row for row in rows if not row.link_gbit]
    linked = [row for row in rows if row.link_gbit]
    points = [*page.machine(described), *page.quick(described)]
    if linked:
        points.append(f"With links: {described['network']}.")
        judged = _linked(linked)
    else:
        judged = [f"Not measured, so the goal cannot be judged: {described['no_links']}"]
    return [
        page.points(points),
        "### Each node with a link of its own",
        *judged,
        "### All nodes on the same cores",
        *_shared(shared, described["cores"]),
    ]


def _linked(rows: list[Row]) -> list[str]:
    link, size = rows[0].link_gbit, rows[0].size
    most, broadcast, gets = _most(rows)
    times = gets.median_ms / broadcast.median_ms
    return [
        f"Links of {link:g} Gbit/s in each direction: {8 * size / link / 1e6:,.0f} ms for the bytes of the "
        f"object. {_legend(rows)}",
        _table(rows),
        f"Goal: to {most} nodes {GOAL:g} times as fast as by gets; measured: {times:.2f} times, reached: "
        f"{page.yes_or_no(times >= GOAL)}.",
    ]


def _shared(rows: list[Row], cores: int) -> list[str]:
    most, broadcast, gets = _most(rows)
    return [
        _legend(rows),
        _table(rows),
        f"What {cores} cores allow: to {most} nodes a broadcast costs {broadcast.cpu_s:.2f} s of CPU time, "
        f"on {_cores(broadcast):.1f} cores, and gets {gets.cpu_s:.2f} s, on {_cores(gets):.1f}. The "
        f"broadcast is {gets.median_ms / broadcast.median_ms:.2f} times as fast.",
    ]


def _legend(rows: list[Row]) -> str:
    return (
        f"{size_of(rows[0].size)} to so many nodes: median (least to most) of {rows[0].samples} rounds; CPU "
        "time of all daemons in a round, and how many cores that is."
    )


def _table(rows: list[Row]) -> str:
    cells = []
    for nodes in sorted({row.nodes for row in rows}):
        broadcast, gets = _pair(rows, nodes)
        cells.append(
            [
                str(nodes),
                *(
                    f"{row.median_ms:,.0f} ({row.least_ms:,.0f} to {row.most_ms:,.0f})"
                    for row in (broadcast, gets)
                ),
                f"{gets.median_ms / broadcast.median_ms:.2f}",
                *(f"{row.cpu_s:.2f} s, {_cores(row):.1f}" for row in (broadcast, gets)),
            ]
        )
    heads = ["nodes", "broadcast, ms", "gets, ms", "gets / broadcast", "CPU time, cores: broadcast", "gets"]
    return table(heads, cells)


def _most(rows: list[Row]) -> tuple[int, Row, Row]:
    """Rows of both ways to the largest number of nodes."""
    most = max(row.nodes for row in rows)
    return most, *_pair(rows, most)


def _pair(rows: list[Row], nodes: int) -> tuple[Row, Row]:
    by_case = {(row.way, row.nodes): row for row in rows}
    return by_case["broadcast", nodes], by_case["gets", nodes]


def _cores(row: Row) -> float:
    return row.cpu_s / row.median_ms * 1e3
