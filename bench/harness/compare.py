"""`make bench-compare BASE=revision`: what a change costs, row by row of `bench-local` and `bench-remote`.

Four contestants take turns in one run: this build, the build of the revision, and both once more. How far two
runs of one build are apart is the spread of a row. A row is worse if the change costs more than 3 %, and more
than the spread of either build.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness import figures, local, machine, page, paths, peers
from harness.figures import Case, Row
from harness.network import Network
from harness.remote import conditions
from harness.remote import run as running
from harness.remote.command import fit
from harness.remote.contenders import Plasmon
from harness.remote.figures import Fetches
from harness.remote.run import KIB, MIB

NEW, BASE = ("", "-again"), ("-before", "-before-again")
"""Marks of the contestants: each build is measured twice."""
TOLERATED = 0.03
"""Cost that counts as none."""

LOCAL = replace(local.FULL, memory=1024 << 20, first_rounds=2, rounds=4)
REMOTE = [
    replace(
        running.FULL, sizes=[64, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB], getters=(1,), seconds=300.0
    ),
    replace(running.FULL, sizes=[KIB, 64 * KIB, MIB], getters=(8,), seconds=200.0),
]
"""Plans for one getter and for several. There are few sizes and short turns, so that there are many rounds:
the cores on which the threads of a turn run decide by up to a third how long a small get takes."""
TURN = 0.1
"""Time in seconds of gets in a turn."""
CONDITIONS = replace(conditions.FULL, clusters=4, large=256 << 20, turns=2)


@dataclass(frozen=True)
class Cost(Case):
    """Row of both builds beside each other."""

    base_us: float
    """Time of an operation with the base, by all its samples; of clients together, the time per object."""
    new_us: float
    ratio: float
    """Time with this build, divided by the time with the base."""
    spread: float
    """Largest distance from 1 of two measurements of one build."""

    @property
    def worse(self) -> bool:
        """Whether the change costs more than can be told from noise."""
        return self.ratio > 1 + max(TOLERATED, self.spread)


def run(base: Path, quick: bool, only: str | None, results: Path) -> int:
    """Measures, writes `compare.csv`, and prints the rows that are worse and the median ratios."""
    builds = [paths.own(NEW[0]), paths.built_in(base, BASE[0])]
    builds += [paths.own(NEW[1]), paths.built_in(base, BASE[1])]
    failures: dict[str, list[str]] = {}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if only != "remote":
            kinds = (peers.PlasmonRust, peers.PlasmonPython)
            contestants = [kind(build=build) for kind in kinds for build in builds]
            plan = local.QUICK if quick else LOCAL
            measured, failures, _ = local.measure(contestants, plan, Path(folder) / "local")
            rows += measured
        if only != "local":
            fetches, failed = _remote(builds, quick, Path(folder))
            rows += fetches
            failures |= failed
    costs = compare(rows)
    figures.write(results / "compare.csv", costs, Cost)
    _print(costs)
    for name, said in failures.items():
        print(f"{name} failed: {said[0]}", file=sys.stderr)
    print(f"{len(costs)} rows: {results / 'compare.csv'}", file=sys.stderr)
    return 1 if failures else 0


def _remote(
    builds: Sequence[paths.Build], quick: bool, folder: Path
) -> tuple[list[Fetches], dict[str, list[str]]]:
    contenders = [Plasmon("auto", [], build) for build in builds]
    plans = [running.QUICK] if quick else [replace(plan, turn=TURN) for plan in REMOTE]
    latest: dict[int, list[Fetches]] = {}
    failures: dict[str, list[str]] = {}
    with Network(2) as network:
        for number, plan in enumerate(plans):
            plan = fit(plan, contenders, machine.available())
            keep = partial(latest.__setitem__, number)
            failures |= running.measure(contenders, plan, network.hosts, folder / f"remote-{number}", keep)[0]
        kept = [row for rows in latest.values() for row in rows]
        for number, build in enumerate(builds):
            special, failed = conditions.measure(
                lambda build=build: Plasmon("auto", [], build),  # type: ignore[misc]
                network.hosts,
                folder / f"conditions-{number}",
                conditions.QUICK if quick else CONDITIONS,
                machine.available(),
                contenders[number].name,
            )
            kept += special
            if failed:
                failures.setdefault(contenders[number].name, []).extend(failed)
    return kept, failures


def compare(rows: Iterable[Row]) -> list[Cost]:
    """Costs of all cases that both builds have twice."""
    times: dict[tuple[str, str, str, str, int, int, int], dict[str, float]] = defaultdict(dict)
    for row in rows:
        mark = max((mark for mark in (*NEW, *BASE) if row.peer.endswith(mark)), key=len)
        peer = row.peer.removesuffix(mark)
        case = (row.mode, peer, row.operation, row.memory, row.size, row.batch, row.clients)
        times[case][mark] = 1e6 / row.ops_per_s if row.clients > 1 else row.median_us
    costs = []
    for case, by_mark in sorted(times.items()):
        if len(by_mark) == len(NEW) + len(BASE):
            new, base = ([by_mark[mark] for mark in marks] for marks in (NEW, BASE))
            spread = max(max(pair) / min(pair) - 1 for pair in (new, base))
            before, now = statistics.fmean(base), statistics.fmean(new)
            numbers = (figures.rounded(number) for number in (before, now, now / before, spread))
            base_us, new_us, ratio, spread = numbers
            costs.append(Cost(*case, base_us, new_us, ratio, spread))
    return costs


def _print(costs: Sequence[Cost]) -> None:
    """Prints the median ratio of each kind of row, and the rows that are worse."""
    kinds: dict[tuple[str, str, str], list[Cost]] = defaultdict(list)
    for cost in costs:
        kinds[cost.mode, cost.peer, cost.operation].append(cost)
    heads = ["rows", "median of the ratios", "largest", "median spread", "worse"]
    print(page.table(heads, (_summary(kind, group) for kind, group in kinds.items())))
    heads = ["worse", "size", "clients", "before", "now", "ratio", "spread"]
    print()
    print(page.table(heads, (_line(cost) for cost in costs if cost.worse)))


def _summary(kind: Sequence[str], group: Sequence[Cost]) -> list[str]:
    ratios = [cost.ratio for cost in group]
    spread = statistics.median(cost.spread for cost in group)
    worse = sum(cost.worse for cost in group)
    summary = (statistics.median(ratios), max(ratios), spread)
    return [" ".join(kind), *(f"{number:.2f}" for number in summary), f"{worse} of {len(group)}"]


def _line(cost: Cost) -> list[str]:
    name = " ".join(filter(None, (cost.mode, cost.peer, cost.operation, cost.memory)))
    times = [f"{page.short(time)} us" for time in (cost.base_us, cost.new_us)]
    return [name, page.size_of(cost.size), str(cost.clients), *times, str(cost.ratio), str(cost.spread)]
