"""Shared parts of all plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, NullLocator

from harness import page, paths

__all__ = ["STYLE", "count_axis", "plt", "save", "size_axis", "time_axis"]

STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.dpi": 130,
}


def size_axis(panel: Any, ticks: Sequence[int]) -> None:
    """Labels the lower axis with sizes."""
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xticks(list(ticks))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda size, _: page.size_of(int(size))))


def time_axis(axis: Any) -> None:
    """Formats microseconds as a time."""
    axis.set_major_formatter(FuncFormatter(_time))


def count_axis(axis: Any) -> None:
    """Formats large numbers."""
    axis.set_major_formatter(FuncFormatter(_count))


def save(plot: Any, name: str) -> None:
    """Saves a plot among the pages' images."""
    paths.IMAGES.mkdir(parents=True, exist_ok=True)
    # Without the date and the version of the program, the same figures give the same file.
    metadata = {"Date": None, "Creator": None} if name.endswith(".svg") else {"Software": None}
    plot.savefig(
        paths.IMAGES / name, metadata=metadata, bbox_inches="tight" if name.endswith(".svg") else None
    )
    plt.close(plot)


def _time(us: float, _position: int) -> str:
    if us >= 1e6:
        return f"{us / 1e6:g} s"
    return f"{us / 1e3:g} ms" if us >= 1e3 else f"{us:g} µs"


def _count(number: float, _position: int) -> str:
    if number >= 1e6:
        return f"{number / 1e6:g} M"
    return f"{number / 1e3:g} k" if number >= 1e3 else f"{number:g}"
