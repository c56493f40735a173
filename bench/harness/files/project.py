"""Programs that people use: the source of zlib is unpacked, configured, built and removed."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from harness import paths
from harness.files.figures import OTHER, OWN, SECONDS, Collected, Task
from harness.files.run import Run, rotated
from harness.files.stores import HOLDER, USER, Store
from harness.processes import PeerError

PROJECT = "project"
UNPACK, BUILD, ALL = "unpack", "build", "unpack and build"
_ARCHIVE = paths.CACHE / "project" / "source.tar"
_LONGEST = 300.0
_BUILD = "./configure && make -j2"
_SHOWN = 500


def missing() -> str | None:
    """Reason why builds cannot be measured here, or `None`."""
    if reason := paths.not_installed(PROJECT):
        return reason
    if not _ARCHIVE.exists():
        return f"there is no {_ARCHIVE}: scripts/bench-setup.sh"
    lacking = [program for program in ("tar", "make", "cc") if not shutil.which(program)]
    return f"there is no {lacking[0]} here" if lacking else None


def measure(run: Run, stores: Sequence[Store], rounds: int, collected: Collected) -> None:
    """Unpacks and builds on the host that stores, and of what others use also on another host."""
    for number in range(rounds):
        for store in rotated(stores, number):
            for where in (OWN, OTHER) if store.far else (OWN,):
                run.turn(store, PROJECT, f"{where} host", partial(_build, store, where, collected))


def _build(store: Store, where: str, collected: Collected) -> None:
    base = store.folder(HOLDER if where == OWN else USER) / "turn-project"
    base.mkdir()
    took = {}
    took[UNPACK] = _timed(["tar", "-xf", _ARCHIVE, "-C", base, "--strip-components=1"], base)
    took[BUILD] = _timed(["sh", "-c", _BUILD], base)
    took[ALL] = took[UNPACK] + took[BUILD]
    for operation, seconds in took.items():
        collected.add(Task(PROJECT, store.name, operation, where, 1, 0, SECONDS), seconds)
    shutil.rmtree(base)


def _timed(command: Sequence[str | Path], folder: Path) -> float:
    """Seconds that a command takes in a folder."""
    begin = time.monotonic()
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=_LONGEST)
    if done.returncode:
        raise PeerError(f"{' '.join(words)}: {done.stderr.strip()[-_SHOWN:]}")
    return time.monotonic() - begin
