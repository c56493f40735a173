"""fio on mounts: what a benchmark that others know measures, beside our own workers.

fio fills its buffers with numbers of its own, and compares nothing. A mount is of a host by its process, so
fio itself runs anywhere.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import paths
from harness.cpu import Spent
from harness.files.figures import OTHER, OWN, RATE, TIME, Collected, Task
from harness.files.run import KIB, MIB, Run, Wire, rotated
from harness.files.stores import HOLDER, USER, Store
from harness.network import Host
from harness.processes import PeerError

FIO = "fio"
WRITE, READ, AT_RANDOM, WRITE_AT_RANDOM = "write", "read", "randread", "randwrite"
"""Kinds of work, as fio calls them."""
_LONGEST = 120.0
_SHOWN = 500


@dataclass(frozen=True)
class Job:
    """Job of fio in a folder."""

    kind: str
    processes: int
    block: int
    unit: str
    """Unit of the figure: `RATE`, or `TIME` for the median of a call."""
    depth: int | None = None
    """Calls that are under way at a time, past the page cache (libaio, O_DIRECT), or `None` for psync."""

    @property
    def writes(self) -> bool:
        """Whether it writes."""
        return self.kind in (WRITE, WRITE_AT_RANDOM)

    @property
    def operation(self) -> str:
        """Name of the work in figures."""
        return self.kind if self.depth is None else f"{self.kind}, direct, depth {self.depth}"


JOBS = (
    Job(WRITE, 1, MIB, RATE),
    Job(READ, 1, MIB, RATE),
    Job(WRITE, 4, MIB, RATE),
    Job(READ, 4, MIB, RATE),
    Job(AT_RANDOM, 4, 4 * KIB, TIME),
)
"""Jobs in the order in which they run: those that read find the files of the write before them."""

DIRECT_JOBS = tuple(
    Job(WRITE_AT_RANDOM, 1, block, RATE, depth) for block in (4 * KIB, MIB) for depth in (1, 16)
)
"""Jobs that write past the page cache over the file of the first job."""

_WRITES = [job for job in JOBS if job.kind == WRITE]


def missing() -> str | None:
    """Reason why fio cannot be measured here, or `None`."""
    if reason := paths.not_installed(FIO):
        return reason
    return None if shutil.which("fio") else "there is no fio here: scripts/bench-setup.sh"


def measure(
    run: Run, stores: Sequence[Store], hosts: Sequence[Host], number: int, collected: Collected
) -> None:
    """A round: each store that other hosts use by one of them, and Plasmon and tmpfs on the own host."""
    for store in rotated(stores, number):
        for where in (OTHER, OWN):
            if (where == OTHER and store.far) or (where == OWN and store.name in ("plasmon", "tmpfs")):
                work = _Work(run, store, hosts, where, collected)
                run.turn(store, FIO, f"{where} host", work.take)


class _Work:
    """All jobs in a folder of a store, seen from one host."""

    def __init__(
        self, run: Run, store: Store, hosts: Sequence[Host], where: str, collected: Collected
    ) -> None:
        self._store, self._where, self._collected = store, where, collected
        self._plan, self._at = run.plan, USER if where == OTHER else HOLDER
        self._host = hosts[self._at]

    def take(self) -> None:
        name = "turn-fio"
        (self._store.folder(self._at) / name).mkdir()
        for job in (*JOBS, *DIRECT_JOBS):
            if not job.writes:
                self._store.forget()
            folder = self._store.folder(self._at) / name
            wire, before = Wire([self._host]), Spent.until_now()
            # The files of all jobs are there together.
            answer = _fio(folder, job, self._plan.total // len(_WRITES), self._plan.seconds)
            spent = Spent.until_now() - before
            told = answer["write" if job.writes else "read"]
            if not job.writes and self._where == OTHER:
                wire.check(told["io_bytes"])
            where, operation = self._where, job.operation
            task = Task(FIO, self._store.name, operation, where, job.processes, job.block, job.unit)
            if job.unit == TIME:
                self._collected.add(task, told["clat_ns"]["percentile"]["50.000000"] / 1e3)
                self._collected.spend(task, spent, told["total_ios"])
            else:
                self._collected.add(task, told["io_bytes"] / 1e6 / (told["runtime"] / 1e3))
                self._collected.spend(task, spent, told["io_bytes"] / 1e6)
        shutil.rmtree(self._store.folder(self._at) / name)


def _fio(folder: Path, job: Job, total: int, seconds: float) -> dict[str, Any]:
    """Figure that fio prints for a job, of all its processes together.

    Raises:
        PeerError: fio failed.
    """
    words = [
        *("fio", "--name=job", f"--directory={folder}", f"--filename_format={job.processes}-$jobnum"),
        *(f"--rw={job.kind}", f"--numjobs={job.processes}", f"--size={total // job.processes}"),
        *(f"--bs={job.block}", "--fallocate=none", "--group_reporting", "--output-format=json"),
    ]
    direct = ("--ioengine=libaio", "--direct=1", f"--iodepth={job.depth}")
    words += ("--ioengine=psync",) if job.depth is None else direct
    # A write ends with fsync, as those of our own workers.
    words += ["--end_fsync=1"] if job.writes else []
    words += [f"--runtime={seconds}"] if job.kind in (AT_RANDOM, WRITE_AT_RANDOM) else []
    done = subprocess.run(words, capture_output=True, text=True, timeout=_LONGEST)
    if done.returncode:
        raise PeerError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()[-_SHOWN:]}")
    told: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    return told
