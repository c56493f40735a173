"""Who takes part in a run: those that were asked for, of those that can be measured here."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """What may take part."""

    name: str
    label: str

    def missing(self) -> str | None:
        """Why it cannot be measured here, if so."""


Some = TypeVar("Some", bound=Candidate)


def choose(names: Sequence[str] | None, candidates: Iterable[Some]) -> tuple[list[Some], dict[str, str]]:
    """Those of these names (all, if there are none) that can be measured, and why the others cannot.

    Raises:
        SystemExit: A name is nobody's, or nobody is left.
    """
    known = {one.name: one for one in candidates}
    unknown = [name for name in names or [] if name not in known]
    if unknown:
        raise SystemExit(f"there is no {unknown[0]!r} to measure: choose from {', '.join(known)}")
    chosen, missing = [], {}
    for name, one in known.items():
        if names and name not in names:
            continue
        if reason := one.missing():
            missing[name] = reason
            print(f"{one.label} is not measured: {reason}", file=sys.stderr)
        else:
            chosen.append(one)
    if not chosen:
        raise SystemExit("there is nothing to measure")
    return chosen, missing
