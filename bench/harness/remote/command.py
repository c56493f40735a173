"""Command of the benchmarks: chooses contenders, makes hosts, measures, and keeps all results."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import figures, machine
from harness.choosing import choose
from harness.network import Network
from harness.remote import conditions, lanes, making
from harness.remote import run as running
from harness.remote.contenders import Contender, Plasmon, digests, plasmon
from harness.remote.figures import REMOTE, Fetches
from harness.remote.others import ALL
from harness.remote.plausible import impossible

PARTS = (lanes.LANES, making.MAKING)
"""Parts that can be measured alone: the modes of their rows."""
_FOR_STORES = 0.6
"""Part of the free memory that stores may take."""
_LEAST_MEMORY = 64 << 20


def run(names: Sequence[str] | None, quick: bool, minutes: float | None, results: Path) -> int:
    """Measures, and writes the figures and the description of the run, even if it is interrupted."""
    description: dict[str, Any] = machine.describe() | {"quick": quick}
    everybody: list[Contender] = [
        *plasmon(),
        Plasmon.of_four(),
        *digests(names),
        *(kind() for kind in ALL),
    ]
    contenders, missing = choose(names, everybody)
    plan = running.QUICK if quick else running.FULL
    if minutes is not None:
        plan = replace(plan, seconds=60 * minutes)
    plan = fit(plan, contenders, machine.available())
    begin = time.monotonic()
    kept: list[Fetches] = []
    failures: dict[str, list[str]] = {}
    rounds: dict[str, int] = {}
    special: list[Fetches] = []
    whole = False

    def keep(rows: list[Fetches]) -> None:
        kept[:] = rows
        write(whole=False)

    def write(whole: bool) -> list[tuple[str, str]]:
        """Writes the plausible figures, and prints the others."""
        wrong = impossible(kept, beside_tcp(contenders))
        told = [(row.peer, why) for row, why in wrong]
        described = description | {
            "whole": whole,
            "seconds": round(time.monotonic() - begin),
            "store_bytes": plan.memory,
            "rounds": rounds,
            "labels": {one.name: one.label for one in contenders},
            "versions": {one.name: one.version for one in contenders if one.version},
            "missing": missing,
            "failures": failures,
            "impossible": told,
            "facts": {one.name: one.facts for one in contenders if one.facts},
        }
        out = [row for row, _ in wrong]
        rows = figures.ordered([row for row in kept if row not in out] + special)
        REMOTE.keep(results, rows, described)
        return told

    wrong: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, Network(2) as network:
        description["network"] = network.description
        try:
            failures, rounds = running.measure(contenders, plan, network.hosts, Path(folder), keep)
            if any(one.name == "plasmon-auto" for one in contenders):
                special, failed = measure_special(quick, network, Path(folder))
                if failed:
                    failures.setdefault("plasmon-auto", []).extend(failed)
            whole = True
        except KeyboardInterrupt:
            print("\nEnded before its time; what was measured until now is kept.", file=sys.stderr)
        finally:
            if kept:
                wrong = write(whole)
    if not kept:
        print("Nothing was measured.", file=sys.stderr)
        return 1
    print(f"Measured in {time.monotonic() - begin:.0f} s: {results}/remote.csv", file=sys.stderr)
    for peer, why in wrong:
        print(f"IMPOSSIBLE, and left out: {peer}: {why}", file=sys.stderr)
    return 0 if whole and not wrong and not any(name.startswith("plasmon") for name in failures) else 1


def measure_special(quick: bool, network: Network, folder: Path) -> tuple[list[Fetches], list[str]]:
    """Measures what Plasmon alone does: gets under conditions, gets of what is made, and lanes."""
    special, failed = conditions.measure(
        _auto,
        network.hosts,
        folder,
        conditions.QUICK if quick else conditions.FULL,
        machine.available(),
    )
    made, unmade = measure_making(quick, network, folder)
    laned, unlaned = lanes.measure(folder, lanes.QUICK if quick else lanes.FULL)
    return special + made + laned, failed + unmade + unlaned


def _auto() -> Plasmon:
    return plasmon(["auto"])[0]


def measure_making(quick: bool, network: Network, folder: Path) -> tuple[list[Fetches], list[str]]:
    """Measures what it costs to make, replace and delete objects."""
    return making.measure(_auto, network.hosts, folder, making.QUICK if quick else making.FULL)


def run_part(part: str, quick: bool, results: Path) -> int:
    """Measures a part alone, and keeps the other figures of the last run."""
    described, begin = machine.describe(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, Network(2) as network:
        if part == making.MAKING:
            rows, failures = measure_making(quick, network, Path(folder))
        else:
            rows, failures = lanes.measure(Path(folder), lanes.QUICK if quick else lanes.FULL)
    for failure in failures:
        print(failure, file=sys.stderr)
    if failures:
        return 1
    described["seconds"] = round(time.monotonic() - begin)
    REMOTE.renew(results, part, rows, described, lambda row: row.mode == part, figures.ordered)
    return 0


def beside_tcp(contenders: Iterable[Contender]) -> set[str]:
    """Contenders whose bytes do not go through the kernel's TCP, which is no bound for them."""
    faster = {one.name for one in contenders if not str(one.facts.get("provider", "tcp")).startswith("tcp")}
    return faster | ({"plasmon-python"} if "plasmon-auto" in faster else set())


def fit(plan: running.Plan, contenders: Sequence[Contender], available: int) -> running.Plan:
    """Plan with stores that fit into the free memory. The largest objects may be left out."""
    stores = sum(2 if one.name.startswith("plasmon") else 1 for one in contenders if not one.restless)
    share = int(available * _FOR_STORES) // max(1, stores) // (1 << 20) << 20
    if share >= plan.memory:
        return plan
    memory = max(share, _LEAST_MEMORY)
    print(
        f"Stores are of {memory >> 20} MiB for want of memory; what does not fit is left out.",
        file=sys.stderr,
    )
    return replace(plan, memory=memory)
