"""Sections of docs/benchmarks.md with figures.

The text between the two marks of a section is written anew. The text around them is written by people.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import paths

_COLUMNS = 110
"""Columns of a line of the page, as the repository's other lines have at most."""


@dataclass(frozen=True)
class Goal:
    """A goal and what became of it."""

    what: str
    wanted: str
    measured: str
    reached: bool | None
    """Whether the goal was reached. `None` if nobody can say."""


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
    path.write_text(f"{before}{begin}\n\n{_wrapped(body)}\n\n{end}{after}")


def _wrapped(body: str) -> str:
    """Text whose paragraphs and points have lines of at most 110 columns. Tables and images keep theirs."""
    lines = []
    for line in body.splitlines():
        if line.startswith(("|", "!")) or len(line) <= _COLUMNS:
            lines.append(line)
            continue
        indent = "  " if line.startswith("- ") else ""
        lines += textwrap.wrap(
            line, _COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(lines)


def machine(run: dict[str, Any]) -> list[str]:
    """Date and machine of a measurement, as a list."""
    huge = f"{run['huge_pages']} huge" if run["huge_pages"] else "no huge"
    return [
        f"Measured on {run['date']} in {run['seconds']} s; the load before it was {run['load_before']}.",
        f"{run['cores']} cores of {run['cpu']}, {run['memory_gib']:.0f} GiB of memory, "
        f"Linux {run['kernel']}.",
        f"Pages of {run['page_bytes']} bytes, {huge} pages set aside, transparent ones "
        f"{run['transparent_huge_pages']} (for shared memory: {run['transparent_huge_pages_shared']}).",
        *filter(None, [run.get("idle")]),
        *(
            f"Measured later, alone: {part}, on {of_part['date']} in {of_part['seconds']} s, on "
            f"{of_part['cpu']}; the load before it was {of_part['load_before']}."
            for part, of_part in run.get("renewed", {}).items()
        ),
    ]


def quick(run: dict[str, Any]) -> list[str]:
    """Warning about a quick run."""
    text = "**A quick run, to see that all works: these figures are no good.**"
    return [text] if run["quick"] else []


def points(lines: Iterable[str]) -> str:
    """Formats a list."""
    return "\n".join(f"- {line}" for line in lines)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Formats a table. All columns but the first are numbers."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def goals(title: str, head: str, checked: Iterable[Goal]) -> str:
    """A table of goals and of what became of them."""
    rows = [[goal.what, goal.wanted, goal.measured, yes_or_no(goal.reached)] for goal in checked]
    return f"### {title}\n\n" + table(["", "goal", head, "reached"], rows)


def yes_or_no(reached: bool | None) -> str:
    """Formats whether a goal was reached."""
    return {True: "yes", False: "**no**", None: ""}[reached]


def short(number: float) -> str:
    """Formats a number with three digits, or with all before the point."""
    return f"{number:,.0f}" if number >= 99.95 else f"{number:.3g}"


def size_of(size: int) -> str:
    """Formats a size in bytes."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"
