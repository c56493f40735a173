"""Locks and barriers, on one host and between two.

Two nodes of their own. The home of a lock is the first node, that of the coordinator: so *mapped* is a client
of the lock's home, and *remote* one of the other node. Adds to a word of the home take turns with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import paths
from harness.figures import Case, Row, Samples
from harness.network import Host
from harness.processes import Worker
from harness.progress import Progress
from harness.tier.workers import HOME, MAPPED, OTHER, REMOTE, RUST, Nodes

LOCK, HAND_OVER, MEET, ADD = "lock", "hand_over", "meet", "lock_add"
PARTIES = 4
"""Number of parties of a barrier, half of them at each node."""
_MEMORY = 256 << 20
_PATIENCE = 120.0
_LOCKS, _REGIONS = "locks", "regions"


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    rounds: int
    turn: float
    """Approximate time in seconds of a turn."""


FULL = Plan(10, 0.2)
QUICK = Plan(2, 0.02)


def turns() -> Iterator[tuple[Case, str, str]]:
    """All turns of a round: the row, the worker, and what the worker calls the operation."""
    for mode in (MAPPED, REMOTE):
        yield _case(mode, ADD), _REGIONS, "fetch_add"
        yield _case(mode, LOCK), _LOCKS, LOCK
    yield _case(REMOTE, HAND_OVER), _LOCKS, HAND_OVER
    yield _case(REMOTE, MEET), _LOCKS, MEET


def measure(plan: Plan, hosts: Sequence[Host], folder: Path, say: Progress) -> list[Row]:
    """Measures all turns.

    Raises:
        PeerError: A node or a worker failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    nodes, samples = Nodes(), Samples()
    with contextlib.ExitStack() as ends:
        ends.callback(nodes.close)
        nodes.start(hosts, folder / "plasmon", _MEMORY)
        workers = dict(_workers(nodes, hosts, folder, ends))
        for number in range(plan.rounds + 1):
            for case, kind, operation in turns():
                say(f"locks: {case.mode} {operation}")
                answer = workers[case.mode, kind].ask(
                    "measure",
                    operation=operation,
                    size=case.size,
                    batch=case.batch,
                    owner=0,
                    numbers=(0, 1),
                    calls=20_000,
                    seconds=plan.turn,
                )
                # The first round is not counted.
                if number > 0:
                    samples.add(case, answer["ns"], moves=False)
        return samples.rows()


def _case(mode: str, operation: str) -> Case:
    return Case(mode, RUST, operation, "", 8, PARTIES if operation == MEET else 1, 1)


def _workers(
    nodes: Nodes, hosts: Sequence[Host], folder: Path, ends: contextlib.ExitStack
) -> Iterator[tuple[tuple[str, str], Worker]]:
    """Processes whose operations are timed, by mode and what they use."""
    home, other = nodes.nodes[HOME].socket, nodes.nodes[OTHER].socket
    for mode, at, socket, rival in ((MAPPED, HOME, home, home), (REMOTE, OTHER, other, home)):
        programs = {
            _LOCKS: [paths.rust_worker(), "locks", socket, rival],
            _REGIONS: [paths.rust_worker(), "regions", socket, home, "called"],
        }
        for kind, program in programs.items():
            log = folder / f"{mode}-{kind}.log"
            worker = Worker(hosts[at].command(program), log, {}, _PATIENCE)
            ends.callback(worker.close)
            yield (mode, kind), worker
