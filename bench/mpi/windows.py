"""One-sided operations of MPI on another rank's memory, as an MPI program of two ranks.

    mpirun -n 2 windows.py --sizes BYTES ... --calls N --seconds S --output FILE

Rank 1 reads and writes memory of rank 0, and adds to a word there; each call is followed by a flush. Times
are those of single calls with their flush, in nanoseconds. Rank 0 waits at a barrier meanwhile, where it
makes progress for MPI. "fetch_add busy" is an add that begins when rank 0 begins to compute, without any call
of MPI. "barrier" is one of both ranks, as rank 1 sees it.
"""

from __future__ import annotations

import argparse
import json
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi4py import MPI

HOME, OTHER = 0, 1
COMPUTES = 0.1
"""Time in seconds that rank 0 computes during an add."""
BUSY_CALLS = 5
BARRIERS = 1000
"""Number of barriers, which both ranks have to agree on."""
ROOM = 32 << 20
"""Size in bytes of the memory whose places are visited."""
PLACES, ONE_PLACE_FROM = 256, 64 << 10
"""Number of places that are visited, and size in bytes from which it is one, as for all others."""
_clock = time.perf_counter_ns


def timed(call: Callable[[int], None], calls: int, seconds: float) -> list[int]:
    """Times of calls, by their numbers."""
    ns: list[int] = []
    end = _clock() + seconds * 1e9
    for number in range(calls):
        start = _clock()
        call(number)
        stop = _clock()
        ns.append(stop - start)
        if stop > end:
            break
    return ns


def measure(window: Any, sizes: list[int], calls: int, seconds: float) -> list[dict[str, Any]]:
    """Measures reads, writes and adds from the other rank."""
    found: list[dict[str, Any]] = []
    for size in sizes:
        content, step = bytes([7]) * size, -(-size // 64) * 64
        places = 1 if size >= ONE_PLACE_FROM else PLACES

        def write(number: int, content: Any = content, step: int = step, places: int = places) -> None:
            window.Put(content, HOME, number % places * step)
            window.Flush(HOME)

        into = bytearray(size)

        def read(number: int, into: Any = into, step: int = step, places: int = places) -> None:
            window.Get(into, HOME, number % places * step)
            window.Flush(HOME)

        timed(write, places, seconds)
        for operation, call in (("write", write), ("read", read)):
            found.append({"operation": operation, "size": size, "ns": timed(call, calls, seconds)})
        read(0)
        assert into == content, "other bytes were read than were written"
    return found


def main() -> None:
    """Measures, and writes the times to a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of the calls of an operation")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    world = MPI.COMM_WORLD
    rank = world.Get_rank()
    window = MPI.Win.Allocate(ROOM + 64 if rank == HOME else 0, 1, comm=world)
    one, before = array("q", [1]), array("q", [0])

    def add(_number: int) -> None:
        window.Fetch_and_op([one, MPI.INT64_T], [before, MPI.INT64_T], HOME, ROOM, MPI.SUM)
        window.Flush(HOME)

    found: list[dict[str, Any]] = []
    window.Lock_all()
    if rank == OTHER:
        window.Put(array("q", [0]), HOME, ROOM)
        window.Flush(HOME)
        found = measure(window, arguments.sizes, arguments.calls, arguments.seconds)
        found.append(
            {"operation": "fetch_add", "size": 8, "ns": timed(add, arguments.calls, arguments.seconds)}
        )
    world.Barrier()
    met = timed(lambda _: world.Barrier(), BARRIERS, float("inf"))
    if rank == OTHER:
        found.append({"operation": "barrier", "size": 8, "ns": met})
    busy: list[int] = []
    for _ in range(BUSY_CALLS):
        if rank == OTHER:
            busy += timed(add, 1, 1.0)
        else:
            end = time.perf_counter() + COMPUTES
            while time.perf_counter() < end:
                pass
        world.Barrier()
    if rank == OTHER:
        found.append({"operation": "fetch_add busy", "size": 8, "ns": busy})
        arguments.output.write_text(json.dumps(found))
    window.Unlock_all()
    window.Free()


if __name__ == "__main__":
    main()
