"""One-sided operations and barriers of MPI between the two hosts, by MPICH and the TCP of UCX.

It is measured behind all others: both ranks look for work all the time, and would take the cores from them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from harness import mpi, paths
from harness.figures import Case, Row, Samples
from harness.network import Host
from harness.processes import PeerError, shown, spawn, stop
from harness.tier.run import BUSY, Plan
from harness.tier.workers import HOME, OTHER, REMOTE

NAME = "mpi"
BARRIER = "barrier"
"""Operation of a row: both ranks meet."""
_PROGRAM = paths.ROOT / "bench" / "mpi" / "windows.py"
_CALLS = 2000
_LIMIT = 60.0


def measure(plan: Plan, hosts: Sequence[Host], folder: Path) -> list[Row]:
    """Runs two ranks, each on a host of its own.

    Raises:
        PeerError: The ranks failed.
    """
    output, log = folder / "mpi.json", folder / "mpi.log"
    programs = paths.CACHE / "mpi" / "bin"
    program = [programs / "python", _PROGRAM, "--sizes", *plan.sizes, "--calls", _CALLS]
    program += ["--seconds", 4 * plan.turn, "--output", output]
    home, other = (hosts[at].command(program) for at in (HOME, OTHER))
    # The ranks are of one machine, through whose memory they would reach each other otherwise.
    command = [programs / "mpirun", "-genv", "MPIR_CVAR_NOLOCAL", "1", "-genv", "UCX_TLS", "tcp"]
    command += ["-n", "1", *home, ":", "-n", "1", *other]
    process = spawn([str(word) for word in command], log)
    try:
        status = process.wait(_LIMIT)
    except subprocess.TimeoutExpired:
        raise PeerError(f"the ranks did not end within {_LIMIT:.0f} s. {shown(log)}") from None
    finally:
        stop(process)
    if status:
        raise PeerError(f"the ranks failed. {shown(log)}")
    samples = Samples()
    for one in json.loads(output.read_text()):
        operation, _, state = one["operation"].partition(" ")
        memory = BUSY if state else ""
        case = Case(REMOTE, NAME, operation, memory, one["size"], 1, 1)
        samples.add(case, one["ns"], moves=operation not in ("fetch_add", BARRIER))
    return samples.rows()


def missing() -> str | None:
    """Reason why MPI cannot be measured here, or `None`."""
    return mpi.missing()
