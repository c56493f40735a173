"""Plot for docs/img: values of Python's libraries, with Plasmon and without."""

from __future__ import annotations

from harness import peers, python
from harness.drawing import STYLE, plt, save, time_axis

_OTHERS = "#999999"


def draw(rows: list[python.Row]) -> None:
    """Draws the times of all operations as bars."""
    pairs = python.pairs([row for row in rows if row.median_ms is not None])
    with plt.rc_context(STYLE):
        plot, panel = plt.subplots(figsize=(9.5, 0.32 * len(pairs) + 1.2))
        names = []
        for place, (ours, theirs) in enumerate(pairs):
            for row, shift, color in ((ours, -0.2, peers.PlasmonPython.color), (theirs, 0.2, _OTHERS)):
                panel.barh(place + shift, 1e3 * (row.median_ms or 0), 0.4, color=color)
            names.append(f"{ours.case}: {ours.operation}")
        panel.set_yticks(range(len(names)), names)
        panel.invert_yaxis()
        panel.set(xscale="log", title="Median: with Plasmon (coloured) and without (grey)")
        time_axis(panel.xaxis)
        panel.grid(visible=False, axis="y")
        plot.tight_layout()
        save(plot, "python.png")
