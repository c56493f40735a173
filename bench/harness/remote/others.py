"""Contenders other than Plasmon: the network without a store, and other stores."""

from __future__ import annotations

import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from harness import cpu, paths, peers
from harness.network import Host
from harness.processes import PeerError, Worker, shown, spawn, stop
from harness.remote.contenders import (
    GETTER,
    HOLDER,
    IN_BATCHES,
    ONE_PLACE,
    PATIENCE,
    PLACES,
    Contender,
    Way,
)

_START = 60.0
"""Longest time in seconds until a server serves."""
_POLL = 0.02


class _Served(Contender):
    """Contender whose servers are processes of the harness."""

    tells_hosts_by_address = False
    """Whether it takes two hosts of one address for the same host, and would not use the network then."""

    def __init__(self) -> None:
        super().__init__()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._hosts: Sequence[Host] = []
        self._folder = Path()

    def start(self, hosts: Sequence[Host], folder: Path, memory: int) -> None:
        if self.tells_hosts_by_address and len({host.address for host in hosts}) < len(hosts):
            raise PeerError(f"{self.label} would take all hosts for one: they have the same address")
        folder.mkdir(parents=True)
        self._hosts, self._folder = hosts, folder
        self._serve(memory)

    @abstractmethod
    def _serve(self, memory: int) -> None:
        """Starts the servers."""

    def stop(self) -> None:
        for process in reversed(self._processes):
            stop(process)
        self._processes = []

    def servers(self) -> tuple[list[int], list[int]]:
        return [process.pid for process in self._processes], []

    def _spawn(self, host: Host, command: Sequence[object], name: str, **environment: str) -> Path:
        """Starts a server, and returns its log."""
        log = self._folder / f"{name}.log"
        self._processes.append(spawn(host.command(command), log, environment))
        return log

    def _said(self, log: Path, what: str) -> str:
        """Waits until the log of the last server has these words. Returns the log."""
        deadline = time.monotonic() + _START
        while what not in (text := log.read_text(errors="replace")):
            if self._processes[-1].poll() is not None:
                raise PeerError(f"the server of {self.label} did not start. {shown(log)}")
            if time.monotonic() > deadline:
                raise PeerError(
                    f"the server of {self.label} does not serve after {_START:.0f} s. {shown(log)}"
                )
            time.sleep(_POLL)
        return text

    def _client(self, host: int, number: int, command: Sequence[object], **environment: str) -> Worker:
        log = self._folder / f"client-{host}-{number}.log"
        command = self._hosts[host].command(command)
        return self._worker(str(host), number, lambda: Worker(command, log, environment, PATIENCE))


class Tcp(_Served):
    """Connection with a loop at each of its ends."""

    name, label = "tcp", "TCP, no store"
    ways: Sequence[Way] = (Way("tcp", memory=ONE_PLACE), Way("tcp", "fetch_places", memory=PLACES))

    def missing(self) -> str | None:
        return peers.Raw().missing()

    def _serve(self, memory: int) -> None:
        host = self._hosts[HOLDER]
        log = self._spawn(host, [paths.rust_worker(), "tcp-serve", f"{host.address}:0"], "server")
        self._address = self._said(log, "\n").split()[0]

    def getter(self, way: Way, number: int) -> Worker:
        return self._client(GETTER, number, [paths.rust_worker(), "tcp", self._address])


class Hop(_Served):
    """Round trip between two sleeping processes of one host: the least cost of a client and its node."""

    name, label = "hop", "a round trip on one host"
    ways = (Way("hop", "socket_round_trip", most=1 << 10, together=False),)

    def missing(self) -> str | None:
        return peers.Raw().missing()

    def _serve(self, memory: int) -> None:
        """Does nothing: the worker starts the other process itself."""

    def getter(self, way: Way, number: int) -> Worker:
        return self._client(GETTER, number, [paths.rust_worker(), "raw", "-"])


class Fabric(_Served):
    """Reads of registered memory by libfabric, through the provider that Plasmon has chosen."""

    name, label = "fabric", "libfabric, no store"
    ways = tuple(
        Way("fabric", f"{operation}{suffix}", memory, least, together=operation.endswith("asleep"))
        for suffix, memory in (("", ONE_PLACE), ("_places", PLACES))
        for operation, least in (
            ("read", 0),
            ("read_chunks", 1 << 20),
            ("read_asleep", 0),
            ("read_chunks_asleep", 1 << 20),
        )
    )
    provider = "tcp;ofi_rxm"
    """Name of the provider, set to Plasmon's before the start."""

    def missing(self) -> str | None:
        return peers.absent(paths.fabric_worker(), "cargo build --release -p plasmon-bench")

    def _serve(self, memory: int) -> None:
        host = self._hosts[HOLDER]
        command = [paths.fabric_worker(), "serve", self.provider, host.address]
        self._greeting = self._said(self._spawn(host, command, "server"), "\n").split()[-1]
        self.facts = {"provider": self.provider}

    def getter(self, way: Way, number: int) -> Worker:
        address = self._hosts[GETTER].address
        command = [paths.fabric_worker(), "read", self.provider, address, self._greeting]
        return self._client(GETTER, number, command)


