"""`make bench-tier`: measures regions, and what they are held against."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness import figures, machine, paths
from harness.figures import Row
from harness.network import Host, Network
from harness.peers import absent
from harness.processes import PeerError
from harness.progress import Progress
from harness.series import Series
from harness.tier import (
    bodies,
    callers,
    calls,
    classes,
    extent,
    locks,
    log,
    log_nodes,
    many,
    mpi,
    pace,
    pieces,
    ucx,
)
from harness.tier import run as running
from harness.tier.classes import CLASSES, SPANS, Apart, Span
from harness.tier.extent import CROWD, Crowd
from harness.tier.many import MANY, Many
from harness.tier.pace import PACE, Pace
from harness.tier.workers import MACHINE, Workers

TIER = Series("tier", Row)
PARTS = (
    *("many", "operations", "pieces", "extent", "ucx", "log", "nodes", "locks", "calls", "bodies", "pace"),
    *("mpi", "classes"),
)


def run(quick: bool, results: Path, only: Collection[str] = PARTS) -> int:
    """Measures, and writes the figures and the description of the run, even if it is interrupted.

    If only some parts are measured, the figures of the others stay those of the last run.
    """
    needed = (paths.plasmon(), paths.plasmon_python(), paths.rust_worker())
    if reason := next(filter(None, (absent(path, "make bench-tier") for path in needed)), None):
        raise SystemExit(f"nothing can be measured: {reason}")
    described: dict[str, Any] = machine.describe() | {"quick": quick, "whole": False, "missing": {}}
    plan, growing = (running.QUICK, many.QUICK) if quick else (running.FULL, many.FULL)
    in_pieces = pieces.QUICK if quick else pieces.FULL
    begin, say, failures = time.monotonic(), Progress(), dict[str, list[str]]()
    rows: list[Row] = []
    stages: list[Many] = []
    crowds: list[Crowd] = []
    apart: list[Apart] = []
    spans: list[Span] = []
    paced: list[Pace] = []
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as name, Network(2) as network:
            described["network"] = network.description
            folder = Path(name)
            hosts, maps = network.hosts, list[Row]()
            if "many" in only:
                stages, maps = _many(growing, network, folder / "many", say, failures)
            if "operations" in only:
                _operations(plan, network, folder, say, failures, described, rows)
            rows += maps
            if "pieces" in only:
                rows += _stage(
                    "regions in pieces",
                    failures,
                    lambda: pieces.measure(in_pieces, hosts, folder / "pieces", say),
                )
            if "extent" in only:
                extents = extent.QUICK if quick else extent.FULL
                crowds, over = _extent(extents, network, folder, say, failures)
                rows += over
            if "ucx" in only:
                rows += _ucx(plan, network, folder / "ucx", say, described)
            rows += _measure_plain(quick, hosts, folder, say, failures, described["missing"], only)
            if "pace" in only:
                of_pace = pace.QUICK if quick else pace.FULL
                paced = _pace(of_pace, network, folder / "pace", say, failures)
            if "mpi" in only:
                rows += _mpi(plan, network, folder, say, failures, described)
        if "classes" in only:
            apart, spans = _classes(classes.QUICK if quick else classes.FULL, say, failures)
        described["whole"] = True
    except (PeerError, OSError) as failure:
        failures.setdefault("plasmon", []).append(str(failure))
    except KeyboardInterrupt:
        print("\nEnded before its time; what was measured until now is kept.", file=sys.stderr)
    finally:
        say.end()
    described |= {"seconds": round(time.monotonic() - begin), "failures": failures}
    for peer, reasons in failures.items():
        print(f"{peer} failed {len(reasons)} times, first: {reasons[0]}", file=sys.stderr)
    if not rows and not apart and not paced:
        print("Nothing was measured.", file=sys.stderr)
        return 1
    _keep(results, only, rows, described)
    if stages:
        MANY.keep(results, stages, described)
    if crowds:
        CROWD.keep(results, crowds, described)
    if apart:
        CLASSES.keep(results, apart, described)
        SPANS.keep(results, spans, described)
    if paced:
        PACE.keep(results, paced, described)
    print(f"Measured in {described['seconds']} s: {results}/tier.csv", file=sys.stderr)
    own = [peer for peer in failures if peer in ("plasmon", "rust", "python", MACHINE)]
    return 0 if described["whole"] and not own else 1


def _keep(results: Path, only: Collection[str], rows: list[Row], described: dict[str, Any]) -> None:
    """Writes the rows. If only some parts were measured, the others' rows stay."""
    if set(only) == set(PARTS):
        TIER.keep(results, figures.ordered(rows), described)
        return
    cases = {_case(row) for row in rows}
    part = ", ".join(only)
    TIER.renew(results, part, rows, described, lambda row: _case(row) in cases, figures.ordered)


