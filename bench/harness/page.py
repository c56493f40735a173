"""docs/benchmarks.md: figures and how they are written.

Everything between the two marks of a section is written anew; the words around are a person's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import paths


@dataclass(frozen=True)
class Goal:
    """A goal and what became of it."""

    what: str
    wanted: str
    measured: str
    reached: bool | None
    """None if it cannot be said."""


def replace(section: str, body: str, path: Path | None = None) -> None:
    """Writes a section of the page.

    Raises:
        SystemExit: The page has no marks for it.
    """
    begin = f"<!-- {section}: begin (written by `make bench-report`) -->"
    end = f"<!-- {section}: end -->"
    path = path or paths.PAGE
    page = path.read_text()
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{path} lacks the marks of {section!r} between which figures belong")
    path.write_text(f"{before}{begin}\n\n{body}\n\n{end}{after}")


def machine(run: dict[str, Any]) -> list[str]:
    """When and on what something was measured, in a few points."""
    huge = f"{run['huge_pages']} huge" if run["huge_pages"] else "no huge"
    return [
        f"Measured on {run['date']} in {run['seconds']} s; the load before it was {run['load_before']}.",
        f"{run['cores']} cores of {run['cpu']}, {run['memory_gib']:.0f} GiB of memory, "
        f"Linux {run['kernel']}.",
        f"Pages of {run['page_bytes']} bytes, {huge} pages set aside, transparent ones "
        f"{run['transparent_huge_pages']} (for shared memory: {run['transparent_huge_pages_shared']}).",
    ]


def quick(run: dict[str, Any]) -> list[str]:
    """What has to be said of a quick run."""
    text = "**A quick run, to see that all works: these figures are no good.**"
    return [text] if run["quick"] else []


def points(lines: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {line}" for line in lines)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; all columns but the first are numbers."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def goals(title: str, head: str, checked: Iterable[Goal]) -> str:
    """A table of goals and of what became of them."""
    rows = [[goal.what, goal.wanted, goal.measured, yes_or_no(goal.reached)] for goal in checked]
    return f"### {title}\n\n" + table(["", "goal", head, "reached"], rows)


def yes_or_no(reached: bool | None) -> str:
    """Whether a goal was reached."""
    return {True: "yes", False: "**no**", None: ""}[reached]


def short(number: float) -> str:
    """Three digits, or all before the point."""
    return f"{number:,.0f}" if number >= 99.95 else f"{number:.3g}"


def size_of(size: int) -> str:
    """Bytes as people write them."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"
