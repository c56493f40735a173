"""Benchmark of Plasma over RDMA, as an MPI program: every rank is a client of the node on its own host.

    mpirun -n N ranks.py --sockets S0 S1 ... --sizes BYTES ... --batch OBJECTS --rounds N --output FILE

Rank 0 waits at a barrier while the others create a batch of objects each. The last rank also times creating,
getting and deleting objects of its own node. The ids are gathered, and rank 0 gets all objects in random
order and compares every byte of them. Times are those of single calls, in nanoseconds. The first round is not
counted. Any number of ranks from 2 on is possible.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import plasmon
from mpi4py import MPI

LOCAL = ("create", "get", "delete")
"""Operations that the last rank times on its own node. Rank 0 times "fetch"."""
_BLOCK = 4096
_PATIENCE = 60.0
"""Longest time in seconds for an object that exists."""
_LOOK = 0.001
"""Time in seconds between two checks for the other ranks."""
_clock = time.perf_counter_ns

Times = dict[str, list[int]]


def content(identity: plasmon.ObjectId, size: int) -> bytes:
    """Content of an object, which differs for all objects and follows from the id."""
    block = hashlib.shake_128(bytes(identity)).digest(min(size, _BLOCK))
    return (block * -(-size // max(1, len(block))))[:size]


def timed(times: list[int], call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Makes a call, and notes its time."""
    start = _clock()
    result = call(*arguments, **named)
    times.append(_clock() - start)
    return result


def create(client: Any, size: int, batch: int, times: list[int]) -> list[bytes]:
    """Creates objects. Returns their ids."""
    ids = [plasmon.ObjectId.random() for _ in range(batch)]
    for identity in ids:
        timed(times, client.put, content(identity, size), id=identity)
    return [bytes(identity) for identity in ids]


def local(client: Any, size: int, batch: int, times: Times) -> None:
    """Creates, gets and deletes objects that no other rank uses."""
    ids = [plasmon.ObjectId(raw) for raw in create(client, size, batch, times["create"])]
    for identity in ids:
        check(timed(times["get"], client.get_buffers, (identity,)), identity, size)
    for identity in ids:
        timed(times["delete"], client.delete, identity)


def fetch(client: Any, ids: Sequence[bytes], size: int, order: random.Random, times: list[int]) -> None:
    """Gets all objects in random order."""
    shuffled = list(ids)
    order.shuffle(shuffled)
    for raw in shuffled:
        identity = plasmon.ObjectId(raw)
        check(timed(times, client.get_buffers, (identity,), timeout=_PATIENCE), identity, size)


def check(buffers: Sequence[Any], identity: plasmon.ObjectId, size: int) -> None:
    """Checks every byte of an object."""
    if memoryview(buffers[0]) != content(identity, size):
        raise AssertionError(f"object {identity} of {size} bytes holds other bytes than were put")


def barrier(comm: MPI.Intracomm) -> None:
    """Waits for all ranks without using a core, as MPI's own barrier would."""
    everybody = comm.Ibarrier()
    while not everybody.Test():
        time.sleep(_LOOK)


def one_round(comm: MPI.Intracomm, client: Any, size: int, batch: int, order: random.Random) -> Times:
    """Runs one round at one size. Returns the times of this rank."""
    times: Times = defaultdict(list)
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    own: list[bytes] = []
    if rank > 0:
        own = create(client, size, batch, [])
    if rank == last:
        local(client, size, batch, times)
    barrier(comm)
    gathered = comm.gather(own)
    if rank == 0:
        assert gathered is not None
        fetch(client, [raw for ids in gathered for raw in ids], size, order, times["fetch"])
    barrier(comm)
    client.delete([plasmon.ObjectId(raw) for raw in own])
    barrier(comm)
    return times


def measure(comm: MPI.Intracomm, arguments: argparse.Namespace) -> list[dict[str, Any]] | None:
    """Runs all rounds. Returns the times of all ranks on rank 0."""
    rank = comm.Get_rank()
    client = plasmon.connect(arguments.sockets[rank])
    order = random.Random(arguments.seed)
    results = []
    for size in arguments.sizes:
        all_times: Times = defaultdict(list)
        batch = max(1, min(arguments.batch, arguments.most // max(1, size) // (comm.Get_size() - 1)))
        for number in range(arguments.rounds + 1):
            gc.collect()
            gc.disable()
            times = one_round(comm, client, size, batch, order)
            gc.enable()
            for operation, ns in times.items() if number else ():
                all_times[operation] += ns
        gathered = comm.gather(dict(all_times))
        for mine in gathered or []:
            for operation, ns in mine.items():
                results.append({"operation": operation, "size": size, "batch": batch, "ns": ns})
    return results if rank == 0 else None


def main() -> None:
    """Runs on every rank. A rank that fails ends all ranks."""
    parser = argparse.ArgumentParser(description="Plasmon under MPI.")
    parser.add_argument("--sockets", nargs="+", required=True, help="of the nodes, by rank")
    parser.add_argument("--sizes", nargs="+", type=int, required=True, help="bytes of objects")
    parser.add_argument("--batch", type=int, required=True, help="objects that a rank creates in a round")
    parser.add_argument("--rounds", type=int, default=3, help="that count, for each size")
    parser.add_argument(
        "--most", type=int, default=1 << 28, help="bytes that rank 0 gets in a round, at most"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order of gets")
    parser.add_argument("--output", type=Path, required=True, help="for what was timed, in JSON")
    arguments = parser.parse_args()
    comm = MPI.COMM_WORLD
    try:
        if comm.Get_size() < 2 or comm.Get_size() != len(arguments.sockets):
            raise SystemExit(
                f"{comm.Get_size()} ranks with {len(arguments.sockets)} nodes: 2 or more, as many of both"
            )
        results = measure(comm, arguments)
        if results is not None:
            arguments.output.write_text(json.dumps(results))
    except BaseException as error:
        # Without this, the others would wait for this rank at a barrier.
        print(f"rank {comm.Get_rank()}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        comm.Abort(1)


if __name__ == "__main__":
    main()
