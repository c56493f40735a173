"""Section of docs/scale.md and its plot: costs of membership and directory in large clusters."""

from __future__ import annotations

from typing import Any

from harness import page
from harness.drawing import STYLE, plt, save
from harness.page import table
from harness.scale import Figure

IMAGE = "scale.png"
_SHOWN = (10, 100, 1000, 10_000)
_MOST = 1_000_000_000
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def text(found: list[Figure], described: dict[str, Any]) -> list[str]:
    """The section of docs/scale.md, and its plot."""
    _draw(found)
    body = [
        *page.quick(described),
        page.points(page.machine(described)),
        f"![What clusters cost by their size](img/{IMAGE})",
        "An object of the directory, at each of its two keepers:",
        table(["", "cost"], [[one.measure, _value(one)] for one in found if one.nodes == 0]),
        "An operation, where holder, keepers and asker are other nodes as often as there are; without the "
        "bytes of the object:",
        _by_nodes(
            found, 0, [one.measure for one in found if one.measure.startswith(("messages of", "bytes of"))]
        ),
        "The map of shards, and the view, by nodes:",
        _by_nodes(
            found,
            0,
            [
                "map made anew",
                "map after a join",
                "map after a death",
                "a view, told to one that joins",
                "shards of a keeper",
                "shards of the busiest keeper",
            ],
        ),
    ]
    for objects in (1_000_000, _MOST):
        measures = dict.fromkeys(one.measure for one in found if one.objects == objects)
        body += [f"With {objects:,} objects:", _by_nodes(found, objects, [*measures])]
    return body


def _by_nodes(found: list[Figure], objects: int, measures: list[str]) -> str:
    """Table with a row for each measure and a column for each number of nodes."""
    ordered = dict.fromkeys(measures)
    cells = {(one.measure, one.nodes): _value(one) for one in found if one.objects == objects}
    rows = [[measure, *(cells.get((measure, nodes), "") for nodes in _SHOWN)] for measure in ordered]
    return table(["nodes", *(f"{nodes:,}" for nodes in _SHOWN)], rows)


def _value(one: Figure) -> str:
    """Formats a figure. A figure of a sample has a mark."""
    mark = "~" if one.how == "sampled" else ""
    if one.unit == "s":
        return mark + _seconds(one.value)
    for size, prefix in _PREFIXES:
        if one.value >= size and one.unit != "ns":
            return f"{mark}{one.value / size:.3g} {prefix}{'B' if one.unit == 'bytes' else ''}".rstrip()
    unit = {"bytes": " B", "ns": " ns"}.get(one.unit, "")
    return f"{mark}{one.value:,.0f}{unit}" if one.value >= 100 else f"{mark}{one.value:.3g}{unit}"


def _seconds(value: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def _line(found: list[Figure], measure: str, objects: int) -> tuple[list[int], list[float]]:
    """Figures of a measure by the number of nodes."""
    line = [one for one in found if one.measure == measure and one.objects == objects and one.value > 0]
    return [one.nodes for one in line], [one.value for one in line]


def _draw(found: list[Figure]) -> None:
    """Draws four panels, all by the number of nodes."""
    panels_of = [
        (
            "the map of shards",
            "seconds",
            [
                ("made anew", "map made anew", 0),
                ("after a join", "map after a join", 0),
                ("after a death", "map after a death", 0),
            ],
        ),
        (
            "sent after one death",
            "bytes",
            [
                ("changes of members", "death: bytes from the coordinator", _MOST),
                *(
                    (f"to keepers, $10^{power}$ objects", "death: bytes to keepers", 10**power)
                    for power in (6, 7, 8, 9)
                ),
            ],
        ),
        (
            "a keeper's directory",
            "bytes",
            [(f"$10^{power}$ objects", "directory of a keeper", 10**power) for power in (6, 7, 8, 9)],
        ),
        (
            "until all is published again, $10^9$ objects",
            "seconds",
            [
                (f"{event}, {rate} Gbit/s", f"{event}: healed after the view, links of {rate} Gbit/s", _MOST)
                for event in ("join", "death")
                for rate in (10, 100)
            ],
        ),
    ]
    with plt.rc_context(STYLE):
        plot, panels = plt.subplots(2, 2, figsize=(9.5, 7))
        for panel, (title, unit, lines) in zip(panels.flat, panels_of, strict=True):
            for label, measure, objects in lines:
                panel.plot(*_line(found, measure, objects), marker="o", markersize=3, label=label)
            panel.set(title=title, xscale="log", yscale="log", xlabel="nodes", ylabel=unit)
            panel.legend()
        plot.tight_layout()
        save(plot, IMAGE)
