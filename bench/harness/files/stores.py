"""Stores of files: their interface, memory of this host, and mounts of Plasmon.

A store is seen as a folder by each host. All hosts of a run share the folders of this machine, and a mount
belongs to the host whose network its process uses.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import paths
from harness.network import Host
from harness.peers import PlasmonRust
from harness.processes import PeerError, shown, spawn, stop

_CLONE_NEWNS = 0x0002_0000
_libc = ctypes.CDLL(None, use_errno=True)
HOLDER, USER = 0, 1
"""The host that stores and decides, and the first of those that use it."""
_START = 60.0
"""Longest time in seconds until something serves, or is mounted."""
_POLL = 0.01
_COMMAND = 60.0
"""Longest time in seconds for a command."""
_LEAST = 256 << 20
"""Memory in bytes of a node on a host that stores nothing."""
TWICE = "-2"
"""End of the name of a volume whose names are on two nodes."""
_VOLUME, _TWICE = "bench", "twice"


@dataclass(frozen=True)
class OneView(Host):
    """Host whose processes see the mounts of this process, and keep none that is gone."""

    def command(self, words: Sequence[object]) -> list[str]:
        """Command prefix that runs a program on the host, under the same process id.

        `ip netns exec` gives each program a view of its own, in which what is mounted stays mounted.
        """
        command = [str(word) for word in words]
        return (
            ["nsenter", f"--net=/run/netns/{self.namespace}", "--", *command] if self.namespace else command
        )


class Store(ABC):
    """Store of files."""

    name: str
    label: str
    far = True
    """Whether other hosts use the store."""
    writes_far = True
    """Whether bytes that another host writes are stored on the holder."""
    checks = True
    """Whether the store keeps the bytes that are written to it."""
    folders = True
    """Whether the store has folders."""
    lingers = 20.0
    """Longest time in seconds for which the process of a mount may go on when nothing is mounted any more."""

    def __init__(self) -> None:
        self.version = ""
        self.facts: dict[str, Any] = {}
        self._hosts: Sequence[Host] = []
        self._base = Path()
        self._mounts: dict[int, subprocess.Popen[bytes]] = {}
        self._servers: list[subprocess.Popen[bytes]] = []

    @abstractmethod
    def missing(self) -> str | None:
        """Reason why the store cannot be measured here, or `None`."""

    def start(self, hosts: Sequence[Host], base: Path, memory: int) -> None:
        """Starts its servers, which store `memory` bytes at most. Returns when they serve.

        Raises:
            PeerError: It did not start.
        """
        self._hosts, self._base = hosts, base
        base.mkdir(parents=True, exist_ok=True)
        self._serve(memory)

    def folder(self, at: int) -> Path:
        """Folder by which a host sees the store, which is mounted when it is first needed."""
        folder = self._base / f"at-{at}"
        mounted = self._mounts.get(at)
        if mounted is None:
            folder.mkdir(exist_ok=True)
            log = self._base / f"mount-{at}.log"
            self._mounts[at] = spawn(self._hosts[at].command(self._mount(at, folder)), log)
            self._await_mount(at, folder, log)
        elif mounted.poll() is not None:
            raise PeerError(f"the mount of {self.label} has ended. {shown(self._base / f'mount-{at}.log')}")
        return folder

    def forget(self) -> None:
        """Drops what mounts and the kernel have of its files, by mounting anew."""
        for at in list(self._mounts):
            self._unmount(at)

    def close(self) -> None:
        """Ends mounts and servers."""
        for at in list(self._mounts):
            self._unmount(at, lazily=True)
        for server in reversed(self._servers):
            stop(server)
        self._servers = []

    @abstractmethod
    def _serve(self, memory: int) -> None:
        """Starts the servers."""

    @abstractmethod
    def _mount(self, at: int, folder: Path) -> list[object]:
        """Command that serves a mount until the folder is unmounted."""

    def _spawn(self, host: Host, command: Sequence[object], name: str) -> Path:
        """Starts a server, and returns its log."""
        log = self._base / f"{name}.log"
        self._servers.append(spawn(host.command(command), log))
        return log

    def _await_mount(self, at: int, folder: Path, log: Path) -> None:
        deadline = time.monotonic() + _START
        while not os.path.ismount(folder):
            if self._mounts[at].poll() is not None:
                del self._mounts[at]
                raise PeerError(f"{self.label} could not be mounted. {shown(log)}")
            if time.monotonic() > deadline:
                raise PeerError(f"{self.label} is not mounted after {_START:.0f} s. {shown(log)}")
            time.sleep(_POLL)

    def _unmount(self, at: int, lazily: bool = False) -> None:
        folder, mount = self._base / f"at-{at}", self._mounts.pop(at)
        done = subprocess.run(["umount", folder], capture_output=True, text=True, timeout=_COMMAND)
        if done.returncode and not lazily:
            self._mounts[at] = mount
            raise PeerError(f"{self.label} cannot be unmounted: {done.stderr.strip()}")
        if done.returncode:
            subprocess.run(["umount", "--lazy", folder], capture_output=True, timeout=_COMMAND)
        try:
            mount.wait(self.lingers)
        except subprocess.TimeoutExpired:
            mount.kill()
            mount.wait()


class Tmpfs(Store):
    """Memory of this host, as the kernel makes files of it."""

    name, label = "tmpfs", "tmpfs"
    far = False

    def missing(self) -> str | None:
        return None

    def folder(self, at: int) -> Path:
        return self._base / "memory"

    def forget(self) -> None:
        """Does nothing: its pages are the files."""

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", self._base / "memory"], capture_output=True, timeout=_COMMAND)

    def _serve(self, memory: int) -> None:
        mount_memory(self._base / "memory", memory)

    def _mount(self, at: int, folder: Path) -> list[object]:
        raise NotImplementedError


class Null(Store):
    """Mount of Plasmon that keeps no bytes and has no node."""

    name, label = "null", "null mount"
    far = False
    checks = False
    folders = False

    def missing(self) -> str | None:
        return PlasmonRust().missing()

    def forget(self) -> None:
        """Has the kernel drop all pages. The mount stays, because its files would end with it."""
        Path("/proc/sys/vm/drop_caches").write_text("3")

    def _serve(self, memory: int) -> None:
        """Does nothing: there is only the mount."""

    def _mount(self, at: int, folder: Path) -> list[object]:
        return [paths.plasmon(), "mount", "--foreground", "--null", folder]


class Cluster:
    """Nodes of Plasmon, one a host, the first of which keeps what is stored."""

    def __init__(self, flags: Sequence[str]) -> None:
        self.nodes: list[PlasmonRust] = []
        self._flags = flags

    def start(self, hosts: Sequence[Host], base: Path, memory: int) -> None:
        """Starts the nodes, if they do not run, and waits until they know each other."""
        if self.nodes:
            return
        for number, host in enumerate(hosts):
            node = PlasmonRust(host)
            join = ["--join", self.nodes[0].status()["listen"]] if self.nodes else []
            # Bytes that other hosts write and read lie with them for a while.
            room = memory if number == HOLDER else max(memory // (len(hosts) - 1), _LEAST)
            self.nodes.append(node)
            node.start(base / f"node-{number}", room, [*self._flags, *join])
        deadline = time.monotonic() + _START
        while any(len(node.status()["cluster"]["members"]) < len(hosts) for node in self.nodes):
            if time.monotonic() > deadline:
                raise PeerError(f"{len(hosts)} nodes do not know each other after {_START:.0f} s")
            time.sleep(_POLL)

    def evict(self) -> None:
        """Drops replicas of what is on another node."""
        for node in self.nodes:
            room = node.status()["memory"]["capacity"]
            subprocess.run(
                [paths.plasmon(), "evict", "--socket", node.socket, "--json", str(room)],
                capture_output=True,
                timeout=_COMMAND,
            )

    def stop(self) -> None:
        """Ends the nodes."""
        for node in reversed(self.nodes):
            node.stop()
        self.nodes = []


class Plasmon(Store):
    """Volume whose home, and the bytes of whose files, are on the holder."""

    def __init__(self, cluster: Cluster, name: str, label: str, copies: int = 1) -> None:
        super().__init__()
        self.cluster = cluster
        self.name, self.label = name, label
        self._copies = copies
        """Number of nodes that keep names and attributes."""
        self._volume = _VOLUME if copies == 1 else _TWICE
        self.writes_far = places()

    def missing(self) -> str | None:
        return PlasmonRust().missing()

    def close(self) -> None:
        super().close()
        # A volume beside another one has that one's nodes.
        if self._volume == _VOLUME:
            self.cluster.stop()

    def forget(self) -> None:
        super().forget()
        self.cluster.evict()

    def _serve(self, memory: int) -> None:
        self.cluster.start(self._hosts, self._base, memory)
        holder = self.cluster.nodes[HOLDER]
        status = holder.status()
        self.version = self.version or str(status.get("version", ""))
        self.facts = {"provider": status["fabric"]["provider"], **holder.facts}
        words = ["volume", "create", self._volume, "--socket", holder.socket]
        if self._copies > 1:
            words += ["--metadata-copies", self._copies]
        if self.writes_far:
            words += ["--place", status["node"]]
        command = [str(word) for word in (paths.plasmon(), *words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND)
        if done.returncode:
            raise PeerError(f"no volume for {self.label}: {done.stderr.strip()}")

    def _mount(self, at: int, folder: Path) -> list[object]:
        where = ["--socket", self.cluster.nodes[at].socket, "--volume", self._volume]
        return [paths.plasmon(), "mount", "--foreground", *where, folder]


def plasmon(name: str = "plasmon", label: str = "Plasmon", flags: Sequence[str] = ()) -> Plasmon:
    """Volume on nodes of its own."""
    return Plasmon(Cluster(flags), name, label)


def twice(beside: Plasmon) -> Plasmon:
    """Volume whose names are on two nodes, on the nodes of another volume."""
    return Plasmon(beside.cluster, f"{beside.name}{TWICE}", f"{beside.label}, names on two nodes", 2)


@functools.cache
def places() -> bool:
    """Whether a volume can be placed on a node, which takes an option of `plasmon volume create`."""
    if PlasmonRust().missing():
        return False
    command = [str(paths.plasmon()), "volume", "create", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND)
    return "--place" in done.stdout


def alone() -> None:
    """Gives this process and its children a view of mounts of their own.

    Other processes of this machine would keep what is unmounted, if they have views of their own.

    Raises:
        OSError: This process may not do it.
    """
    if _libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "a view of mounts of its own takes root")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True, capture_output=True, timeout=_COMMAND)


def mount_memory(folder: Path, size: int) -> None:
    """Mounts memory of this host at a new folder."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND)
    if done.returncode:
        raise PeerError(f"memory cannot be mounted: {done.stderr.strip()}")


def received(host: Host) -> int:
    """Number of bytes that a host has received from others."""
    command = host.command(["cat", "/proc/net/dev"])
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMMAND).stdout
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return sum(int(fields.split()[0]) for name, fields in lines.items() if name.strip() != "lo")
