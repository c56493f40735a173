"""Servers of a run, and the processes whose calls are timed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import paths, peers
from harness.network import Host
from harness.processes import PeerError, Worker, spawn, stop
from harness.remote import others
from harness.remote.contenders import GETTER, HOLDER, PATIENCE, Plasmon, Way

MAPPED, SLOT, REMOTE = "mapped", "slot", "remote"
"""Ways to a region: in the process's memory, by a slot of its node, and by its node from another host."""
RUST, PYTHON = "rust", "python"
"""Languages of Plasmon's clients, which are their names in rows."""
REDIS_RUST, REDIS_PYTHON = "redis-rust", "redis-python"
FABRIC, TCP, MACHINE = "fabric", "tcp", "machine"
HOME, OTHER = HOLDER, GETTER
"""The host on which regions live, and the other one."""
_WORKER = paths.ROOT / "bench" / "workers" / "regions.py"
_ANY = Way("")
_MOST_REGIONS = 2_000_000
"""More regions than any measurement makes."""


class RedisTcp(others.Redis):
    """Redis over TCP, for the clients of this benchmark."""

    @property
    def address(self) -> str:
        """Host and port of the server."""
        return self._address


class Nodes(Plasmon):
    """Two nodes. Regions live on the first."""

    def __init__(self, flags: Sequence[str] = ()) -> None:
        super().__init__("auto", ["--user-regions", str(_MOST_REGIONS), *flags])

    def regions(self, language: str, at: int, kind: str, name: str) -> Worker:
        """Client of the node on a host. Its regions are "mapped" at their home, or "called"."""
        peer, home = self.nodes[at], self.nodes[HOME]
        program = [paths.rust_worker(), "regions"]
        if language == PYTHON:
            program = [paths.plasmon_python(), _WORKER, "plasmon"]
        command = peer.host.command([*program, peer.socket, home.socket, kind])
        log = self._folder / f"{name}.log"
        return self._worker(name, 0, lambda: Worker(command, log, {}, PATIENCE))


class Workers:
    """Servers on both hosts, and their clients by mode and name in rows. Clients start when they are needed.

    Whoever cannot be started is left out: `failures` has the reasons.
    """

    def __init__(self, hosts: Sequence[Host], folder: Path, memory: int) -> None:
        self.failures: dict[str, list[str]] = {}
        self.missing: dict[str, str] = {}
        self.nodes = Nodes()
        self.facts: dict[str, Any] = {}
        self.versions: dict[str, str] = {}
        self._hosts, self._folder = hosts, folder
        self._here = peers.Redis(hosts[HOME])
        self._redis, self._tcp, self._fabric = RedisTcp(), others.Tcp(), others.Fabric()
        self._raw: Worker | None = None
        self._clients: dict[tuple[str, str], Worker] = {}
        self.nodes.start(hosts, folder / "plasmon", memory)
        self.facts = self.nodes.facts
        self._fabric.provider = self.facts["provider"]
        little = 512 << 20
        starts: dict[str, tuple[Callable[[], str | None], Callable[[], None]]] = {
            FABRIC: (
                self._fabric.missing,
                lambda: self._fabric.start(hosts, folder / "fabric", little),
            ),
            TCP: (self._tcp.missing, lambda: self._tcp.start(hosts, folder / "tcp", little)),
            "redis": (self._here.missing, self._start_redis),
        }
        for name, (missing, start) in starts.items():
            if reason := missing():
                self.missing[name] = reason
                continue
            try:
                start()
            except (PeerError, OSError) as failure:
                self.failures.setdefault(name, []).append(str(failure))

    def client(self, mode: str, peer: str) -> Worker | None:
        """Client of a peer in a mode. `None` if the peer is left out.

        Raises:
            PeerError: The client did not start.
        """
        server = peer.partition("-")[0]
        if server in self.missing or server in self.failures:
            return None
        if (mode, peer) not in self._clients:
            worker = self._start(mode, peer)
            self._clients[mode, peer] = worker
            if worker.version:
                self.versions["Redis" if server == "redis" else "Plasmon"] = worker.version
        return self._clients[mode, peer]

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Has a program on the host of the regions compute all the time."""
        command = self._hosts[HOME].command([sys.executable, "-c", "while True: pass"])
        program = spawn(command, self._folder / "computing.log")
        try:
            yield
        finally:
            stop(program)

    def close(self) -> None:
        """Ends all clients and servers."""
        for (_, peer), worker in self._clients.items():
            if peer.startswith(("redis", MACHINE)):
                worker.close()
        for contender in (self.nodes, self._redis, self._tcp, self._fabric):
            contender.close()
        self._here.stop()

    def _start_redis(self) -> None:
        self._here.start(self._folder / "redis-here", 512 << 20)
        self._redis.start(self._hosts, self._folder / "redis", 512 << 20)

    def _start(self, mode: str, peer: str) -> Worker:
        if peer == FABRIC:
            return self._fabric.getter(_ANY, 0)
        if peer == TCP:
            return self._tcp.getter(_ANY, 0)
        if peer in (RUST, PYTHON):
            at = OTHER if mode == REMOTE else HOME
            kind = "called" if mode == SLOT else "mapped"
            return self.nodes.regions(peer, at, kind, f"{mode}-{peer}")
        host, log = self._hosts[OTHER if mode == REMOTE else HOME], self._folder / f"{mode}-{peer}.log"
        command: list[object] = [paths.rust_worker(), "raw", "-"]
        if peer != MACHINE:
            address = self._redis.address if mode == REMOTE else self._here.socket
            python = paths.CACHE / "harness" / "bin" / "python"
            program = [paths.rust_worker()] if peer == REDIS_RUST else [python, _WORKER]
            command = [*program, "redis", address]
        return Worker(host.command(command), log, {}, PATIENCE)
