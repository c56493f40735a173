"""Two nodes, the processes that call functions there, and those of other libraries beside them.

A process of Plasmon calls functions that it serves itself at the first node. ZeroMQ and gRPC from Python,
gRPC from Rust (tonic) and lists of Redis have a server on the first host, and a client on each.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from harness import paths
from harness.network import Host
from harness.processes import PeerError, Worker, shown, spawn, stop
from harness.tier.workers import HOME, MAPPED, OTHER, PYTHON, REMOTE, RUST, Nodes, RedisTcp

ZMQ, GRPC, TONIC, QUEUE = "zmq", "grpc", "tonic", "redis-queue"
_MEMORY = 256 << 20
_LITTLE = 64 << 20
_PATIENCE = 300.0
_PORTS = {ZMQ: 47101, GRPC: 47102, TONIC: 47103, QUEUE: 0}
_WORKER = paths.ROOT / "bench" / "workers" / "calls.py"


def _python() -> Path:
    return paths.CACHE / "harness" / "bin" / "python"


def missing() -> dict[str, str]:
    """Peers that are not installed, with what to do about it."""
    lacks = {
        peer: f"Python has no {module}: make bench-tier"
        for peer, module in ((ZMQ, "zmq"), (GRPC, "grpc"))
        if not _python().exists()
        or subprocess.run([_python(), "-c", f"import {module}"], capture_output=True, check=False).returncode
    }
    if not paths.tonic_worker().exists():
        lacks[TONIC] = paths.not_installed(TONIC) or "make bench-tier"
    if reason := RedisTcp().missing():
        lacks[QUEUE] = reason
    return lacks


class Callers:
    """Nodes and processes, until they are closed. A peer that does not start is left out.

    Raises:
        PeerError: A node or a worker of Plasmon failed.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        folder: Path,
        failures: dict[str, list[str]],
        peers: Collection[str],
        flags: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.nodes = Nodes(flags)
        self.servers: dict[str, int] = {}
        """Process ids of the servers of others."""
        self._hosts, self._folder = hosts, folder
        self._ends = contextlib.ExitStack()
        try:
            self._ends.callback(self.nodes.close)
            self.nodes.start(hosts, folder / "plasmon", _MEMORY)
            self._workers = dict(self._own())
            for peer in peers:
                try:
                    self._workers |= dict(self._other(peer))
                except (PeerError, OSError) as failure:
                    failures.setdefault(peer, []).append(str(failure))
        except BaseException:
            self.close()
            raise

    def worker(self, mode: str, peer: str) -> Worker | None:
        """Process whose calls are timed. `None` if the peer is left out."""
        return self._workers.get((mode, peer))

    def close(self) -> None:
        """Ends all processes and nodes."""
        self._ends.close()

    def _start(self, host: Host, program: Sequence[object], name: str) -> Worker:
        worker = Worker(host.command(program), self._folder / f"{name}.log", {}, _PATIENCE)
        self._ends.callback(worker.close)
        return worker

    def _own(self) -> Iterator[tuple[tuple[str, str], Worker]]:
        home = self.nodes.nodes[HOME].socket
        for mode, at in ((MAPPED, HOME), (REMOTE, OTHER)):
            socket, host = self.nodes.nodes[at].socket, self._hosts[at]
            rust = [paths.rust_worker(), "calls", socket, home]
            python = [paths.plasmon_python(), _WORKER, "plasmon", socket, home]
            yield (mode, RUST), self._start(host, rust, f"{mode}-rust")
            yield (mode, PYTHON), self._start(host, python, f"{mode}-python")

    def _other(self, peer: str) -> Iterator[tuple[tuple[str, str], Worker]]:
        address = f"{self._hosts[HOME].address}:{_PORTS[peer]}"
        if peer == QUEUE:
            redis = RedisTcp()
            self._ends.callback(redis.close)
            redis.start(self._hosts, self._folder / "redis", _LITTLE)
            address = redis.address
        programs: dict[str, tuple[list[object], list[object]]] = {
            TONIC: ([paths.tonic_worker(), "serve"], [paths.tonic_worker(), "call"]),
            QUEUE: ([paths.rust_worker(), "queue-serve"], [paths.rust_worker(), "queue"]),
        }
        python = [_python(), _WORKER]
        server, client = programs.get(peer, ([*python, f"{peer}-serve"], [*python, peer]))
        self.servers[peer] = self._serve([*server, address], self._folder / f"{peer}.log")
        for mode, at in ((MAPPED, HOME), (REMOTE, OTHER)):
            yield (mode, peer), self._start(self._hosts[at], [*client, address], f"{mode}-{peer}")

    def _serve(self, command: Sequence[object], log: Path) -> int:
        """Starts a server, and waits until it says that it serves. Returns its process id."""
        server = spawn(self._hosts[HOME].command(command), log)
        self._ends.callback(stop, server)
        deadline = time.monotonic() + 30
        while "ready" not in log.read_text(errors="replace"):
            if server.poll() is not None or time.monotonic() > deadline:
                raise PeerError(f"a server did not start. {shown(log)}")
            time.sleep(0.01)
        return server.pid