class Redis(_Served):
    """Redis over TCP, with redis-py and its parser in C."""

    name, label = "redis", "Redis (hiredis)"
    ways = (Way("redis"), Way("redis", **IN_BATCHES))

    def missing(self) -> str | None:
        return peers.Redis().missing()

    def _serve(self, memory: int) -> None:
        host = self._hosts[HOLDER]
        port = _free_port(host)
        nothing_on_disk = ["--save", "", "--appendonly", "no", "--dir", self._folder]
        open_to_hosts = ["--bind", host.address, "--port", str(port), "--protected-mode", "no"]
        limits = ["--maxmemory", str(memory), "--maxmemory-policy", "noeviction"]
        program = paths.CACHE / "bin" / "redis-server"
        log = self._spawn(host, [program, *open_to_hosts, *limits, *nothing_on_disk], "server")
        self._said(log, "Ready to accept connections")
        self._address = f"{host.address}:{port}"

    def holder(self, way: Way, number: int) -> Worker | None:
        return self._python(HOLDER, 0)

    def getter(self, way: Way, number: int) -> Worker:
        return self._python(GETTER, number)

    def _python(self, host: int, number: int) -> Worker:
        python = paths.CACHE / "harness" / "bin" / "python"
        return self._client(host, number, [python, paths.WORKER, "redis", self._address])


class Mooncake(_Served):
    """Mooncake's store over TCP: a master, a holder that lends its memory, getters that do not."""

    name, label = "mooncake", "Mooncake"
    ways = (Way("mooncake"),)
    tells_hosts_by_address = True
    _memory = 0

    def missing(self) -> str | None:
        return paths.not_installed(self.name) or peers.absent(self._program("mooncake_master"), _SETUP)

    def _serve(self, memory: int) -> None:
        host = self._hosts[HOLDER]
        port, metrics = _free_port(host), _free_port(host)
        here = ["--rpc_address", host.address, "--rpc_port", str(port), "--metrics_port", str(metrics)]
        log = self._spawn(host, [self._program("mooncake_master"), *here], "master")
        self._address, self._memory = f"{host.address}:{port}", memory
        while not _accepts(host, port):
            if self._processes[-1].poll() is not None:
                raise PeerError(f"Mooncake's master did not start. {shown(log)}")
            time.sleep(_POLL)

    def servers(self) -> tuple[list[int], list[int]]:
        holder = self._workers.get((str(HOLDER), 0))
        return [*super().servers()[0], *([holder.pid] if holder else [])], []

    def holder(self, way: Way, number: int) -> Worker | None:
        return self._python(HOLDER, 0, self._memory)

    def getter(self, way: Way, number: int) -> Worker:
        return self._python(GETTER, number, 0)

    def _python(self, host: int, number: int, segment: int) -> Worker:
        address = f"{self._address},{self._hosts[host].address},{segment}"
        command = [self._program("python"), paths.WORKER, "mooncake", address]
        return self._client(host, number, command, MC_LOG_LEVEL="ERROR")

    def _program(self, name: str) -> Path:
        return paths.CACHE / "mooncake" / "bin" / name


class Ray(_Served):
    """Ray with a node on either host: an actor on the first puts, drivers on the second get."""

    name, label = "ray", "Ray"
    ways = (Way("ray"),)
    tells_hosts_by_address = True
    restless = True
    _QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}  # noqa: RUF012

    def missing(self) -> str | None:
        return peers.Ray().missing()

    def _serve(self, memory: int) -> None:
        first, second = self._hosts[HOLDER], self._hosts[GETTER]
        port = _free_port(first)
        self._address = f"{first.address}:{port}"
        size = [f"--object-store-memory={memory}", "--num-cpus=2", "--block"]
        head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={self._folder}/ray"]
        for host, role in (
            (first, [*head, '--resources={"holder": 1}']),
            (second, [f"--address={self._address}"]),
        ):
            command = [self._program("ray"), "start", *role, f"--node-ip-address={host.address}", *size]
            log = self._spawn(host, command, f"ray-{len(self._processes)}", **self._QUIET)
            self._said(log, "Ray runtime started")

    def servers(self) -> tuple[list[int], list[int]]:
        holder, getter = (cpu.family(process.pid) for process in self._processes)
        return holder, getter

    def holder(self, way: Way, number: int) -> Worker | None:
        return self.getter(way, number)

    def getter(self, way: Way, number: int) -> Worker:
        address = f"{self._address},{self._hosts[GETTER].address}"
        command = [self._program("python"), paths.WORKER, "ray-pair", address]
        return self._client(GETTER, number, command, **self._QUIET)

    def _program(self, name: str) -> Path:
        return paths.CACHE / "ray" / "bin" / name


_SETUP = "scripts/bench-setup.sh"
ALL: list[type[_Served]] = [Tcp, Hop, Fabric, Redis, Mooncake, Ray]


def _free_port(host: Host) -> int:
    """Free port for a server that cannot choose and announce one itself."""
    return int(
        _python(host, f"s = socket.create_server(({host.address!r}, 0)); print(s.getsockname()[1])").stdout
    )


def _accepts(host: Host, port: int) -> bool:
    """Whether a server on a host accepts connections from there."""
    return _python(host, f"socket.create_connection(({host.address!r}, {port}), 1)").returncode == 0


def _python(host: Host, what: str) -> subprocess.CompletedProcess[str]:
    command = host.command([sys.executable, "-c", f"import socket; {what}"])
    return subprocess.run(command, capture_output=True, text=True, timeout=_START)
