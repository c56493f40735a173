"""Contenders that fetch objects from another host: their interface, and Plasmon itself."""

from __future__ import annotations

import re
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import paths, peers
from harness.network import Host
from harness.processes import PeerError, Worker

HOLDER, GETTER = 0, 1
"""Names of the two hosts: objects are put on the first, and got on the second."""
PROTOCOLS = ("auto", "socket", "send", "read", "read-register")
"""Protocols of Plasmon, the default first."""
DIGESTS = (("compared", "sealed"), ("not-compared", "off"))
"""Objects that have a digest: names of their contenders, and the setting `--verify` of the nodes."""
_LITTLE = 64 << 20
"""Memory in bytes of a node that holds no objects."""
PATIENCE = 20.0
"""Longest time in seconds for an answer of a worker."""
ONE_PLACE, PLACES = "one place", "places"
"""Memory modes of contenders without a store: one place again and again, or as many as objects."""
BATCH = 64
"""Number of objects in a call of a way with batches."""
IN_BATCHES: dict[str, Any] = {
    "operation": "fetch_many",
    "batch": BATCH,
    "least": 1 << 10,
    "most": 1 << 10,
    "together": False,
}
"""Properties of a way with batches."""
_MEMBERS = 30.0
"""Longest time in seconds until nodes know each other."""


@dataclass(frozen=True)
class Way:
    """Way to fetch: the names in its rows, and its requirements."""

    peer: str
    operation: str = "fetch"
    memory: str = ""
    """State of memory. For Plasmon, "cold" if an object's location is unknown, "warm" if the object was here
    before. For contenders without a store, `ONE_PLACE` or `PLACES`."""
    least: int = 0
    """Size in bytes of the smallest object for which the way is measured."""
    most: int = 1 << 62
    """Size in bytes of the largest object."""
    together: bool = True
    """Whether the way can be measured with several getters at a time."""
    batch: int = 1
    """Number of objects in a call."""


class Contender(ABC):
    """Contender: servers on the two hosts, and clients of them."""

    name: str
    label: str
    ways: Sequence[Way]
    restless = False
    """Whether the contender's idle processes use the CPU. Such a contender is measured after the others
    have ended."""

    def __init__(self) -> None:
        self.version = ""
        self.facts: dict[str, Any] = {}
        self._workers: dict[tuple[str, int], Worker] = {}

    @abstractmethod
    def missing(self) -> str | None:
        """Reason why the contender cannot be measured here, or `None`."""

    @abstractmethod
    def start(self, hosts: Sequence[Host], folder: Path, memory: int) -> None:
        """Starts the contender's servers, each with `memory` bytes. Returns when they serve."""

    @abstractmethod
    def stop(self) -> None:
        """Ends the contender's servers. Their files on the hosts are removed with the network."""

    def holder(self, way: Way, number: int) -> Worker | None:
        """Client that puts the objects for getters. `None` if nothing has to be put."""
        return None

    @abstractmethod
    def getter(self, way: Way, number: int) -> Worker:
        """Client on the host of the getters."""

    def servers(self) -> tuple[list[int], list[int]]:
        """Process ids that work for clients, on either host."""
        return [], []

    def fetched(self) -> dict[str, int] | None:
        """Number of objects fetched to the getters' host so far, by protocol, if the contender tells."""
        return None

    def close(self) -> None:
        """Ends all processes."""
        for worker in self._workers.values():
            worker.close()
        self._workers = {}
        self.stop()

    def _worker(self, kind: str, number: int, start: Callable[[], Worker]) -> Worker:
        """Client, which is started when it is first needed."""
        if (kind, number) not in self._workers:
            worker = start()
            self._workers[kind, number] = worker
            self.version = self.version or worker.version
        return self._workers[kind, number]


