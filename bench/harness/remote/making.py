"""Cost of making and deleting objects: on a node that is alone, and on a node of two.

A client in Python puts objects, replaces them, makes others by `create`, a copy and `seal`, and deletes both.
Both clusters take turns at each size. The objects of a turn are deleted before the next turn, so that their
memory was used before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.network import Host
from harness.processes import PeerError, Worker
from harness.progress import Progress
from harness.remote.conditions import FAILURES, Kept
from harness.remote.contenders import HOLDER, Plasmon
from harness.remote.figures import Fetches
from harness.remote.run import NOT_COUNTED

KIB, MIB = 1 << 10, 1 << 20
MAKING = "making"
"""Mode of the rows."""
ALONE, PAIR = "alone", "pair"
"""Kinds of clusters, which stand in the rows where others have the state of memory."""
PUT, REPLACE, CREATE, DELETE = "put", "replace", "create_seal", "delete"
_MEMORY = 1024 * MIB
_BYTES_A_TURN = 256 * MIB


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    sizes: Sequence[int] = (KIB, 64 * KIB, 4 * MIB, 64 * MIB)
    most: int = 200
    """Largest number of objects in a turn."""
    turns: int = 7


FULL = Plan()
QUICK = Plan(sizes=(KIB, 4 * MIB), most=20, turns=1)


def measure(
    make: Callable[[], Plasmon], hosts: Sequence[Host], folder: Path, plan: Plan, peer: str = "plasmon-python"
) -> tuple[list[Fetches], list[str]]:
    """Measures everything. Returns the rows, and the failures."""
    say, kept = Progress(), Kept(peer)
    clusters = {ALONE: make(), PAIR: make()}
    try:
        for number, (name, cluster) in enumerate(clusters.items()):
            cluster.start(hosts[: number + 1], folder / f"making-{name}", _MEMORY)
        workers = {name: cluster.client(HOLDER, 0, python=True) for name, cluster in clusters.items()}
        first = 0
        for turn in range(-1, plan.turns):
            for size in plan.sizes:
                say(f"making and deleting {size:,} bytes: turn {turn + 1} of {plan.turns}")
                count = max(2, min(plan.most, _BYTES_A_TURN // size))
                for name, worker in workers.items():
                    _turn(worker, kept if turn >= 0 else None, name, size, (first, count))
                first += 2 * count
    except FAILURES as failure:
        say(f"Plasmon failed to make or delete objects: {failure}\n")
        return kept.rows(), [f"making and deleting: {failure}"]
    finally:
        say.end()
        for cluster in clusters.values():
            cluster.close()
    return kept.rows(), []


def _turn(worker: Worker, kept: Kept | None, cluster: str, size: int, numbers: tuple[int, int]) -> None:
    """Makes objects in either way, and deletes them. Deletions of both ways are one row."""
    first, count = numbers
    for place, operations in enumerate(((PUT, REPLACE, DELETE), (CREATE, DELETE))):
        ask = {"size": size, "owner": 0, "numbers": (first + place * count, count)}
        for what in operations:
            ns: list[int] = worker.ask("measure", operation=what, **ask)["ns"]
            if len(ns) != count:
                raise PeerError(f"{len(ns)} calls of {what}, but there are {count} objects")
            if kept:
                looked_at = ns[NOT_COUNTED:] if count >= 4 * NOT_COUNTED else ns
                kept.add(MAKING, what, cluster, size, looked_at)
