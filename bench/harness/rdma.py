"""`make bench-rdma`: measures the cost of registering memory, in a virtual machine with Soft-RoCE.

The figures are no measure of speed, because the machine is emulated and its device is software. They only
compare costs, so every figure is divided by another of the same run.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.ticker import NullLocator

from harness import machine, page, paths
from harness.drawing import STYLE, plt, save, size_axis
from harness.page import size_of, table
from harness.series import Series

NAME = "rdma-registration"
IMAGE = f"{NAME}.svg"
NOTHING = (
    "Absolute figures of a guest mean nothing: its processor is emulated and its RDMA device is software. "
    "Only ratios within one run are shown, and no ratio of hardware follows from them."
)
_ADDRESS = "10.77.0.1"
_LIMIT = 600.0


@dataclass(frozen=True)
class Cost:
    """Cost of an operation."""

    what: str
    bytes: int
    regions: int
    median_us: float
    samples: int


RDMA = Series(NAME, Cost)


def run(results: Path) -> int:
    """Measures in a guest, and writes the figures and the description of the run."""
    described: dict[str, Any] = machine.describe()
    begin = time.monotonic()
    program = [str(paths.fabric_worker()), "registration", "verbs", _ADDRESS]
    command = [str(paths.guest()), "run", "--seconds", str(int(_LIMIT)), "--", *program]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=2 * _LIMIT, check=False)
    if done.returncode:
        print(f"Nothing was measured:\n{done.stdout}", file=sys.stderr)
        return 1
    # Binary, because a serial line ends its lines in two characters.
    text = "".join(line.strip() + "\n" for line in done.stdout.splitlines() if line.strip())
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{NAME}.csv").write_text(text)
    described |= {"seconds": round(time.monotonic() - begin), "quick": False, "emulated": True}
    RDMA.describe(results, described)
    print(f"Measured in {described['seconds']} s: {results / NAME}.csv", file=sys.stderr)
    return 0


def text(costs: list[Cost], described: dict[str, Any]) -> list[str]:
    """The section of docs/rdma.md, and its plot."""
    registered = relative(costs, "register")
    many = relative(costs, "read-of-many")
    draw(registered, transfers(costs), many)
    rows = [[size_of(size), f"{ratio:.2f}"] for size, ratio in transfers(costs)]
    return [
        NOTHING,
        page.points(page.machine(described)),
        f"![Costs of registration, as ratios](img/{IMAGE})",
        "Registered for each read on both sides, against registered once:",
        table(["read of", "read-register / read"], rows),
        "Registering so much, against 4 KiB:",
        table(["", "cost"], [[size_of(size), f"{ratio:.1f}"] for size, ratio in registered]),
        "A read of 4 KiB out of 16 MiB that are so many regions, against one:",
        table(["regions", "cost"], [[f"{count:,}", f"{ratio:.2f}"] for count, ratio in many]),
    ]


def relative(costs: list[Cost], what: str) -> list[tuple[int, float]]:
    """Costs of one kind by size or by regions, divided by the first of them."""
    some = [cost for cost in costs if cost.what == what]
    by_regions = len({cost.regions for cost in some}) > 1
    return [(cost.regions if by_regions else cost.bytes, cost.median_us / some[0].median_us) for cost in some]


def transfers(costs: list[Cost]) -> list[tuple[int, float]]:
    """Cost of a read with memory registered for it, divided by that of a read without, by size."""
    plain = {cost.bytes: cost.median_us for cost in costs if cost.what == "read"}
    return [
        (cost.bytes, cost.median_us / plain[cost.bytes]) for cost in costs if cost.what == "read-register"
    ]


def draw(
    registered: list[tuple[int, float]], transferred: list[tuple[int, float]], many: list[tuple[int, float]]
) -> None:
    """Draws three panels of ratios."""
    with plt.rc_context({**STYLE, "svg.hashsalt": NAME}):
        plot, panels = plt.subplots(1, 3, figsize=(9.5, 3.2))
        for panel, points, title, below in zip(
            panels,
            (registered, transferred, many),
            ("registering, against 4 KiB", "read-register, against read", "a read, against one region"),
            ("bytes registered", "bytes read", "regions registered"),
            strict=True,
        ):
            panel.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=4)
            panel.axhline(1, color="#888888", linewidth=0.8)
            panel.set(title=title, xscale="log", xlabel=below)
            panel.set_ylim(bottom=0)
            if below.startswith("bytes"):
                size_axis(panel, [size for size, _ in points][::2])
            else:
                panel.xaxis.set_minor_locator(NullLocator())
                ticks = [count for count, _ in points if count in (1, 16, 256, 4096)]
                panel.set_xticks(ticks, [f"{count:,}" for count in ticks])
        plot.text(
            0.5,
            -0.04,
            "Soft-RoCE in an emulated machine: ratios within one run, and nothing else.",
            ha="center",
        )
        plot.tight_layout()
        save(plot, IMAGE)
