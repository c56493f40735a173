"""One log that several nodes append to, beside as many pairs of bare processes.

The log lives on the first node, and a writer on each other node has 64 transactions of one record under way.
A commit is three operations one after the other, each a round trip: so a bare pair, which reads 16 bytes of
each other's memory with 64 reads under way, counts as a third of its reads. The pairs run at the same time.
The nodes take turns on the two hosts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import page
from harness.figures import Case, Row, Samples
from harness.network import Host
from harness.processes import Worker, ask_all
from harness.progress import Progress
from harness.remote import others
from harness.remote.contenders import Way
from harness.tier import log
from harness.tier.log import RECORD, WINDOW
from harness.tier.workers import FABRIC, HOME, REMOTE, RUST, Nodes

COMMIT_NODES = "commit_nodes"
_OPERATIONS = 3
"""Operations of a commit, one after the other."""
_MEMORY = 1024 << 20
_LITTLE = 64 << 20
_READY = 0.5
"""Time in seconds for all processes to be ready."""


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    nodes: Sequence[int]
    rounds: int
    seconds: int
    """Time of a turn in seconds."""


FULL = Plan((2, 4, 8), 3, 3)
QUICK = Plan((2, 3), 1, 1)


def cases(plan: Plan) -> Iterator[Case]:
    """All cases. What is said to be clients are nodes."""
    for nodes in plan.nodes:
        yield from (Case(REMOTE, peer, COMMIT_NODES, "", RECORD, 1, nodes) for peer in (RUST, FABRIC))


def measure(plan: Plan, hosts: Sequence[Host], folder: Path, say: Progress) -> list[Row]:
    """Measures all cases, those of fewer nodes first.

    Raises:
        PeerError: A node or a program failed.
    """
    nodes, samples = Nodes(), Samples()
    pairs: list[others.Fabric] = []
    try:
        nodes.start(hosts, folder / "plasmon", _MEMORY)
        for count in plan.nodes:
            while len(nodes.nodes) < count:
                nodes.add(hosts[len(nodes.nodes) % len(hosts)], _LITTLE)
            while len(pairs) < count - 1:
                pair = others.Fabric()
                pair.provider = str(nodes.facts["provider"])
                pairs.append(pair)
                pair.start(hosts, folder / f"pair-{len(pairs)}", _LITTLE)
            for _ in range(plan.rounds):
                for case in cases(Plan((count,), 1, plan.seconds)):
                    say(f"log of {count} nodes: {case.peer}")
                    rate = (
                        _log(nodes, count, hosts, plan.seconds)
                        if case.peer == RUST
                        else _reads(pairs[: count - 1], plan.seconds) / _OPERATIONS
                    )
                    samples.add(case, [round(1e9 / rate)], moves=True, rate=rate)
        return samples.rows()
    finally:
        for pair in pairs:
            pair.close()
        nodes.close()


def _log(nodes: Nodes, count: int, hosts: Sequence[Host], seconds: int) -> float:
    """Records a second that writers on all nodes but the first commit together."""
    sockets = ",".join(str(node.socket) for node in nodes.nodes[1:count])
    words = ["log", sockets, nodes.nodes[HOME].socket, count - 1, WINDOW, 1, seconds]
    return log.run_rate(words, hosts[HOME], f"the log of {count} nodes")


def _reads(pairs: Sequence[others.Fabric], seconds: int) -> float:
    """Reads a second of all pairs together."""
    workers: dict[int, Worker] = {number: pair.getter(Way(""), 0) for number, pair in enumerate(pairs)}
    work = {
        "operation": "read_begun_asleep_places",
        "size": RECORD,
        "batch": WINDOW,
        "owner": 0,
        "numbers": (0, WINDOW),
        "start": time.monotonic_ns() + round(_READY * 1e9),
        "seconds": float(seconds),
    }
    answers = ask_all(workers, "sustain", dict.fromkeys(workers, work))
    rates = [float(answer["calls"]) * WINDOW / (float(answer["ns"]) / 1e9) for answer in answers.values()]
    return max(1.0, sum(rates))


def table(rows: Sequence[Row]) -> str:
    """Section of the page with the rates."""
    rates = {(row.peer, row.clients): row.ops_per_s for row in rows if row.operation == COMMIT_NODES}
    lines = []
    for nodes in sorted({nodes for _, nodes in rates}):
        ours, bare = rates.get((RUST, nodes)), rates.get((FABRIC, nodes))
        if ours and bare:
            lines.append([str(nodes), f"{ours:,.0f}", f"{bare:,.0f}", f"{ours / bare:.2f}"])
    text = (
        f"Records of {RECORD} bytes that are committed in a second to one log on the first node, by a writer "
        f"on each other node that has {WINDOW} transactions under way; and a third of the reads of {RECORD} "
        "bytes that as many pairs of bare processes make in a second, asleep while they wait, since a commit "
        "is three operations one after the other. All share the cores of one machine."
    )
    heads = ["nodes", "the log", "bare pairs", "of it"]
    return f"### A log of several nodes\n\n{text}\n\n" + page.table(heads, lines) if lines else ""
