"""Calls with longer bodies from another host, which are written to a window there or read where they lie.

Two pairs of nodes are measured in turns: one as it comes, and one with `--push messages`, whose nodes write
nothing to each other's windows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import page
from harness.figures import Case, Row, Samples
from harness.network import Host
from harness.processes import PeerError
from harness.progress import Progress
from harness.tier.callers import Callers
from harness.tier.calls import CALL
from harness.tier.run import KIB
from harness.tier.workers import REMOTE, RUST

READ = "read"
"""Mark of rows whose bodies are read."""
_WAYS = {"": (), READ: ("--push", "messages")}


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    sizes: Sequence[int]
    """Bytes of a call, and of its reply."""
    rounds: int
    turn: float
    """Approximate time in seconds of a turn."""


FULL = Plan((16 * KIB, 64 * KIB, 256 * KIB), 20, 0.2)
QUICK = Plan((16 * KIB, 256 * KIB), 1, 0.02)


def cases(plan: Plan) -> Iterator[Case]:
    """Cases of all rows."""
    for size in plan.sizes:
        yield from (Case(REMOTE, RUST, CALL, memory, size, 1, 1) for memory in _WAYS)


def measure(plan: Plan, hosts: Sequence[Host], folder: Path, say: Progress) -> list[Row]:
    """Measures both ways in turns. The first round is not counted.

    Raises:
        PeerError: A node or a worker failed.
    """
    samples = Samples()
    with contextlib.ExitStack() as ends:
        ways = {
            memory: ends.enter_context(
                contextlib.closing(Callers(hosts, folder / (memory or "written"), {}, (), flags))
            )
            for memory, flags in _WAYS.items()
        }
        for number in range(plan.rounds + 1):
            for case in cases(plan):
                say(f"calls with {page.size_of(case.size)}, {case.memory or 'written'}")
                worker = ways[case.memory].worker(REMOTE, RUST)
                if worker is None:
                    raise PeerError("there is no caller on another host")
                work = {"size": case.size, "batch": 1, "owner": 0, "numbers": (0, 1)}
                answer = worker.ask("measure", operation=CALL, calls=20_000, seconds=plan.turn, **work)
                if number > 0:
                    samples.add(case, answer["ns"], moves=False)
    return samples.rows()


def table(rows: Sequence[Row]) -> str:
    """Section of the page."""
    found = {(row.size, row.memory): row for row in rows if row.operation == CALL and row.mode == REMOTE}
    lines = []
    for size in sorted({size for size, memory in found if memory == READ}):
        written, read = found.get((size, "")), found[size, READ]
        if written:
            cells = [f"{page.short(row.median_us)} ({page.short(row.p99_us)})" for row in (written, read)]
            lines.append([page.size_of(size), *cells, f"{written.median_us / read.median_us:.2f}"])
    text = (
        "Microseconds of a call from another host that brings so many bytes and returns as many, from Rust: "
        "median (p99). The bytes are written to a window of the other node, or read where they lie."
    )
    heads = ["", "written", "read", "written / read"]
    return f"### Calls with longer bodies\n\n{text}\n\n" + page.table(heads, lines) if lines else ""
