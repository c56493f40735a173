"""Choice of those that take part in a run: those that were asked for, if they can be measured here."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """Participant of a run that may be chosen by its name."""

    name: str
    label: str

    def missing(self) -> str | None:
        """Reason why the candidate cannot be measured here, or `None`."""


Some = TypeVar("Some", bound=Candidate)


def choose(names: Sequence[str] | None, candidates: Iterable[Some]) -> tuple[list[Some], dict[str, str]]:
    """Chooses candidates by `names` (all if there are none), with reasons why others cannot be measured.

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
