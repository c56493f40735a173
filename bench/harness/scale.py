"""`make bench-scale`: measures membership and directory of large clusters, by simulation.

The simulation runs the nodes' own code with thousands of nodes and up to 10^9 objects, and counts the
messages that they would send. This module runs it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import machine, paths
from harness.series import Series

_LIMIT = 3600.0


@dataclass(frozen=True)
class Figure:
    """Figure of the simulation."""

    nodes: int
    objects: int
    measure: str
    value: float
    unit: str
    how: str
    """Origin: "counted", "sampled" (a sample stands for all), "measured" on this machine, or "computed"."""


SCALE = Series("scale", Figure)


def run(quick: bool, results: Path) -> int:
    """Simulates, and writes the figures and the description of the run."""
    described: dict[str, Any] = machine.describe()
    begin = time.monotonic()
    command = [str(paths.scale_worker()), *(["--quick"] if quick else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_LIMIT, check=False)
    if done.returncode:
        return done.returncode
    results.mkdir(parents=True, exist_ok=True)
    (results / "scale.csv").write_text(done.stdout)
    described |= {"seconds": round(time.monotonic() - begin), "quick": quick}
    SCALE.describe(results, described)
    print(f"Simulated in {described['seconds']} s: {results}/scale.csv", file=sys.stderr)
    return 0
