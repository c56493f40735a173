"""Plots of regions: reads and writes from another host by size, and classes of work over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.drawing import STYLE, plt, save, size_axis, time_axis
from harness.figures import Row
from harness.tier.classes import MODES, Span
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


def draw_classes(spans: Sequence[Span]) -> None:
    """Draws a panel for each way to keep classes apart: the rates of high and low work over time."""
    modes = [mode for mode in MODES if any(span.qos == mode for span in spans)]
    if not modes:
        return
    with plt.rc_context(STYLE):
        size = (7.5, 1.9 * len(modes))
        plot, panels = plt.subplots(len(modes), 1, figsize=size, sharex=True, squeeze=False)
        for panel, mode in zip(panels[:, 0], modes, strict=True):
            ours = [span for span in spans if span.qos == mode]
            ends = [span.end_s for span in ours]
            for label, color, rates in (
                ("high", "#0b6e4f", [span.high for span in ours]),
                ("low", "#f77f00", [span.low for span in ours]),
            ):
                panel.plot(ends, [rate / 1e6 for rate in rates], label=label, color=color)
            panel.set(title=f"--qos {mode}", ylabel="MB/s", ylim=(0, None))
        panels[0, 0].legend(loc="upper right", ncols=2)
        panels[-1, 0].set(xlabel="seconds since high work began")
        plot.tight_layout()
        save(plot, "tier-classes.png")
