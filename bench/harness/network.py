"""Hosts for the servers and clients of a run: hosts of their own, or this one.

As root every host is a network namespace, with a virtual cable to a switch in another namespace, as fast as
the machine or with the rate of a given link. The machine's own network is not affected. Where namespaces or
such links are not available, all hosts are this one, over loopback.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

PREFIX = "plasmon-bench-"
"""Prefix of the names of all namespaces; the harness's process id follows."""
_NAMESPACES = Path("/run/netns")
_PATIENCE = 30.0
"""Longest time in seconds for a command of the network, which takes milliseconds."""
_GRACE = 5.0
"""Longest time in seconds for processes in a namespace that is removed."""
_BURST = ["burst", "256kb"]
"""Parameter of a limit: what is sent at once after a rest."""
_BUCKET = [*_BURST, "latency", "50ms"]
"""Parameters of a link: its burst, and the longest time that a packet waits."""
_FLOW_CLASSES = 256
"""Number of classes into which connections fall. Two of a few connections seldom fall into one."""
_CLASSIFY = (
    "10,"  # Number of instructions. A packet begins with its Ethernet header.
    "48 0 0 23,21 0 7 6,"  # A packet of another protocol than TCP is not limited.
    "40 0 0 36,7 0 0 0,40 0 0 34,12 0 0 0,"  # The sum of both ports,
    "84 0 0 255,68 0 0 65792,22 0 0 0,"  # modulo 256, is the class, from 1:100 on.
    "6 0 0 0"
)
"""Program of the packet filter that finds the class of a packet's connection."""


@dataclass(frozen=True)
class Host:
    """Host for processes."""

    address: str = "127.0.0.1"
    namespace: str = ""
    """Name of the namespace. Empty for this host's own network."""

    def command(self, words: Sequence[object]) -> list[str]:
        """Command prefix that runs a program on the host, under the same process id."""
        command = [str(word) for word in words]
        return ["ip", "netns", "exec", self.namespace, *command] if self.namespace else command

    def processes(self) -> list[int]:
        """Process ids in the host's namespace."""
        if not self.namespace:
            return []
        return [int(pid) for pid in _ip("netns", "pids", self.namespace).split()]


HERE = Host()


class Network:
    """Hosts that reach each other, until the network is closed."""

    def __init__(self, hosts: int, link_gbit: float = 0, flow_gbit: float = 0) -> None:
        """Makes the hosts: namespaces if they are available and `PLASMON_BENCH_NETNS` is not 0.

        Args:
            hosts: Number of hosts.
            link_gbit: Rate in Gbit/s at which each host may send, and receive at the same time; 0 for no
                limit.
            flow_gbit: Rate in Gbit/s of each TCP connection in each direction; 0 for no limit.
        """
        remove_stale()
        self._link_gbit = link_gbit
        self._flow_gbit = flow_gbit
        self._prefix = f"{PREFIX}{os.getpid()}-{time.monotonic_ns()}"
        wanted = os.environ.get("PLASMON_BENCH_NETNS") != "0"
        self.why_not: str | None = None if wanted else "PLASMON_BENCH_NETNS is 0"
        self.hosts: list[Host] = []
        if wanted:
            try:
                self._make(hosts)
            except (OSError, subprocess.SubprocessError) as error:
                self.close()
                said = getattr(error, "stderr", None)
                self.why_not = (said or str(error)).strip()
        if self.why_not is not None:
            self.hosts = [HERE] * hosts

    def close(self) -> None:
        """Ends the processes in the namespaces, and removes the namespaces."""
        for host in self.hosts:
            _end(host)
        for name in [host.namespace for host in self.hosts if host.namespace] + [self._switch]:
            _remove(name)
        self.hosts = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def description(self) -> str:
        """Description for people."""
        kind = "network namespaces" if self.why_not is None else f"loopback, not namespaces: {self.why_not}"
        if self.why_not is None and self._link_gbit:
            kind += f", links of {self._link_gbit:g} Gbit/s"
        if self.why_not is None and self._flow_gbit:
            kind += f", {self._flow_gbit:g} Gbit/s a connection"
        return f"{len(self.hosts)} hosts on one machine ({kind})"

    @property
    def _switch(self) -> str:
        return f"{self._prefix}-switch"

    def _make(self, count: int) -> None:
        switch = self._switch
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number in range(count):
            host = Host(f"10.232.0.{number + 1}", f"{self._prefix}-host{number}")
            port = f"port{number}"
            _ip("netns", "add", host.namespace)
            self.hosts.append(host)
            cable = ["type", "veth", "peer", port, "netns", switch]
            _ip("link", "add", "eth0", "netns", host.namespace, *cable)
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.namespace, "link", "set", "eth0", "up")
            _ip("-n", host.namespace, "link", "set", "lo", "up")
            if self._link_gbit:
                # Packets that a port of the switch sends are those that its host receives.
                self._limit(host.namespace, "eth0")
                self._limit(switch, port)
            if self._flow_gbit:
                self._limit_flows(host.namespace, "eth0")

    def _limit(self, namespace: str, device: str) -> None:
        rate = ["rate", f"{self._link_gbit:g}gbit", *_BUCKET]
        _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *rate)

    def _limit_flows(self, namespace: str, device: str) -> None:
        of_device, rate = ["dev", device, "parent", "1:"], f"{self._flow_gbit:g}gbit"
        _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "handle", "1:", "htb")
        for number in range(_FLOW_CLASSES):
            flow = ["classid", f"1:{256 + number:x}", "htb", "rate", rate, "quantum", "60000", *_BURST]
            _run("tc", "-n", namespace, "class", "add", *of_device, *flow)
        filtered = ["protocol", "ip", "prio", "1", "bpf", "bytecode", _CLASSIFY]
        _run("tc", "-n", namespace, "filter", "add", *of_device, *filtered)


def remove_stale() -> None:
    """Removes the namespaces of killed runs, with the processes in them."""
    for path in _NAMESPACES.glob(f"{PREFIX}*"):
        owner = path.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            _end(Host(namespace=path.name))
            _remove(path.name)


def _end(host: Host) -> None:
    """Ends the processes on a host, by SIGKILL if they do not end otherwise."""
    for how, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE)):
        deadline = time.monotonic() + patience
        try:
            for pid in host.processes():
                os.kill(pid, how)
            while host.processes() and time.monotonic() < deadline:
                time.sleep(0.02)
        except (ProcessLookupError, subprocess.SubprocessError):
            continue


def _remove(namespace: str) -> None:
    # Not checked: it runs after failures, possibly for a namespace that was never made.
    subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, timeout=_PATIENCE)


def _ip(*words: str) -> str:
    return _run("ip", *words)


def _run(*words: str) -> str:
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=_PATIENCE)
    return done.stdout
