"""Worker that brings an object to many nodes, by a broadcast and by gets: a line of JSON for each time.

`harness/broadcast.py` runs it with the interpreter that has the `plasmon` package. The nodes are those given
as arguments, on hosts of their own, or else a cluster on loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import plasmon

NAME = "broadcast"
WAYS = ("broadcast", "gets")
PATIENCE = 60.0
"""Longest time in seconds for any step, far more than it takes."""
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measures on the given nodes, or on a new cluster."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, required=True, help="bytes of the object; whole MiB")
    parser.add_argument(
        "--nodes", type=int, nargs="+", required=True, help="how many are to have it, besides"
    )
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--memory", type=int, required=True, help="of each node, if they are to be started")
    parser.add_argument("--sockets", nargs="*", default=[], help="of nodes that run")
    parser.add_argument("--pids", type=int, nargs="*", default=[], help="theirs")
    arguments = parser.parse_args()
    if arguments.sockets:
        measure([plasmon.Client(socket) for socket in arguments.sockets], arguments.pids, arguments)
        return
    count = max(arguments.nodes) + 1
    with plasmon.LocalCluster(nodes=count, memory=arguments.memory) as cluster:
        measure([cluster.client(number) for number in range(count)], cluster.pids, arguments)


def measure(clients: list[plasmon.Client], pids: list[int], arguments: argparse.Namespace) -> None:
    """Measures both ways in turn, with clients and process ids of all nodes."""
    for client in clients:
        while (report := client.status()["memory"])["prefaulted"] < report["capacity"]:
            time.sleep(0.05)
    first, *others = clients
    first.put(os.urandom(1 << 20) * (arguments.size >> 20), name=NAME)
    # The first time, connections are made. Who then gets it alone gets it from the first node, and goes there
    # again: a node remembers where an object was that it got.
    _once(clients, pids, "broadcast", others)
    for client in others:
        _once(clients, pids, "gets", [client])
    for turn in range(arguments.rounds):
        for count in arguments.nodes:
            for way in WAYS if turn % 2 else reversed(WAYS):
                seconds, cpu = _once(clients, pids, way, others[:count])
                row: dict[str, Any] = {"way": way, "nodes": count, "size": arguments.size}
                print(json.dumps({**row, "seconds": seconds, "cpu_seconds": cpu}), flush=True)


def _once(
    clients: list[plasmon.Client], pids: list[int], way: str, targets: list[plasmon.Client]
) -> tuple[float, float]:
    """Brings the object to nodes that do not have it. Returns the time, and the CPU time."""
    _evict(clients)
    nodes = [client.node for client in targets]
    threads = [threading.Thread(target=_get, args=(client,)) for client in targets]
    fetched = [_fetched(client) for client in targets]
    busy, begin = _cpu(pids), time.perf_counter()
    if way == "broadcast":
        spread = clients[0].broadcast(NAME, nodes, timeout=PATIENCE)
        assert not spread.failed, spread
    else:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seconds, cpu = time.perf_counter() - begin, _cpu(pids) - busy
    for client, before in zip(targets, fetched, strict=True):
        assert client.wait([NAME], timeout=0)[0], "it is not there"
        assert _fetched(client) == before + 1, "it was there before"
        source = client.explain(NAME)["fetched"]["holders"]
        assert way == "broadcast" or source == [clients[0].node], f"it came from {source}"
    return seconds, cpu


def _evict(clients: list[plasmon.Client]) -> None:
    """Leaves the object on the first node only, and in the directory as well.

    Both are waited for: the directory learns of an eviction some milliseconds later, and a replica that was
    passed on stays as long as the next node may read it.
    """
    first, *others = clients
    deadline = time.monotonic() + PATIENCE
    while any(client.list() for client in others) or len(first.locations(NAME)) > 1:
        if time.monotonic() > deadline:
            raise SystemExit(f"nodes still have the object after {PATIENCE:.0f} s: {first.locations(NAME)}")
        for client in others:
            client.evict(1 << 62)
        time.sleep(0.01)


def _get(client: plasmon.Client) -> None:
    client.wait([NAME], timeout=PATIENCE)


def _fetched(client: plasmon.Client) -> int:
    """Number of objects that a node has fetched so far."""
    protocols: dict[str, dict[str, int]] = client.status()["transfer"]["protocols"]
    return sum(counts["fetched"] for counts in protocols.values())


def _cpu(pids: list[int]) -> float:
    """CPU time of processes in seconds."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


if __name__ == "__main__":
    main()
