"""`make bench-heal`: measures what the death of a node costs the others.

For each coordinator and each way to die (SIGKILL closes connections, SIGSTOP is as silent as a dead machine),
it measures the seconds until the survivors follow the new view, and until every object has both entries of
the directory again. It also times gets of living objects, for five seconds before the death and until then.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import machine, page, paths
from harness.figures import percentile
from harness.page import short, table
from harness.series import Series

NODES = 4
LEASE = 5
"""Time in seconds."""
OBJECTS = [1_000, 100_000]
QUICK_OBJECTS = [1_000]
GOALS = (2.0, 2.0)
"""Goals: leases until the directory is healed, and the factor of the p99 of gets meanwhile."""
COORDINATORS = ["embedded", "etcd"]
DEATHS = ["SIGKILL", "SIGSTOP"]
_LIMIT = 600.0
_WORKER = paths.ROOT / "bench" / "workers" / "heal.py"


@dataclass(frozen=True)
class Death:
    """Costs of one death."""

    coordinator: str
    death: str
    nodes: int
    """Number of nodes before the death."""
    objects: int
    """Number of objects that the survivors hold."""
    lease_s: float
    followed_s: float
    """Time in seconds until all survivors followed the view without the dead node."""
    healed_s: float
    """Time in seconds until the survivors' directory had both entries of every object."""
    usual_gets: int
    usual_median_us: float
    usual_p99_us: float
    healing_gets: int
    healing_median_us: float
    healing_p99_us: float
    failed_gets: int


HEAL = Series("heal", Death)


def run(quick: bool, results: Path) -> int:
    """Measures, writes the figures, and prints them."""
    begin = time.monotonic()
    described: dict[str, Any] = machine.describe() | {"quick": quick}
    deaths, failures = [], []
    for objects in QUICK_OBJECTS if quick else OBJECTS:
        for coordinator in COORDINATORS:
            for death in DEATHS:
                try:
                    row = measure(coordinator, death, objects)
                except (subprocess.SubprocessError, ValueError) as error:
                    failures.append(f"{coordinator}, {death}: {error}")
                    print(failures[-1], file=sys.stderr)
                    continue
                deaths.append(row)
                print(
                    f"{coordinator:9} {death} {objects:>9,} objects: followed in {row.followed_s:.2f} s, "
                    f"healed in {row.healed_s:.2f} s (lease {row.lease_s:.0f} s); "
                    f"gets p99 {row.usual_p99_us:,.0f} us, healing {row.healing_p99_us:,.0f} us, "
                    f"{row.failed_gets} failed"
                )
    described |= {"seconds": round(time.monotonic() - begin), "failures": failures}
    HEAL.keep(results, deaths, described)
    print(f"Measured in {described['seconds']} s: {results}/heal.csv", file=sys.stderr)
    return 1 if failures or any(row.failed_gets for row in deaths) else 0


def measure(coordinator: str, death: str, objects: int) -> Death:
    """Measures one death in a new cluster."""
    command: list[str | Path] = [
        paths.plasmon_python(),
        _WORKER,
        "--coordinator",
        coordinator,
        "--death",
        death,
    ]
    command += ["--nodes", str(NODES), "--objects", str(objects), "--lease", str(LEASE)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=_LIMIT, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    usual, healing = said["usual_ns"], said["healing_ns"]
    if not usual or not healing:
        raise ValueError("no get was made")
    return Death(
        coordinator=coordinator,
        death=death,
        nodes=NODES,
        objects=objects,
        lease_s=LEASE,
        followed_s=round(said["followed_s"], 3),
        healed_s=round(said["healed_s"], 3),
        usual_gets=len(usual),
        usual_median_us=percentile(usual, 0.5) / 1e3,
        usual_p99_us=percentile(usual, 0.99) / 1e3,
        healing_gets=len(healing),
        healing_median_us=percentile(healing, 0.5) / 1e3,
        healing_p99_us=percentile(healing, 0.99) / 1e3,
        failed_gets=len(said["failed"]),
    )


def text(deaths: list[Death], described: dict[str, Any]) -> list[str]:
    """The section of the page."""
    cells = [
        [
            f"{death.objects:,}",
            death.coordinator,
            death.death,
            f"{death.followed_s:.2f}",
            f"{death.healed_s:.2f}",
            f"{short(death.usual_median_us)} ({short(death.usual_p99_us)})",
            f"{short(death.healing_median_us)} ({short(death.healing_p99_us)})",
            f"{death.healing_gets:,}",
            f"{death.healing_p99_us / death.usual_p99_us:.2f}",
            str(death.failed_gets),
        ]
        for death in deaths
    ]
    heads = [
        "objects",
        "coordinator",
        "death",
        "followed, s",
        "healed, s",
        "gets before, µs",
        "gets until healed, µs",
        "gets",
        "p99 / p99 before",
        "failed",
    ]
    leases = max(death.healed_s / death.lease_s for death in deaths)
    slower = [death for death in deaths if death.healing_p99_us > GOALS[1] * death.usual_p99_us]
    return [
        page.points([*page.machine(described), *page.quick(described)]),
        f"Of {deaths[0].nodes} nodes with a lease of {deaths[0].lease_s:g} s one dies; gets: median (p99).",
        table(heads, cells),
        f"Goals: healed within {GOALS[0]:g} leases; measured: at most {leases:.1f}, reached: "
        f"{page.yes_or_no(leases <= GOALS[0])}. The p99 of gets under {GOALS[1]:g} times the usual: "
        f"in {len(deaths) - len(slower)} of {len(deaths)} cases, reached: {page.yes_or_no(not slower)}.",
    ]
