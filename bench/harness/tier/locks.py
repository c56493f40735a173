"""Locks and barriers, on one host and between two, beside those of etcd and Redis.

Four nodes of their own, two on each host. The home of a lock is the first node, that of the coordinator: so
*mapped* is a client of the lock's home, and *remote* one of the other host. Adds to a word of the home take
turns with them. etcd has one server, and its own service for locks; a lock of Redis is a key that is set if
it is not there. Both run on the host of the home.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import paths
from harness.figures import Case, Row, Samples
from harness.network import Host
from harness.processes import PeerError, Worker, shown, spawn, stop
from harness.progress import Progress
from harness.tier.workers import HOME, MAPPED, OTHER, REDIS_RUST, REMOTE, RUST, Nodes, RedisTcp

LOCK, HAND_OVER, MEET, ADD = "lock", "hand_over", "meet", "lock_add"
CONTENDED, LONGEST = "lock_contended", "lock_longest"
"""A lock for which many wait: the mean wait of a round, and the longest."""
ETCD = "etcd"
PARTIES = 4
"""Number of parties of a barrier, half of them on each host."""
NODES = 4
ALL_PARTIES = 4 * NODES
"""Number of parties of a barrier that has four at each of four nodes."""
WAITING = 16
_MEMORY = 256 << 20
_LITTLE = 64 << 20
_PATIENCE = 120.0
_START = 30.0
_PORTS = (47111, 47112)
"""Ports of etcd: for clients, and for other servers, of which there are none."""
_LOCKS, _WIDE, _REGIONS = "locks", "locks of all nodes", "regions"


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    rounds: int
    turn: float
    """Approximate time in seconds of a turn."""


FULL = Plan(10, 0.2)
QUICK = Plan(2, 0.02)


@dataclass(frozen=True)
class Turn:
    """Turn of a worker in a round."""

    case: Case
    worker: str
    asked: str
    """Operation of the worker."""
    batch: int = 1


def turns() -> Iterator[Turn]:
    """All turns of a round."""
    for mode in (MAPPED, REMOTE):
        yield Turn(_case(mode, RUST, ADD), _REGIONS, "fetch_add")
        yield from (Turn(_case(mode, peer, LOCK), peer, LOCK) for peer in (RUST, ETCD, REDIS_RUST))
    yield Turn(_case(REMOTE, RUST, HAND_OVER), RUST, HAND_OVER)
    yield Turn(_case(REMOTE, RUST, CONTENDED, WAITING), RUST, "contended", WAITING)
    yield Turn(_case(REMOTE, RUST, MEET, PARTIES), RUST, MEET, PARTIES)
    yield Turn(_case(REMOTE, RUST, MEET, ALL_PARTIES), _WIDE, MEET, ALL_PARTIES)


def cases() -> Iterator[Case]:
    """Cases of all rows."""
    for turn in turns():
        yield turn.case
        if turn.case.operation == CONTENDED:
            yield _longest(turn.case)


def missing() -> dict[str, str]:
    """Peers that are not installed, with what to do about it."""
    lacks = {ETCD: None if shutil.which("etcd") else "apt install etcd-server", "redis": RedisTcp().missing()}
    return {name: reason for name, reason in lacks.items() if reason}


def measure(
    plan: Plan, hosts: Sequence[Host], folder: Path, say: Progress, failures: dict[str, list[str]]
) -> list[Row]:
    """Measures all turns. A peer that does not start is left out.

    Raises:
        PeerError: A node or a worker failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    nodes, samples = Nodes(), Samples()
    with contextlib.ExitStack() as ends:
        ends.callback(nodes.close)
        nodes.start(hosts, folder / "plasmon", _MEMORY)
        for number in range(NODES - len(hosts)):
            nodes.add(hosts[number % len(hosts)], _LITTLE)
        workers = dict(_workers(nodes, hosts, folder, ends))
        workers |= dict(_others(hosts, folder, ends, failures))
        for number in range(plan.rounds + 1):
            for turn in turns():
                if (worker := workers.get((turn.case.mode, turn.worker))) is None:
                    continue
                say(f"locks: {turn.case.mode} {turn.case.operation} of {turn.worker}")
                answer = worker.ask(
                    "measure",
                    operation=turn.asked,
                    size=turn.case.size,
                    batch=turn.batch,
                    owner=0,
                    numbers=(0, 1),
                    calls=20_000,
                    seconds=plan.turn,
                )
                # The first round is not counted.
                if number > 0:
                    _add(samples, turn.case, answer["ns"])
        return samples.rows()


def _add(samples: Samples, case: Case, ns: list[int]) -> None:
    if case.operation != CONTENDED:
        samples.add(case, ns, moves=False)
        return
    # The first of all who wait do not wait for all others yet.
    waits = ns[WAITING:] or ns
    samples.add(case, [round(statistics.mean(waits))], moves=False)
    samples.add(_longest(case), [max(waits)], moves=False)


def _case(mode: str, peer: str, operation: str, clients: int = 1) -> Case:
    return Case(mode, peer, operation, "", 8, 1, clients)


def _longest(case: Case) -> Case:
    return _case(case.mode, case.peer, LONGEST, case.clients)


def _workers(
    nodes: Nodes, hosts: Sequence[Host], folder: Path, ends: contextlib.ExitStack
) -> Iterator[tuple[tuple[str, str], Worker]]:
    """Processes that use Plasmon, by mode and what they use."""
    sockets = [node.socket for node in nodes.nodes]
    home, other = sockets[HOME], sockets[OTHER]
    for mode, at, socket, rivals in (
        (MAPPED, HOME, home, [home]),
        (REMOTE, OTHER, other, [home]),
        (REMOTE, OTHER, other, [one for one in sockets if one != other]),
    ):
        joined = ",".join(map(str, rivals))
        programs = {
            RUST if len(rivals) == 1 else _WIDE: [paths.rust_worker(), "locks", socket, joined],
            _REGIONS: [paths.rust_worker(), "regions", socket, home, "called"],
        }
        for kind, program in programs.items():
            if kind != _REGIONS or len(rivals) == 1:
                yield (mode, kind), _start(hosts[at], program, folder / f"{mode}-{kind}.log", ends)


def _others(
    hosts: Sequence[Host], folder: Path, ends: contextlib.ExitStack, failures: dict[str, list[str]]
) -> Iterator[tuple[tuple[str, str], Worker]]:
    """Clients of etcd and of Redis, by mode and peer."""
    lacks = missing()
    servers: dict[str, Callable[[], str]]
    servers = {ETCD: lambda: _etcd(hosts[HOME], folder, ends), "redis": lambda: _redis(hosts, folder, ends)}
    for name, serve in servers.items():
        if name in lacks:
            continue
        try:
            address = serve()
            for mode, at in ((MAPPED, HOME), (REMOTE, OTHER)):
                program = [paths.rust_worker(), name, address]
                peer = ETCD if name == ETCD else REDIS_RUST
                yield (mode, peer), _start(hosts[at], program, folder / f"{mode}-{name}.log", ends)
        except (PeerError, OSError) as failure:
            failures.setdefault(name, []).append(str(failure))


def _start(host: Host, program: Sequence[object], log: Path, ends: contextlib.ExitStack) -> Worker:
    worker = Worker(host.command(program), log, {}, _PATIENCE)
    ends.callback(worker.close)
    return worker


def _redis(hosts: Sequence[Host], folder: Path, ends: contextlib.ExitStack) -> str:
    redis = RedisTcp()
    ends.callback(redis.close)
    redis.start(hosts, folder / "redis", _LITTLE)
    return redis.address


def _etcd(host: Host, folder: Path, ends: contextlib.ExitStack) -> str:
    """Starts a server of etcd, and waits until it serves. Returns its host and port."""
    own, others = (f"http://{host.address}:{port}" for port in _PORTS)
    log = folder / "etcd.log"
    command = ["etcd", "--name", "one", "--data-dir", folder / "etcd", "--initial-cluster", f"one={others}"]
    command += ["--listen-client-urls", own, "--advertise-client-urls", own]
    command += ["--listen-peer-urls", others, "--initial-advertise-peer-urls", others]
    server = spawn(host.command(command), log)
    ends.callback(stop, server)
    deadline = time.monotonic() + _START
    while "ready to serve client requests" not in log.read_text(errors="replace"):
        if server.poll() is not None or time.monotonic() > deadline:
            raise PeerError(f"etcd did not start. {shown(log)}")
        time.sleep(0.01)
    return f"{host.address}:{_PORTS[0]}"
