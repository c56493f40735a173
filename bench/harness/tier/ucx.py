"""One-sided operations and active messages of UCX between the two hosts, by `ucx_perftest` over TCP.

The program is that of Debian's ucx-utils. It is measured behind all others, since one who polls takes a core
from them. A side that waits polls, or sleeps. Over TCP the other side carries operations out while it makes
progress, so it is in its loop, too. The time of a put is half of that of two puts, one in each direction:
nobody waits for an acknowledgement. That of an active message (`am`) is half of that of one there and one
back, as a call and its reply are.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import paths
from harness.figures import Case, Row, rounded
from harness.network import Host
from harness.processes import PeerError, shown, spawn, stop
from harness.tier.run import KIB, MIB, WORD
from harness.tier.workers import HOME, OTHER, REMOTE

NAME = "ucx"
POLL, SLEEP = "ucx-poll", "ucx-sleep"
_PROGRAM = "ucx_perftest"
_TESTS = {
    "get": "ucp_get",
    "put": "ucp_put_lat",
    "am": "ucp_am_lat",
    "fadd": "ucp_fadd",
    "cswap": "ucp_cswap",
}
"""Operations, as the rows call them, and the tests that measure them."""
_OF_BYTES = ("get", "put", "am")
_PORT = 13337
_TRIES = 2
_CONNECTS, _PAUSE = 20, 0.1
"""Number of times that the other side is looked for, and seconds between two of them."""
_TAKES = 1 << 17
"""Number of bytes that take about as long as an operation."""


def turns(sizes: Sequence[int]) -> list[tuple[str, str, int]]:
    """Turns of the measurement: who measures which operation, of which size."""
    return [
        (peer, operation, size)
        for peer in (POLL, SLEEP)
        for operation in _TESTS
        for size in (sizes if operation in _OF_BYTES else (WORD,))
    ]


def sizes(of: Sequence[int]) -> list[int]:
    """Sizes of reads and writes that are measured, among those of the others."""
    return [size for size in of if size in (WORD, 64, 4 * KIB, MIB)]


def missing() -> str | None:
    """Reason why UCX cannot be measured here, or `None`."""
    if reason := paths.not_installed(NAME):
        return reason
    return None if shutil.which(_PROGRAM) else f"there is no {_PROGRAM} here"


def measure(
    measured: Sequence[int], calls: int, limit: float, hosts: Sequence[Host], folder: Path
) -> tuple[list[Row], dict[str, str]]:
    """Runs a test after the other. Returns the rows, and why others are missing.

    With both sides asleep, a test of this program may wait for ever. It is ended after `limit` seconds and
    tried again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows, left_out = [], dict[str, str]()
    for peer, operation, size in turns(sizes(measured)):
        count = max(20, calls // (1 + size // _TAKES))
        try:
            asked = _Asked(peer, operation, size, count, limit)
            median, _ = _test(asked, 50, hosts, folder)
            p99, each = _test(asked, 99, hosts, folder)
        except PeerError as failure:
            left_out[f"{peer}, {operation} of {size} B"] = str(failure).splitlines()[0]
            continue
        case = Case(REMOTE, peer, operation, "", size, 1, 1)
        moved = rounded(size / each / 1e3) if operation in _OF_BYTES else None
        rows.append(
            Row(
                **vars(case),
                samples=count,
                median_us=rounded(median),
                p99_us=rounded(p99),
                ops_per_s=rounded(1e6 / each),
                gb_per_s=moved,
            )
        )
    return rows, left_out


@dataclass(frozen=True)
class _Asked:
    """Measurement that a test is asked for."""

    peer: str
    operation: str
    size: int
    count: int
    limit: float
    """Longest time in seconds."""


def _test(asked: _Asked, rank: int, hosts: Sequence[Host], folder: Path) -> tuple[float, float]:
    """Microseconds of a call: the one of this rank in a hundred, and the mean."""
    for _ in range(_TRIES):
        if found := _once(asked, rank, hosts, folder):
            return found
    raise PeerError(f"it did not end within {asked.limit:.0f} s, {_TRIES} times")


def _once(asked: _Asked, rank: int, hosts: Sequence[Host], folder: Path) -> tuple[float, float] | None:
    wait = ["-E", "poll" if asked.peer == POLL else "sleep", "-p", str(_PORT)]
    home, log, out = hosts[HOME], folder / "ucx.log", folder / "ucx.csv"
    environment = {"UCX_TLS": "tcp", "UCX_WARN_UNUSED_ENV_VARS": "n"}
    words = ["-t", _TESTS[asked.operation], "-s", str(asked.size), "-n", str(asked.count)]
    words += ["-w", str(asked.count // 10), "-R", str(rank), "-f", "-v"]
    server = spawn(home.command([_PROGRAM, *wait]), log, environment)
    try:
        for _ in range(_CONNECTS):
            with out.open("wb") as output:
                command = hosts[OTHER].command([_PROGRAM, home.address, *wait, *words])
                client = spawn(command, log, environment, stdout=output)
            try:
                status = client.wait(asked.limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                stop(client)
            if status == 0:
                return _read(out)
            # The server may not listen yet.
            if server.poll() is not None:
                break
            time.sleep(_PAUSE)
        raise PeerError(f"{_PROGRAM} failed. {shown(log)}")
    finally:
        stop(server)


def _read(path: Path) -> tuple[float, float] | None:
    lines = path.read_text().splitlines()
    rows = list(csv.DictReader(line for line in lines if "," in line))
    if not rows:
        return None
    [percentile] = (float(value) for name, value in rows[-1].items() if name.endswith("percentile_lat"))
    return percentile, float(rows[-1]["avg_lat"])
