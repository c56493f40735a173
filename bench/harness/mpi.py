"""`make bench-mpi`: runs the MPI program in `bench/mpi`, with a node on a host of its own for each rank."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import figures, machine, paths
from harness.figures import Case, Row, Samples
from harness.network import Network
from harness.processes import PeerError, shown, spawn, stop
from harness.remote.contenders import plasmon
from harness.series import Series

KIB, MIB = 1 << 10, 1 << 20
SIZES = [64 * 4**power for power in range(11)]
"""Sizes of objects: 64 B to 64 MiB."""
BATCH = 100
ROUNDS = 5
MEMORY = 1024 * MIB
_LIMIT = 240.0
"""Longest time in seconds until all ranks have ended."""
PROGRAM = paths.ROOT / "bench" / "mpi" / "ranks.py"
_MPI = paths.CACHE / "mpi" / "bin"
OPERATIONS = {
    "create": "create, own node",
    "get": "get, own node",
    "delete": "delete, own node",
    "fetch": "get from the other nodes",
}


def missing() -> str | None:
    """Reason why the benchmark cannot run here, or `None`."""
    if reason := paths.not_installed("mpi"):
        return reason
    return None if (_MPI / "mpirun").exists() else f"there is no {_MPI}/mpirun: scripts/bench-setup.sh"


MPI = Series("mpi", Row)


def run(ranks: int, quick: bool, sizes: Sequence[int], batch: int, results: Path) -> int:
    """Measures, writes the figures, and prints them."""
    if ranks < 2:
        raise SystemExit("it takes two ranks at least: one that gets, and one that has")
    if reason := missing():
        raise SystemExit(f"The MPI benchmark cannot be run: {reason}")
    if quick:
        sizes, batch = sizes or [KIB, MIB], min(batch, 20)
    rounds = 1 if quick else ROUNDS
    begin = time.monotonic()
    described: dict[str, Any] = machine.describe() | {"quick": quick, "ranks": ranks}
    with tempfile.TemporaryDirectory(prefix="bench-") as name, Network(ranks) as network:
        folder = Path(name)
        described["network"] = network.description
        try:
            rows = measure(network, folder, sizes or SIZES, batch, rounds)
        except (PeerError, OSError) as failure:
            print(f"Nothing was measured: {failure}", file=sys.stderr)
            return 1
    described |= {"seconds": round(time.monotonic() - begin), "store_bytes": MEMORY, "batch": batch}
    MPI.keep(results, figures.ordered(rows), described)
    for row in rows:
        what = f"{OPERATIONS[row.operation]:26} {row.size:>11,} B"
        print(f"{what} {row.median_us:>12,.4g} µs (p99 {row.p99_us:,.4g}) {row.ops_per_s:>12,.4g}/s")
    print(f"Measured in {described['seconds']} s: {results}/mpi.csv", file=sys.stderr)
    return 0


def measure(network: Network, folder: Path, sizes: Sequence[int], batch: int, rounds: int) -> list[Row]:
    """Starts the nodes and runs the ranks."""
    (cluster, *_) = plasmon(["auto"])
    if reason := cluster.missing():
        raise PeerError(reason)
    try:
        cluster.start(network.hosts, folder / "nodes", MEMORY)
        output, log = folder / "times.json", folder / "ranks.log"
        program = [_MPI / "python", PROGRAM, "--sockets", *(node.socket for node in cluster.nodes)]
        work = ["--sizes", *sizes, "--batch", batch, "--rounds", rounds, "--output", output]
        limits = ["--most", MEMORY // 4]
        command = [_MPI / "mpirun", "-n", len(cluster.nodes), *program, *work, *limits]
        process = spawn([str(word) for word in command], log, {"PYTHONPATH": _plasmon_package()})
        try:
            status = process.wait(_LIMIT)
        except subprocess.TimeoutExpired:
            raise PeerError(f"the ranks did not end within {_LIMIT:.0f} s. {shown(log)}") from None
        finally:
            stop(process)
        if status != 0:
            raise PeerError(f"the ranks failed. {shown(log)}")
        return _rows(json.loads(output.read_text()), len(cluster.nodes))
    finally:
        cluster.close()


def _rows(results: list[dict[str, Any]], ranks: int) -> list[Row]:
    samples = Samples()
    for one in results:
        case = Case("mpi", "plasmon-python", one["operation"], "", one["size"], 1, ranks)
        samples.add(case, one["ns"], moves=one["operation"] in ("create", "fetch"))
    return sorted(samples.rows(), key=lambda row: (list(OPERATIONS).index(row.operation), row.size))


def _plasmon_package() -> str:
    """Path of the package for the ranks: the environment for which it was built, which has no MPI."""
    where = "import pathlib, plasmon; print(pathlib.Path(plasmon.__file__).parents[1])"
    done = subprocess.run([paths.plasmon_python(), "-c", where], capture_output=True, text=True)
    if done.returncode:
        raise PeerError(f"{paths.plasmon_python()} has no package plasmon: make build")
    return done.stdout.strip()
