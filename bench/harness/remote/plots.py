"""Plots of the figures between hosts: small objects, large objects, and growth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.ticker import NullFormatter, NullLocator

from harness.drawing import STYLE, count_axis, plt, save, size_axis, time_axis
from harness.page import size_of
from harness.remote.contenders import PLACES
from harness.remote.figures import Fetches
from harness.remote.goals import AUTO, Found
from harness.remote.growth import AXES, BATCH, Grown

KIB, MIB = 1 << 10, 1 << 20
_SMALL_UP_TO = 64 * KIB
_BARE = {"color": "#555555", "marker": "", "linewidth": 1.3}
# Contender, memory, label, style.
_LINES: list[tuple[str, str, str, dict[str, Any]]] = [
    (AUTO, "cold", "Plasmon: auto", {"color": "#0b6e4f", "marker": "o", "linewidth": 2.2}),
    (AUTO, "warm", "auto, location known", {"color": "#0b6e4f", "marker": "o", "linestyle": "--"}),
    ("plasmon-read", "cold", "read", {"color": "#52b788", "marker": "s"}),
    ("plasmon-read-register", "cold", "read-register", {"color": "#95d5b2", "marker": "D"}),
    ("plasmon-send", "cold", "send", {"color": "#b5a300", "marker": "P"}),
    ("plasmon-socket", "cold", "socket", {"color": "#c1121f", "marker": "^"}),
    ("tcp", PLACES, "TCP, no store", {**_BARE, "linestyle": "--"}),
    ("fabric", PLACES, "libfabric, no store", {**_BARE, "linestyle": ":"}),
    ("redis", "", "Redis (hiredis)", {"color": "#f77f00", "marker": "v"}),
    ("mooncake", "", "Mooncake", {"color": "#7b2cbf", "marker": "X"}),
    ("ray", "", "Ray", {"color": "#4361ee", "marker": "<"}),
]
# For growth: size of an object in bytes, objects in a call.
_GROWN = {(KIB, 1): "#0b6e4f", (KIB, BATCH): "#f77f00", (MIB, 1): "#4361ee"}
Value = Callable[[Fetches], float]


def draw(rows: Sequence[Fetches]) -> None:
    """Draws small objects by latency, and large ones by latency and throughput."""
    found = Found(rows)
    small = [size for size in found.sizes if size <= _SMALL_UP_TO]
    large = [size for size in found.sizes if size >= _SMALL_UP_TO]
    several = max(found.getters)
    with plt.rc_context(STYLE):
        if len(small) > 1:
            _pair(
                "remote-small.png",
                (_panel_of(found, small, 1, _latency), "one getter, latency", time_axis),
                (_panel_of(found, small, several, _rate), f"{several} getters, objects a second", count_axis),
            )
        if len(large) > 1:
            _pair(
                "remote-large.png",
                (_panel_of(found, large, 1, _latency), "one getter, latency", time_axis),
                (_panel_of(found, large, 1, _throughput), "one getter, GB/s", count_axis),
            )


Panel = tuple[Callable[[Any], dict[str, Any]], str, Callable[[Any], None]]


def _pair(name: str, *panels: Panel) -> None:
    plot, places = plt.subplots(1, len(panels), figsize=(9.5, 4.6))
    shown: dict[str, Any] = {}
    for place, (fill, title, axis) in zip(places, panels, strict=True):
        shown |= fill(place)
        place.set(title=title, xscale="log", yscale="log")
        axis(place.yaxis)
        sizes = sorted({int(size) for line in place.lines for size in line.get_xdata()})
        size_axis(place, sizes[:: 1 if len(sizes) < 7 else 2])
    plot.legend(shown.values(), shown.keys(), loc="lower center", ncols=4)
    plot.tight_layout(rect=(0, 0.15, 1, 1))
    save(plot, name)


def _panel_of(
    found: Found, sizes: Sequence[int], getters: int, value: Value
) -> Callable[[Any], dict[str, Any]]:
    def fill(panel: Any) -> dict[str, Any]:
        shown = {}
        for peer, memory, label, style in _LINES:
            rows = [row for size in sizes if (row := found.find(peer, size, getters, memory))]
            if rows:
                values = [value(row) for row in rows]
                (shown[label],) = panel.plot([row.size for row in rows], values, markersize=4, **style)
        return shown

    return fill


def draw_growth(rows: Sequence[Grown]) -> None:
    """Draws a panel for each quantity that grows."""
    with plt.rc_context(STYLE):
        plot, panels = plt.subplots(1, len(AXES), figsize=(9.5, 3.8), sharey=True)
        shown: dict[str, Any] = {}
        for panel, (axis, title) in zip(panels, AXES.items(), strict=True):
            own = [row for row in rows if row.axis == axis]
            for size, batch in sorted({(row.size, row.batch) for row in own}):
                line = [row for row in own if (row.size, row.batch) == (size, batch)]
                at = [row.at for row in line]
                low, high = [row.slowest_per_s for row in line], [row.fastest_per_s for row in line]
                style = {"color": _GROWN.get((size, batch)), "marker": "o", "markersize": 4}
                label = f"{size_of(size)}, {batch} a call"
                (shown[label],) = panel.plot(at, [row.objects_per_s for row in line], **style)
                panel.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)
            panel.set(title=f"by {title}", yscale="log", xscale="linear" if axis == "nodes" else "log")
            panel.set_xticks(sorted({row.at for row in own}))
            count_axis(panel.xaxis)
            panel.xaxis.set_minor_locator(NullLocator())
        count_axis(panels[0].yaxis)
        panels[0].yaxis.set_minor_formatter(NullFormatter())
        lowest = min((row.slowest_per_s for row in rows), default=1.0)
        panels[0].set_ylim(bottom=10 ** math.floor(math.log10(lowest)))
        plot.suptitle("Objects a second", fontsize=11)
        plot.legend(shown.values(), shown.keys(), loc="lower center", ncols=4)
        plot.tight_layout(rect=(0, 0.08, 1, 1))
        save(plot, "growth.png")


def _latency(row: Fetches) -> float:
    return row.median_us


def _rate(row: Fetches) -> float:
    return row.ops_per_s


def _throughput(row: Fetches) -> float:
    return row.gb_per_s or 0.0
