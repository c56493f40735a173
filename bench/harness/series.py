"""Figures that one command of the benchmarks measures: where they are kept, and their section of a page.

A run leaves a CSV with a row a figure, and beside it a JSON file that describes the run. `make bench-report`
writes a section of the documentation from the last of both. So every command is a `Series` and two functions
of its own: one that measures, and one that turns figures into text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from harness import figures, page, paths
from harness.figures import Kind


@dataclass(frozen=True)
class Series(Generic[Kind]):
    """Figures of one kind, of one command."""

    name: str
    """The command is `make bench-<name>`, and its files begin with the name."""
    kind: type[Kind]
    """A row of the CSV."""

    def keep(self, results: Path, rows: Iterable[Kind], described: dict[str, Any]) -> None:
        """Writes figures, and the description of the run."""
        figures.write(results / f"{self.name}.csv", rows, self.kind)
        self.describe(results, described)

    def describe(self, results: Path, described: dict[str, Any]) -> None:
        """Writes the description of the run alone."""
        (results / f"{self.name}.json").write_text(json.dumps(described, indent=2) + "\n")

    def read(self, results: Path) -> list[Kind]:
        """The figures of a run."""
        return figures.read(results / f"{self.name}.csv", self.kind)

    def last(self) -> tuple[list[Kind], dict[str, Any]] | None:
        """Figures and description of the last run, if there was one."""
        if not (paths.RESULTS / f"{self.name}.csv").exists():
            return None
        described = json.loads((paths.RESULTS / f"{self.name}.json").read_text())
        return self.read(paths.RESULTS), described

    def renew(
        self,
        results: Path,
        part: str,
        rows: Iterable[Kind],
        run: dict[str, Any],
        is_part: Callable[[Kind], bool],
        ordered: Callable[[list[Kind]], list[Kind]],
        is_of_part: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Puts the rows of a part that was measured alone in the place of those of the last run, in order.

        The description says when that was, and so does the page. Failures of the last run go with their rows,
        if `is_of_part` knows them.
        """
        if (last := self.last()) is None:
            raise SystemExit(f"there is no run whose {part} could be replaced: make bench-{self.name}")
        others, described = [row for row in last[0] if not is_part(row)], last[1]
        of_part = {name: run[name] for name in ("date", "cpu", "seconds", "load_before")}
        described["renewed"] = described.get("renewed", {}) | {part: of_part}
        failures = {
            store: [one for one in reasons if not is_of_part(one)]
            for store, reasons in described.get("failures", {}).items()
        }
        for store, reasons in run.get("failures", {}).items():
            failures[store] = failures.get(store, []) + reasons
        described["failures"] = {store: reasons for store, reasons in failures.items() if reasons}
        self.keep(results, ordered([*others, *rows]), described)

    def report(
        self,
        text: Callable[[list[Kind], dict[str, Any]], Iterable[str]],
        section: str = "",
        path: Path | None = None,
    ) -> None:
        """Writes the section, named as the series if not otherwise, from the paragraphs that `text` makes.

        A page of its own stays as it is until there is something to say.
        """
        if last := self.last():
            page.replace(section or self.name, "\n\n".join(filter(None, text(*last))), path)
        elif path is None:
            page.replace(section or self.name, f"Not measured yet: `make bench-{self.name}`.")
