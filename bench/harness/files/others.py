"""Stores other than Plasmon: MooseFS, and JuiceFS on Redis, with all that they store in memory.

Servers are on the holder, reached by its address there as from other hosts.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import paths
from harness.files.stores import HOLDER, Store, mount_memory
from harness.peers import Redis, absent
from harness.processes import PeerError, shown

_COMMAND_SECONDS = 60.0
"""Longest time in seconds for a command."""
_START_SECONDS = 60.0
"""Longest time in seconds until servers serve."""
_POLL_SECONDS = 0.05
_SETUP = "scripts/bench-setup.sh"


class MooseFs(Store):
    """Master and one chunk server, whose chunks are in memory. One copy of everything, no trash."""

    name, label = "moosefs", "MooseFS"
    # Some take a minute. What they have to say was said when the folder was unmounted.
    lingers = 0.5
    _PORT = 9421

    def missing(self) -> str | None:
        if reason := paths.not_installed(self.name):
            return reason
        programs = [_moosefs(name) for name in ("mfsmaster", "mfschunkserver", "mfsmount", "mfssetgoal")]
        return next(filter(None, (absent(program, _SETUP) for program in programs)), None)

    def close(self) -> None:
        super().close()
        chunks = self._base / "chunks"
        subprocess.run(["umount", "--lazy", chunks], capture_output=True, timeout=_COMMAND_SECONDS)

    def _serve(self, memory: int) -> None:
        base, host = self._base, self._hosts[HOLDER]
        # Chunks of removed files stay for a turn or two of the master's loop over all chunks.
        mount_memory(base / "chunks", 16 * memory)
        for name in ("master", "server"):
            (base / name).mkdir()
        (base / "master" / "metadata.mfs").write_text("MFSM NEW")
        _write(base / "mfsexports.cfg", ["* / rw,alldirs,admin,maproot=0:0"])
        _write(base / "mfstopology.cfg", [])
        _write(base / "mfshdd.cfg", [str(base / "chunks")])
        as_root = ["WORKING_USER = root", "WORKING_GROUP = root"]
        listens = [f"{who}_LISTEN_HOST = {host.address}" for who in ("MATOML", "MATOCS", "MATOCL")]
        _write(
            base / "mfsmaster.cfg",
            [
                *(*as_root, *listens),
                f"DATA_PATH = {base / 'master'}",
                f"EXPORTS_FILENAME = {base / 'mfsexports.cfg'}",
                f"TOPOLOGY_FILENAME = {base / 'mfstopology.cfg'}",
                # Chunks of removed files go soon, so that they do not fill the memory.
                "CHUNKS_LOOP_MIN_TIME = 60",
                "CHUNKS_SOFT_DEL_LIMIT = 500",
                "CHUNKS_HARD_DEL_LIMIT = 1000",
            ],
        )
        _write(
            base / "mfschunkserver.cfg",
            [
                *as_root,
                f"DATA_PATH = {base / 'server'}",
                f"HDD_CONF_FILENAME = {base / 'mfshdd.cfg'}",
                f"MASTER_HOST = {host.address}",
                f"BIND_HOST = {host.address}",
                f"CSSERV_LISTEN_HOST = {host.address}",
                "HDD_LEAVE_SPACE_DEFAULT = 16MiB",
            ],
        )
        master, _ = (
            self._spawn(host, [_moosefs(server), "-f", "-c", base / f"{server}.cfg", "start"], server)
            for server in ("mfsmaster", "mfschunkserver")
        )
        self.version = _version([_moosefs("mfsmaster"), "-v"])
        # A client that writes before is told to wait, for longer and longer.
        _until(self, lambda: "chunkserver register end" in master.read_text(errors="replace"), master)
        folder = self.folder(HOLDER)
        for tool, value in (("mfssetgoal", "1"), ("mfssettrashtime", "0")):
            # Tools ask the mount, by its host's own address.
            command = host.command([_moosefs(tool), "-r", value, folder])
            subprocess.run(command, check=True, capture_output=True, timeout=_COMMAND_SECONDS)

    def _mount(self, at: int, folder: Path) -> list[object]:
        return [_moosefs("mfsmount"), folder, "-f", "-H", self._hosts[HOLDER].address, "-P", self._PORT]


class JuiceFs(Store):
    """Client that keeps names and bytes in one Redis, and nothing on a disk of its own."""

    name, label = "juicefs", "JuiceFS on Redis"
    lingers = 5.0
    _PORT = 6379

    def missing(self) -> str | None:
        if reason := paths.not_installed(self.name):
            return reason
        return absent(self._program(), _SETUP) or Redis().missing()

    def _serve(self, memory: int) -> None:
        host = self._hosts[HOLDER]
        words = ["--bind", host.address, "--port", str(self._PORT), "--protected-mode", "no"]
        words += ["--save", "", "--appendonly", "no", "--dir", str(self._base)]
        words += ["--maxmemory", str(2 * memory), "--maxmemory-policy", "noeviction"]
        log = self._spawn(host, [paths.CACHE / "bin" / "redis-server", *words], "redis")
        _until(self, lambda: "Ready to accept connections" in log.read_text(errors="replace"), log)
        self.version = _version([self._program(), "version"])
        words = ["format", "--storage", "redis", "--bucket", self._database(2), "--trash-days", "0"]
        command = host.command([self._program(), *words, self._database(1), "bench"])
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS)
        if done.returncode:
            raise PeerError(f"JuiceFS makes no file system: {done.stderr.strip()}")

    def _mount(self, at: int, folder: Path) -> list[object]:
        words = ["--no-usage-report", "--no-syslog", "--backup-meta", "0", "--cache-size", "0"]
        words += ["--cache-dir", str(self._base / f"cache-{at}"), "--metrics", "127.0.0.1:0"]
        return [self._program(), "mount", *words, self._database(1), folder]

    def _database(self, number: int) -> str:
        return f"redis://{self._hosts[HOLDER].address}:{self._PORT}/{number}"

    def _program(self) -> Path:
        return paths.CACHE / "juicefs" / "bin" / "juicefs"


def _moosefs(name: str) -> Path:
    """Program of MooseFS, from Debian's packages."""
    usr = paths.CACHE / "moosefs" / "usr"
    return usr / ("sbin" if name in ("mfsmaster", "mfschunkserver") else "bin") / name


def _write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


def _version(command: Sequence[str | Path]) -> str:
    """First word of a program's version that has a digit."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS)
    words = (done.stdout + done.stderr).replace(",", " ").split()
    return next((word for word in words if word[:1].isdigit()), "")


def _until(store: Store, is_so: Callable[[], bool], log: Path) -> None:
    """Waits until a store serves."""
    deadline = time.monotonic() + _START_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise PeerError(f"{store.label} does not serve after {_START_SECONDS:.0f} s. {shown(log)}")
        time.sleep(_POLL_SECONDS)
