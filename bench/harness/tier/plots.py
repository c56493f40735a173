"""Plot of reads and writes of regions from another host, by size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.drawing import STYLE, plt, save, size_axis, time_axis
from harness.figures import Row
from harness.tier.goals import Found
from harness.tier.workers import FABRIC, PYTHON, REDIS_PYTHON, REDIS_RUST, REMOTE, RUST, TCP

# Peer, label, style.
_LINES: list[tuple[str, str, dict[str, Any]]] = [
    (RUST, "Plasmon (Rust)", {"color": "#52b788", "marker": "s", "linewidth": 2.2}),
    (PYTHON, "Plasmon (Python)", {"color": "#0b6e4f", "marker": "o"}),
    (FABRIC, "libfabric, asleep", {"color": "#555555", "linestyle": ":"}),
    (TCP, "TCP", {"color": "#555555", "linestyle": "--"}),
    (REDIS_RUST, "Redis (Rust)", {"color": "#f77f00", "marker": "v"}),
    (REDIS_PYTHON, "Redis (Python)", {"color": "#f77f00", "marker": "^", "linestyle": "--"}),
]


def draw(rows: Iterable[Row]) -> None:
    """Draws a panel for reads and one for writes."""
    found = Found(rows)
    with plt.rc_context(STYLE):
        plot, panels = plt.subplots(1, 2, figsize=(9.5, 4.6), sharey=True)
        shown: dict[str, Any] = {}
        for panel, operation in zip(panels, ("read", "write"), strict=True):
            sizes = found.sizes(operation)
            for peer, label, style in _LINES:
                by_size = [
                    found.fabric(operation, size)
                    if peer == FABRIC
                    else found.find(REMOTE, peer, operation, size)
                    for size in sizes
                ]
                known = [row for row in by_size if row]
                if known:
                    at, times = [row.size for row in known], [row.median_us for row in known]
                    (shown[label],) = panel.plot(at, times, label=label, markersize=4, **style)
            panel.set(title=f"{operation} from another host", xscale="log", yscale="log")
            size_axis(panel, sizes)
            time_axis(panel.yaxis)
        plot.legend(shown.values(), shown.keys(), loc="lower center", ncols=3)
        plot.tight_layout(rect=(0, 0.12, 1, 1))
        save(plot, "tier.png")
