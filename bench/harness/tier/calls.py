"""Calls of functions, beside other libraries, on one host and between two.

Single calls are measured in turns. Then comes the processor time of nodes whose servers wait for calls.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import cpu
from harness.figures import Case, Row, Samples
from harness.network import Host
from harness.progress import Progress
from harness.tier.callers import GRPC, QUEUE, TONIC, ZMQ, Callers
from harness.tier.run import IN_FLIGHT, KIB, LITTLE
from harness.tier.workers import MAPPED, PYTHON, REMOTE, RUST, Nodes

CALL, CALL_REPLY, CALL_BEGUN, PHASES = "call", "call_reply", "call_begun", "call_phases"
PARKED = "parked_cpu"
"""Row of processor time of nodes that nobody calls. It is in seconds x 10^6, as times are in microseconds."""
OTHERS = (ZMQ, GRPC, TONIC, QUEUE)
REPLY = 4 * KIB
"""Size in bytes of the longer reply."""


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    rounds: int
    turn: float
    """Approximate time in seconds of a turn."""
    idle: float
    """Time in seconds in which nobody calls."""


FULL = Plan(10, 0.2, 10.0)
QUICK = Plan(2, 0.02, 0.5)


@dataclass(frozen=True)
class Turn:
    """Turn of one peer, with one operation."""

    mode: str
    peer: str
    operation: str
    size: int
    batch: int = 1

    @property
    def case(self) -> Case:
        """Case of the row of this turn."""
        return Case(self.mode, self.peer, self.operation, "", self.size, self.batch, 1)


def turns() -> Iterator[Turn]:
    """All turns of a round."""
    peers = (RUST, PYTHON, *OTHERS)
    for mode in (MAPPED, REMOTE):
        for operation, size in ((CALL, LITTLE), (CALL_REPLY, REPLY)):
            yield from (Turn(mode, peer, operation, size) for peer in peers)
        yield from (Turn(mode, peer, CALL_BEGUN, LITTLE, IN_FLIGHT) for peer in peers)
        yield Turn(mode, RUST, PHASES, LITTLE)


def cases() -> Iterator[Case]:
    """Cases of all rows."""
    yield from (turn.case for turn in turns())
    yield Turn(MAPPED, RUST, PARKED, 0).case


def measure(
    plan: Plan,
    hosts: Sequence[Host],
    folder: Path,
    say: Progress,
    failures: dict[str, list[str]],
    absent: Collection[str],
) -> list[Row]:
    """Measures all turns. A peer that fails is left out.

    Raises:
        PeerError: A node or a worker of Plasmon failed.
    """
    samples = Samples()
    peers = [peer for peer in OTHERS if peer not in absent]
    with contextlib.closing(Callers(hosts, folder, failures, peers)) as callers:
        for number in range(plan.rounds + 1):
            for turn in turns():
                worker = callers.worker(turn.mode, turn.peer)
                if worker is None:
                    continue
                say(f"calls: {turn.mode} {turn.operation} of {turn.peer}")
                answer = worker.ask(
                    "measure",
                    operation=turn.operation,
                    size=turn.size,
                    batch=turn.batch,
                    owner=0,
                    numbers=(0, 1),
                    calls=20_000,
                    seconds=plan.turn,
                )
                # The first round is not counted.
                if number > 0:
                    samples.add(turn.case, answer["ns"], moves=False)
        say("nodes that nobody calls")
        return [*samples.rows(), _parked(plan, callers.nodes)]


def _parked(plan: Plan, nodes: Nodes) -> Row:
    """Processor time of the nodes while servers wait."""
    daemons = [pid for node in nodes.nodes for pid in cpu.family(int(node.status()["pid"]))]
    before = cpu.seconds(daemons)
    time.sleep(plan.idle)
    us = (cpu.seconds(daemons) - before) * 1e6
    case = Turn(MAPPED, RUST, PARKED, 0).case
    return Row(**asdict(case), samples=1, median_us=us, p99_us=us, ops_per_s=0.0, gb_per_s=None)
