"""Regions in 32 pieces of memory, held against regions in one.

Both are of a cluster of its own, on whose first node memory is free in pieces while the worker makes the
second. Each operation is measured on the two in turns, with the same places and calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.figures import Case, Row, Samples
from harness.network import Host
from harness.progress import Progress
from harness.tier.run import KIB, LITTLE, MANY_RUST, MIB
from harness.tier.workers import HOME, MAPPED, OTHER, REMOTE, RUST, Nodes

WHOLE, PIECES = "whole", "pieces"
"""Ends of the names of operations: on a region in one piece, and on one in 32."""
_MEMORY = 256 << 20
_ROOM = 4 << 20
"""Least size in bytes of a region."""
_PATIENCE = 300.0


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    rounds: int
    turn: float
    """Approximate time in seconds of a turn."""


FULL = Plan(12, 0.2)
QUICK = Plan(2, 0.02)


@dataclass(frozen=True)
class Pair:
    """Operation that is measured on both regions."""

    mode: str
    operation: str
    size: int
    batch: int = 1


PAIRS = [
    *(Pair(MAPPED, operation, LITTLE, MANY_RUST) for operation in ("read", "write")),
    *(Pair(MAPPED, operation, MIB) for operation in ("read", "write")),
    *(Pair(REMOTE, operation, size) for size in (4 * KIB, MIB) for operation in ("read", "write")),
]


def case(pair: Pair, kind: str) -> Case:
    """Case of the rows of an operation on a region in one piece, or in 32."""
    return Case(pair.mode, RUST, f"{pair.operation}_{kind}", "", pair.size, pair.batch, 1)


def measure(plan: Plan, hosts: Sequence[Host], folder: Path, say: Progress) -> list[Row]:
    """Measures all pairs.

    Raises:
        PeerError: A node or a worker failed.
    """
    nodes, samples = Nodes(), Samples()
    try:
        nodes.start(hosts, folder, _MEMORY)
        workers = {
            mode: nodes.regions(RUST, at, "mapped", f"pieces-{mode}")
            for mode, at in ((MAPPED, HOME), (REMOTE, OTHER))
        }
        for worker in workers.values():
            worker.patience = _PATIENCE
        for number, pair in _turns(plan):
            say(f"one piece and 32: {pair.mode} {pair.operation} of {pair.size:,} bytes")
            kinds = (WHOLE, PIECES) if number % 2 else (PIECES, WHOLE)
            for kind in kinds:
                answer = workers[pair.mode].ask(
                    "measure",
                    operation=f"{pair.operation}_{kind}",
                    size=pair.size,
                    batch=pair.batch,
                    owner=0,
                    numbers=(0, _ROOM // pair.size),
                    calls=1000,
                    seconds=plan.turn,
                )
                # The first round is not counted.
                if number > 0:
                    samples.add(case(pair, kind), answer["ns"], moves=True)
        return samples.rows()
    finally:
        nodes.close()


def _turns(plan: Plan) -> Iterator[tuple[int, Pair]]:
    return ((number, pair) for number in range(plan.rounds + 1) for pair in PAIRS)