def _measure_plain(
    quick: bool,
    hosts: Sequence[Host],
    folder: Path,
    say: Progress,
    failures: dict[str, list[str]],
    missing: dict[str, str],
    only: Collection[str],
) -> list[Row]:
    """Measures the parts that have rows and nothing else, in this order."""
    lacking = callers.missing() if "calls" in only else {}
    missing |= lacking
    if "locks" in only:
        missing |= locks.missing()
    parts: dict[str, tuple[str, Callable[[Path], list[Row]]]] = {
        "log": (
            "the log",
            lambda at: log.measure(log.QUICK if quick else log.FULL, hosts, at, say),
        ),
        "nodes": (
            "the log of several nodes",
            lambda at: log_nodes.measure(log_nodes.QUICK if quick else log_nodes.FULL, hosts, at, say),
        ),
        "locks": (
            "locks",
            lambda at: locks.measure(locks.QUICK if quick else locks.FULL, hosts, at, say, failures),
        ),
        "calls": (
            "calls",
            lambda at: calls.measure(calls.QUICK if quick else calls.FULL, hosts, at, say, failures, lacking),
        ),
        "bodies": (
            "longer bodies",
            lambda at: bodies.measure(bodies.QUICK if quick else bodies.FULL, hosts, at, say),
        ),
    }
    rows: list[Row] = []
    for part, (name, measure) in parts.items():
        if part in only:
            rows += _stage(name, failures, partial(measure, folder / part))
    return rows


def _case(row: Row) -> tuple[object, ...]:
    return row.mode, row.peer, row.operation, row.memory, row.size, row.batch, row.clients


def _many(
    plan: many.Plan, network: Network, folder: Path, say: Progress, failures: dict[str, list[str]]
) -> tuple[list[Many], list[Row]]:
    try:
        return many.measure(plan, network.hosts, folder, say)
    except (PeerError, OSError) as failure:
        failures.setdefault("plasmon", []).append(f"many regions: {failure}")
        return [], []


def _stage(what: str, failures: dict[str, list[str]], measure: Callable[[], list[Row]]) -> list[Row]:
    """Rows of a part of the measurement, or none if it fails."""
    try:
        return measure()
    except (PeerError, OSError) as failure:
        failures.setdefault("plasmon", []).append(f"{what}: {failure}")
        return []


def _extent(
    plan: extent.Plan, network: Network, folder: Path, say: Progress, failures: dict[str, list[str]]
) -> tuple[list[Crowd], list[Row]]:
    try:
        return extent.measure(plan, network.hosts, folder / "extent", say)
    except (PeerError, OSError) as failure:
        failures.setdefault("plasmon", []).append(f"large regions and many clients: {failure}")
        return [], []


def _classes(
    plan: classes.Plan, say: Progress, failures: dict[str, list[str]]
) -> tuple[list[Apart], list[Span]]:
    """Figures of classes, between hosts with links of their own rate."""
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            return classes.measure(plan, Path(name), say)
    except (PeerError, OSError) as failure:
        failures.setdefault("classes", []).append(str(failure))
        return [], []


def _pace(
    plan: pace.Plan, network: Network, folder: Path, say: Progress, failures: dict[str, list[str]]
) -> list[Pace]:
    try:
        return pace.measure(plan, network.hosts, folder, say, failures)
    except (PeerError, OSError) as failure:
        failures.setdefault("plasmon", []).append(f"calls at a pace: {failure}")
        return []


def _ucx(
    plan: running.Plan, network: Network, folder: Path, say: Progress, described: dict[str, Any]
) -> list[Row]:
    say("UCX")
    if reason := ucx.missing():
        described["missing"][ucx.NAME] = reason
        return []
    rows, left_out = ucx.measure(plan.sizes, plan.ucx, plan.ucx_seconds, network.hosts, folder)
    described["missing"] |= left_out
    return rows


def _mpi(
    plan: running.Plan,
    network: Network,
    folder: Path,
    say: Progress,
    failures: dict[str, list[str]],
    described: dict[str, Any],
) -> list[Row]:
    say("MPI")
    if reason := mpi.missing():
        described["missing"][mpi.NAME] = reason
        return []
    try:
        return mpi.measure(plan, network.hosts, folder)
    except (PeerError, OSError) as failure:
        failures.setdefault(mpi.NAME, []).append(str(failure))
        return []


def _operations(
    plan: running.Plan,
    network: Network,
    folder: Path,
    say: Progress,
    failures: dict[str, list[str]],
    described: dict[str, Any],
    rows: list[Row],
) -> None:
    say("starting two nodes and those beside them")
    workers = Workers(network.hosts, folder, plan.memory)
    try:
        measured = running.Run(workers, plan, say)

        def keep(new: list[Row]) -> None:
            rows[:] = new

        try:
            described["rounds"] = measured.measure(keep)
        finally:
            for name, reasons in (*workers.failures.items(), *measured.failures.items()):
                failures.setdefault(name, []).extend(reasons)
            described |= {
                "missing": workers.missing,
                "versions": workers.versions,
                "facts": workers.facts,
                "store_bytes": plan.memory,
            }
    finally:
        workers.close()
