"""Plot of files: rates from another host by the number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import NullLocator

from harness.drawing import STYLE, count_axis, plt, save
from harness.files import bare
from harness.files.figures import OTHER, Figure, Found
from harness.files.run import FAR, READ, WRITE

_LINES: dict[str, dict[str, Any]] = {
    "plasmon": {"color": "#0b6e4f", "marker": "o"},
    "plasmon-socket": {"color": "#c1121f", "marker": "^"},
    "moosefs": {"color": "#f77f00", "marker": "D"},
    "juicefs": {"color": "#4361ee", "marker": "v"},
    bare.NAME: {"color": "#555555", "linestyle": "--"},
}


def draw(figures: Sequence[Figure], labels: dict[str, str]) -> None:
    """Draws writes and reads of another host's files."""
    found = Found(figures)
    with plt.rc_context(STYLE):
        plot, panels = plt.subplots(1, 2, figsize=(9.5, 3.8), sharey=True)
        shown: dict[str, Any] = {}
        for panel, operation in zip(panels, (WRITE, READ), strict=True):
            for store, style in _LINES.items():
                asked = READ if store == bare.NAME else operation
                counts = found.processes(FAR, asked)
                rows = [found.find(FAR, store, asked, OTHER, count) for count in counts]
                there = [row for row in rows if row is not None]
                if there:
                    at = [row.processes for row in there]
                    label = labels.get(store, store)
                    (shown[label],) = panel.plot(at, [row.median for row in there], markersize=4, **style)
                    low, high = [row.least for row in there], [row.most for row in there]
                    panel.fill_between(at, low, high, color=style["color"], alpha=0.12, linewidth=0)
            panel.set(title=f"{operation}, MB/s", xscale="log", xlabel="processes")
            counts = found.processes(FAR, READ)
            panel.set_xticks(counts, [str(count) for count in counts])
            panel.xaxis.set_minor_locator(NullLocator())
            count_axis(panel.yaxis)
        panels[0].set_ylim(bottom=0)
        plot.suptitle("Files of another host, in order", fontsize=11)
        plot.legend(shown.values(), shown.keys(), loc="lower center", ncols=5)
        plot.tight_layout(rect=(0, 0.1, 1, 1))
        save(plot, "files.png")
