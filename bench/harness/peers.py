"""Peers of the comparison: how each peer's server and clients are started."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import paths
from harness.network import HERE, Host
from harness.processes import PeerError, Worker, shown, spawn, stop

_START = 60.0
"""Longest time in seconds until a server serves."""
_POLL = 0.01


class Peer(ABC):
    """Peer of the comparison. `start` starts its server, `client` connects a worker to it."""

    name: str
    """Name in the CSV."""
    label: str
    """Name for people."""
    color: str
    """Name in plots."""
    touched_as_needed: Sequence[str] = ()
    """Arguments that keep the server from touching memory before objects are in it."""
    restless = False
    """Whether the peer's idle processes use the CPU. Such a peer is measured after the others have ended."""

    def __init__(self, host: Host = HERE) -> None:
        self.host = host
        """Host of the peer's server and clients."""
        self.facts: dict[str, Any] = {}
        """Version and settings, for the description of the run."""
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def missing(self) -> str | None:
        """Reason why the peer cannot be measured here, or `None`."""

    def start(self, folder: Path, memory: int, arguments: Sequence[str] = ()) -> None:
        """Starts the peer's server in a folder, with `memory` bytes. Returns when the server serves."""
        self._folder = folder
        folder.mkdir(parents=True)
        command = self._command(memory)
        if command:
            command = self.host.command([*command, *arguments])
            self._process = spawn(command, self._log, self._environment())
            self._wait()

    def client(self, number: int) -> Worker:
        """Starts a process that is one client."""
        log = self._folder / f"client-{number}.log"
        return Worker(self.host.command(self._worker()), log, self._environment())

    def stop(self) -> None:
        """Ends the peer's server."""
        if self._process is not None:
            stop(self._process)
            self._process = None

    @property
    def pid(self) -> int:
        """Process id of the peer's server."""
        assert self._process is not None
        return self._process.pid

    @property
    def socket(self) -> Path:
        """Path of the unix socket of the peer's server, if there is one."""
        return self._folder / "socket"

    @property
    def _log(self) -> Path:
        return self._folder / "server.log"

    @abstractmethod
    def _command(self, memory: int) -> list[str]:
        """Command that starts the server. Empty if there is none."""

    @abstractmethod
    def _worker(self) -> list[str]:
        """Command that starts a client."""

    def _environment(self) -> dict[str, str]:
        return {}

    def _ready(self) -> bool:
        """Whether the server serves: by default, whether its socket accepts connections."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(os.fspath(self.socket)) == 0

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START
        while not self._ready():
            if self._process.poll() is not None:
                raise PeerError(f"the server of {self.label} did not start. {shown(self._log)}")
            if time.monotonic() > deadline:
                stop(self._process)
                raise PeerError(
                    f"the server of {self.label} does not serve after {_START:.0f} s. {shown(self._log)}"
                )
            time.sleep(_POLL)


class _PlasmonNode(Peer):
    """Server of both Plasmon peers. It serves at once, and later has pre-faulted its memory."""

    touched_as_needed = ("--no-prefault", "--no-huge-pages")

    def __init__(self, host: Host = HERE, build: paths.Build | None = None) -> None:
        super().__init__(host)
        self.build = build or paths.own()
        """Build that is measured."""
        self.name += self.build.mark
        self.label += self.build.mark

    def missing(self) -> str | None:
        return absent(self.build.plasmon, "make build")

    def status(self) -> dict[str, Any]:
        """Status as `plasmon status` prints it."""
        command = [str(self.build.plasmon), "status", "--socket", str(self.socket), "--json"]
        status: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        return status

    def start(self, folder: Path, memory: int, arguments: Sequence[str] = ()) -> None:
        """Waits until the node has pre-faulted its memory, if it does that."""
        super().start(folder, memory, arguments)
        begin = time.monotonic()
        while (report := self.status()["memory"])["prefaulted"] < report["capacity"]:
            if "--no-prefault" in arguments:
                break
            if time.monotonic() > begin + _START:
                raise PeerError(f"{self.label} has not touched its memory after {_START:.0f} s: {report}")
            time.sleep(_POLL)
        self.facts |= {
            "pages": report["pages"],
            "prefault_seconds": round(time.monotonic() - begin, 2),
        }

    def _command(self, memory: int) -> list[str]:
        # The secret is the same for all nodes of a run.
        secret = paths.CACHE / "secret"
        secret.parent.mkdir(parents=True, exist_ok=True)
        if not secret.exists():
            subprocess.run([str(self.build.plasmon), "secret", str(secret)], check=True)
        listen = ["--listen", f"{self.host.address}:0", "--secret-file", str(secret)]
        listen += ["--json", "--exit-with-parent"]
        return [
            str(self.build.plasmon),
            "serve",
            "--socket",
            str(self.socket),
            "--memory",
            str(memory),
            *listen,
        ]


class PlasmonPython(_PlasmonNode):
    """Plasmon from Python."""

    name = "plasmon-python"
    label = "Plasmon (Python)"
    color = "#0b6e4f"

    def missing(self) -> str | None:
        return super().missing() or absent(self.build.python, "make build")

    def _worker(self) -> list[str]:
        return python_client(self.socket, self.build)


class PlasmonRust(_PlasmonNode):
    """Plasmon from Rust."""

    name = "plasmon-rust"
    label = "Plasmon (Rust)"
    color = "#52b788"

    def missing(self) -> str | None:
        build = "cargo build --release -p plasmon-bench"
        return super().missing() or absent(self.build.rust_worker, build)

    def _worker(self) -> list[str]:
        return [str(self.build.rust_worker), "plasmon", str(self.socket)]


class _Optional(Peer):
    """Peer that `scripts/bench-setup.sh` installs if it can."""

    def missing(self) -> str | None:
        return paths.not_installed(self.name) or absent(self._needs(), "scripts/bench-setup.sh")

    @abstractmethod
    def _needs(self) -> Path:
        """Path that exists if the peer is installed."""


class Plasma(_Optional):
    """Store of PyArrow 11."""

    name = "plasma"
    label = "Plasma (PyArrow 11)"
    color = "#c1121f"

    def _needs(self) -> Path:
        return paths.CACHE / "plasma" / "bin" / "python"

    def _command(self, memory: int) -> list[str]:
        # The script in the wheel only looks for the program inside the package.
        (program,) = (paths.CACHE / "plasma" / "lib").glob(
            "python*/site-packages/pyarrow/plasma-store-server"
        )
        return [str(program), "-m", str(memory), "-s", str(self.socket)]

    def _worker(self) -> list[str]:
        return [str(self._needs()), str(paths.WORKER), "plasma", str(self.socket)]


class Redis(_Optional):
    """Redis in memory only, over its unix socket."""

    name = "redis"
    label = "Redis (hiredis)"
    color = "#f77f00"

    def _needs(self) -> Path:
        return paths.CACHE / "bin" / "redis-server"

    def _command(self, memory: int) -> list[str]:
        nothing_on_disk = ["--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        limit = ["--maxmemory", str(memory), "--maxmemory-policy", "noeviction"]
        return [
            str(self._needs()),
            "--port",
            "0",
            "--unixsocket",
            str(self.socket),
            *nothing_on_disk,
            *limit,
        ]

    def _worker(self) -> list[str]:
        python = paths.CACHE / "harness" / "bin" / "python"
        return [str(python), str(paths.WORKER), "redis", str(self.socket)]


class Ray(_Optional):
    """Ray's object store, with the rest of Ray around it."""

    name = "ray"
    label = "Ray"
    color = "#4361ee"
    restless = True

    def __init__(self, host: Host = HERE) -> None:
        super().__init__(host)
        self._port = 0

    def _needs(self) -> Path:
        return paths.CACHE / "ray" / "bin" / "ray"

    def _environment(self) -> dict[str, str]:
        return {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}

    def _command(self, memory: int) -> list[str]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        here = ["--node-ip-address=127.0.0.1", f"--port={self._port}", f"--temp-dir={self._folder}/ray"]
        size = [f"--object-store-memory={memory}", f"--num-cpus={os.cpu_count()}"]
        return [str(self._needs()), "start", "--head", "--block", "--include-dashboard=false", *here, *size]

    def _worker(self) -> list[str]:
        python = self._needs().with_name("python")
        return [str(python), str(paths.WORKER), "ray", f"127.0.0.1:{self._port}"]

    def _ready(self) -> bool:
        return "Ray runtime started" in self._log.read_text(errors="replace")

    def stop(self) -> None:
        """Ends Ray, and removes its files."""
        super().stop()
        shutil.rmtree(self._folder / "ray", ignore_errors=True)


class Raw(Peer):
    """Machine without a store."""

    name = "raw"
    label = "the machine"
    color = "#555555"

    def missing(self) -> str | None:
        return absent(paths.rust_worker(), "cargo build --release -p plasmon-bench")

    def _command(self, memory: int) -> list[str]:
        return []

    def _worker(self) -> list[str]:
        return [str(paths.rust_worker()), "raw", "-"]


ALL: list[type[Peer]] = [PlasmonPython, PlasmonRust, Plasma, Redis, Raw, Ray]


def python_client(socket: Path, build: paths.Build) -> list[str]:
    """Command of a Python client of a Plasmon node."""
    return [str(build.python), str(build.worker), "plasmon", str(socket)]


def absent(path: Path, remedy: str) -> str | None:
    """Advice for a program that is missing."""
    return None if os.access(path, os.X_OK) else f"there is no {path}: {remedy}"