class Plasmon(Contender):
    """Two nodes that fetch by one of Plasmon's protocols. Clients are in Rust; for `auto` also in Python."""

    def __init__(
        self, protocol: str, flags: Sequence[str], build: paths.Build | None = None, digest: bool = False
    ) -> None:
        super().__init__()
        self._build = build or paths.own()
        self._digest = digest
        """Whether objects are put with a digest."""
        self.name = f"plasmon-{protocol}{self._build.mark}"
        self.label = f"Plasmon, {protocol}{self._build.mark}"
        self._flags = flags
        self._python = f"plasmon-python{self._build.mark}"
        """Name of the rows of clients in Python."""
        self._further = 0
        """Number of nodes that neither hold objects nor get them."""
        self.ways = [Way(self.name, memory="cold")]
        if protocol == "auto":
            self.ways += [
                Way(self.name, memory="warm"),
                Way(self._python, memory="cold"),
                Way(self._python, memory="warm"),
                Way(self._python, memory="cold", **IN_BATCHES),
            ]
        self.nodes: list[peers.PlasmonRust] = []
        self._folder = Path()

    def missing(self) -> str | None:
        kinds = (peers.PlasmonRust, peers.PlasmonPython)
        return next(filter(None, (kind(build=self._build).missing() for kind in kinds)), None)

    def start(self, hosts: Sequence[Host], folder: Path, memory: int) -> None:
        """Starts a node on each host, and waits until they know each other."""
        self._folder = folder
        for host in hosts:
            self.add(host, memory)
        for number in range(self._further):
            self.add(hosts[number % len(hosts)], _LITTLE)

    def add(self, host: Host, memory: int) -> None:
        """Starts one more node, and waits until all nodes know it."""
        node = peers.PlasmonRust(host, self._build)
        join = ["--join", self.nodes[0].status()["listen"]] if self.nodes else []
        self.nodes.append(node)
        node.start(self._folder / f"node-{len(self.nodes)}", memory, [*self._flags, *join])
        deadline = time.monotonic() + _MEMBERS
        while any(len(other.status()["cluster"]["members"]) < len(self.nodes) for other in self.nodes):
            if time.monotonic() > deadline:
                raise PeerError(f"{len(self.nodes)} nodes do not know each other after {_MEMBERS:.0f} s")
            time.sleep(0.01)
        self.facts = {"provider": node.status()["fabric"]["provider"], **node.facts}

    @classmethod
    def of_four(cls) -> Plasmon:
        """Four nodes in the default configuration. Two of them only keep their part of the directory.

        Of half of all objects, the keeper is neither the node that holds them nor the one that gets them.
        """
        four = cls("auto", ["--protocol", "auto"])
        four.name, four.label, four._python = "plasmon-four", "Plasmon, four nodes", "plasmon-four-python"
        four._further = 2
        four.ways = [Way(four._python, memory="cold"), Way(four._python, memory="cold", **IN_BATCHES)]
        return four

    def stop(self) -> None:
        for node in reversed(self.nodes):
            node.stop()
        self.nodes = []

    def holder(self, way: Way, number: int) -> Worker | None:
        return self.client(HOLDER, 0, way.peer == self._python)

    def getter(self, way: Way, number: int) -> Worker:
        return self.client(GETTER, number, way.peer == self._python)

    def client(self, node: int, number: int, python: bool = False) -> Worker:
        """Client of a node. Both sides use the same language, because the two make ids differently."""
        peer = self.nodes[node]
        store = "plasmon-digest" if self._digest else "plasmon"
        rust = [str(self._build.rust_worker), store, str(peer.socket)]
        command = peers.python_client(peer.socket, self._build) if python else rust
        kind = f"{'python' if python else 'rust'}-{node}"
        log = self._folder / f"{kind}-{number}.log"
        return self._worker(kind, number, lambda: Worker(peer.host.command(command), log, {}, PATIENCE))

    def servers(self) -> tuple[list[int], list[int]]:
        return [self.nodes[HOLDER].pid], [self.nodes[GETTER].pid]

    def fetched(self) -> dict[str, int] | None:
        protocols = self.nodes[GETTER].status()["transfer"].get("protocols")
        return protocols and {name: counts["fetched"] for name, counts in protocols.items()}


def plasmon(chosen: Sequence[str] = PROTOCOLS) -> list[Plasmon]:
    """Contenders for all protocols of this build, or only for its default if it has no choice."""
    if peers.PlasmonRust().missing():
        return [Plasmon("auto", [])]
    known = protocols(_help())
    if not known:
        return [Plasmon("auto", [])]
    return [Plasmon(name, ["--protocol", name]) for name in known if name in chosen]


def digests(names: Sequence[str] | None) -> list[Plasmon]:
    """Contenders of these names for the cost of digests, which are measured only if they are named."""
    both = [Plasmon(f"auto-{name}", ["--verify", value], digest=True) for name, value in DIGESTS]
    return [one for one in both if names and one.name in names]


def protocols(text: str) -> list[str]:
    """Protocols that `plasmon serve --help` lists. Empty if it has no such flag."""
    flag = re.search(r"^ *--protocol\b.*?(?=^ *(?:-\w, )?--|\Z)", text, re.MULTILINE | re.DOTALL)
    words = re.findall(r"[\w-]+", flag[0]) if flag else []
    return [name for name in PROTOCOLS if name in words]


def _help() -> str:
    command = [str(paths.plasmon()), "serve", "--help"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout
