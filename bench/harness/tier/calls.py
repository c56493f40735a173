"""Calls of functions, beside ZeroMQ and gRPC, on one host and between two.

Two nodes of their own, and a server of each of the others on the first host. Single calls are measured in
turns. Then come many calls under way, the processor time of calls at a pace, and that of nodes whose servers
wait for calls.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import cpu, paths
from harness.figures import Case, Row, Samples
from harness.network import Host
from harness.processes import PeerError, Worker, shown, spawn, stop
from harness.progress import Progress
from harness.tier.run import IN_FLIGHT, KIB, LITTLE
from harness.tier.workers import HOME, MAPPED, OTHER, PYTHON, REMOTE, RUST, Nodes

CALL, CALL_REPLY, CALL_BEGUN, PHASES = "call", "call_reply", "call_begun", "call_phases"
PACED, PARKED = "calls_cpu", "parked_cpu"
"""Rows of processor time: of so many calls at a pace, and of nodes that nobody calls. They are in seconds x
10^6, as times are in microseconds."""
ZMQ, GRPC = "zmq", "grpc"
REPLY = 4 * KIB
"""Size in bytes of the longer reply."""
_MEMORY = 256 << 20
_PATIENCE = 300.0
_PORTS = {ZMQ: 47101, GRPC: 47102}
_WORKER = paths.ROOT / "bench" / "workers" / "calls.py"


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    rounds: int
    turn: float
    """Approximate time in seconds of a turn."""
    paced: int
    """Number of calls at a pace of 1,000 in a second."""
    idle: float
    """Time in seconds in which nobody calls."""


FULL = Plan(10, 0.2, 100_000, 10.0)
QUICK = Plan(2, 0.02, 200, 0.5)


@dataclass(frozen=True)
class Turn:
    """What is measured of one peer."""

    mode: str
    peer: str
    operation: str
    size: int
    batch: int = 1

    @property
    def case(self) -> Case:
        """Case of its row."""
        return Case(self.mode, self.peer, self.operation, "", self.size, self.batch, 1)


def turns() -> Iterator[Turn]:
    """All turns of a round."""
    for mode in (MAPPED, REMOTE):
        for operation, size in ((CALL, LITTLE), (CALL_REPLY, REPLY)):
            yield from (Turn(mode, peer, operation, size) for peer in (RUST, PYTHON, ZMQ, GRPC))
        yield from (Turn(mode, peer, CALL_BEGUN, LITTLE, IN_FLIGHT) for peer in (RUST, PYTHON, ZMQ, GRPC))
        yield Turn(mode, RUST, PHASES, LITTLE)


def cases(plan: Plan) -> Iterator[Case]:
    """Cases of all rows."""
    yield from (turn.case for turn in turns())
    yield from (Turn(mode, RUST, PACED, LITTLE, plan.paced).case for mode in (MAPPED, REMOTE))
    yield Turn(MAPPED, RUST, PARKED, 0).case


def missing() -> dict[str, str]:
    """Peers that are not installed, with what to do about it."""
    python = paths.CACHE / "harness" / "bin" / "python"
    lacks = {
        peer: module
        for peer, module in ((ZMQ, "zmq"), (GRPC, "grpc"))
        if not python.exists()
        or subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode
    }
    return {peer: f"Python has no {module}: make bench-tier" for peer, module in lacks.items()}


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
    folder.mkdir(parents=True, exist_ok=True)
    nodes, samples = Nodes(), Samples()
    with contextlib.ExitStack() as ends:
        ends.callback(nodes.close)
        nodes.start(hosts, folder / "plasmon", _MEMORY)
        workers = dict(_workers(nodes, hosts, folder, ends, failures, absent))
        for number in range(plan.rounds + 1):
            for turn in turns():
                worker = workers.get((turn.mode, turn.peer))
                if worker is None:
                    continue
                say(f"calls: {turn.mode} {turn.operation} of {turn.peer}")
                answer = _ask(worker, turn, plan.turn)
                # The first round is not counted.
                if number > 0:
                    samples.add(turn.case, answer["ns"], moves=False)
        say("calls at a pace, and nodes that nobody calls")
        return [*samples.rows(), *_processor(plan, nodes, workers)]


def _ask(worker: Worker, turn: Turn, seconds: float, calls: int = 20_000) -> dict[str, list[int]]:
    return worker.ask(
        "measure",
        operation=turn.operation,
        size=turn.size,
        batch=turn.batch,
        owner=0,
        numbers=(0, 1),
        calls=calls,
        seconds=seconds,
    )


def _processor(plan: Plan, nodes: Nodes, workers: dict[tuple[str, str], Worker]) -> Iterator[Row]:
    """Processor time of calls at a pace, and of the nodes while servers wait.

    That of calls is of both nodes, and of the process that calls and serves.
    """
    daemons = [pid for node in nodes.nodes for pid in cpu.family(int(node.status()["pid"]))]
    for mode in (MAPPED, REMOTE):
        worker = workers[mode, RUST]
        all_of_them = [*daemons, *cpu.family(worker.pid)]
        before = cpu.seconds(all_of_them)
        _ask(worker, Turn(mode, RUST, "paced", LITTLE, plan.paced), 1e-3, calls=1)
        yield _row(Case(mode, RUST, PACED, "", LITTLE, plan.paced, 1), cpu.seconds(all_of_them) - before)
    before = cpu.seconds(daemons)
    time.sleep(plan.idle)
    yield _row(Case(MAPPED, RUST, PARKED, "", 0, 1, 1), cpu.seconds(daemons) - before)


def _row(case: Case, seconds: float) -> Row:
    us = seconds * 1e6
    return Row(**asdict(case), samples=1, median_us=us, p99_us=us, ops_per_s=0.0, gb_per_s=None)


def _workers(
    nodes: Nodes,
    hosts: Sequence[Host],
    folder: Path,
    ends: contextlib.ExitStack,
    failures: dict[str, list[str]],
    absent: Collection[str],
) -> Iterator[tuple[tuple[str, str], Worker]]:
    """Processes whose calls are timed, by mode and peer."""

    def start(host: Host, program: Sequence[object], name: str) -> Worker:
        worker = Worker(host.command(program), folder / f"{name}.log", {}, _PATIENCE)
        ends.callback(worker.close)
        return worker

    home = nodes.nodes[HOME].socket
    for mode, at in ((MAPPED, HOME), (REMOTE, OTHER)):
        socket = nodes.nodes[at].socket
        rust = [paths.rust_worker(), "calls", socket, home]
        python = [paths.plasmon_python(), _WORKER, "plasmon", socket, home]
        yield (mode, RUST), start(hosts[at], rust, f"{mode}-rust")
        yield (mode, PYTHON), start(hosts[at], python, f"{mode}-python")
    harness = paths.CACHE / "harness" / "bin" / "python"
    for peer in (ZMQ, GRPC):
        if peer in absent:
            continue
        address = f"{hosts[HOME].address}:{_PORTS[peer]}"
        try:
            _serve(hosts[HOME], [harness, _WORKER, f"{peer}-serve", address], folder / f"{peer}.log", ends)
            for mode, at in ((MAPPED, HOME), (REMOTE, OTHER)):
                worker = start(hosts[at], [harness, _WORKER, peer, address], f"{mode}-{peer}")
                yield (mode, peer), worker
        except (PeerError, OSError) as failure:
            failures.setdefault(peer, []).append(str(failure))


def _serve(host: Host, command: Sequence[object], log: Path, ends: contextlib.ExitStack) -> None:
    """Starts a server, and waits until it says that it serves."""
    server = spawn(host.command(command), log)
    ends.callback(stop, server)
    deadline = time.monotonic() + 30
    while "ready" not in log.read_text(errors="replace"):
        if server.poll() is not None or time.monotonic() > deadline:
            raise PeerError(f"a server did not start. {shown(log)}")
        time.sleep(0.01)
