"""Plots for docs/img: latency by size, throughput, and filled stores."""

from __future__ import annotations

from typing import Any

from matplotlib.ticker import NullLocator

from harness import peers
from harness.drawing import STYLE, count_axis, plt, save, size_axis, time_axis
from harness.goals import Figures
from harness.objects import Stage

_MARKERS = {"plasmon-python": "o", "plasmon-rust": "s", "plasma": "^", "redis": "D", "ray": "v", "raw": ""}
# Operation, memory, title, and the copies of the machine beside it.
_PANELS = [
    ("get", "", "get and release", {}),
    ("get_array", "", "get of a NumPy array", {}),
    ("put", "first", "put, memory never used before", {"memcpy_prefaulted": "--", "memcpy_fresh": ":"}),
    ("put", "reused", "put, memory used before", {"memcpy": "-."}),
]
_COPIES = {
    "memcpy": "memcpy, used memory",
    "memcpy_prefaulted": "memcpy, populated memory",
    "memcpy_fresh": "memcpy, untouched memory",
}
_FEWEST = 100
"""Objects per second at which the bars begin."""
_BARS = [("put", 1), ("put_many", 64), ("get", 1), ("get_many", 64)]


def draw(figures: Figures, stages: list[Stage]) -> None:
    """Draws all plots for which there are figures."""
    with plt.rc_context(STYLE):
        _latency(figures)
        _throughput(figures)
        if stages:
            _objects(stages)


def _latency(figures: Figures) -> None:
    plot, panels = plt.subplots(2, 2, figsize=(9.5, 7.4), sharex=True, sharey="row")
    shown: dict[str, Any] = {}
    for panel, (operation, memory, title, copies) in zip(panels.flat, _PANELS, strict=True):
        for kind in peers.ALL:
            rows = [figures.find(kind.name, operation, size, memory) for size in figures.sizes(operation)]
            found = [row for row in rows if row]
            if found:
                sizes, times = [row.size for row in found], [row.median_us for row in found]
                style = {"color": kind.color, "marker": _MARKERS[kind.name], "markersize": 4}
                (shown[kind.label],) = panel.plot(sizes, times, label=kind.label, **style)
        for copy, dashes in copies.items():
            rows = [figures.find("raw", copy, size) for size in figures.sizes(copy)]
            found = [row for row in rows if row]
            style = {"color": peers.Raw.color, "linestyle": dashes, "linewidth": 1.2}
            line = panel.plot([row.size for row in found], [row.median_us for row in found], **style)
            shown[_COPIES[copy]] = line[0]
        panel.set(title=title, xscale="log", yscale="log")
        size_axis(panel, [16**power << 10 for power in range(5)])
        time_axis(panel.yaxis)
    plot.legend(shown.values(), shown.keys(), loc="lower center", ncols=4)
    plot.suptitle("One client, one call at a time: medians", fontsize=11)
    plot.tight_layout(rect=(0, 0.07, 1, 1))
    save(plot, "local-latency.png")


def _throughput(figures: Figures) -> None:
    plot, panels = plt.subplots(1, len(_BARS), figsize=(9.5, 3.4), sharey=True)
    shown: dict[str, Any] = {}
    for panel, (operation, batch) in zip(panels, _BARS, strict=True):
        memory = "reused" if operation.startswith("put") else ""
        place, ticks = 0.0, []
        for clients in sorted({row.clients for row in figures.rows if row.mode == "sustained"}):
            begin = place
            for kind in peers.ALL:
                row = figures.find(kind.name, operation, 1 << 10, memory, batch, clients, "sustained")
                if row:
                    shown[kind.label] = panel.bar(place, row.ops_per_s, 0.9, color=kind.color)
                    place += 1
            ticks.append(((begin + place - 1) / 2, f"{clients} client{'s' * (clients > 1)}"))
            place += 0.8
        panel.set_xticks([tick for tick, _ in ticks], [text for _, text in ticks])
        panel.set(yscale="log", title=f"{operation} of {batch}" if batch > 1 else operation)
        count_axis(panel.yaxis)
        panel.grid(visible=False, axis="x")
    # The axis is shared, and follows the bars unless its begin is set.
    panels[0].set_ylim(bottom=_FEWEST)
    plot.legend(shown.values(), shown.keys(), loc="lower center", ncols=5)
    plot.suptitle("Objects of 1 KiB a second, all clients together", fontsize=11)
    plot.tight_layout(rect=(0, 0.08, 1, 1))
    save(plot, "local-throughput.png")


def _objects(stages: list[Stage]) -> None:
    plot, (times, memory) = plt.subplots(1, 2, figsize=(9.5, 3.4))
    for kind in peers.ALL:
        own = [stage for stage in stages if stage.peer == kind.name]
        if own:
            objects = [stage.objects for stage in own]
            style = {"color": kind.color, "marker": _MARKERS[kind.name], "markersize": 4, "label": kind.label}
            times.plot(objects, [stage.get_median_us for stage in own], **style)
            memory.plot(objects, [stage.bytes_per_object for stage in own], **style)
    times.set(title="get, median", xscale="log", yscale="log", xlabel="objects in the store")
    memory.set(title="memory beside an object, bytes", xscale="log", xlabel="objects in the store")
    memory.set_ylim(bottom=0)
    time_axis(times.yaxis)
    for panel in (times, memory):
        count_axis(panel.xaxis)
        panel.xaxis.set_minor_locator(NullLocator())
    memory.legend()
    plot.tight_layout()
    save(plot, "objects.png")
