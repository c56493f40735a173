"""An object on many nodes, by a broadcast and by as many gets at once: a line of JSON for each time.

Called with the bytes of the object, the most nodes beside its own, and how often. All nodes are of this host.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import plasmon

NAME = "broadcast"
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measures, both ways in turn."""
    size, most, rounds = (int(word) for word in sys.argv[1:4])
    memory = size + size // 8 + (32 << 20)
    with plasmon.LocalCluster(nodes=most + 1, memory=memory) as cluster:
        clients = [cluster.client(number) for number in range(most + 1)]
        for client in clients:
            while (report := client.status()["memory"])["prefaulted"] < report["capacity"]:
                time.sleep(0.05)
        clients[0].put(os.urandom(1 << 20) * (size >> 20), name=NAME)
        # The first time, connections are made.
        for way in ("broadcast", "gets"):
            _once(cluster, clients, way, most)
        for turn in range(rounds):
            for count in range(2, most + 1):
                for way in ("broadcast", "gets") if turn % 2 else ("gets", "broadcast"):
                    seconds, cpu = _once(cluster, clients, way, count)
                    row = {"way": way, "nodes": count, "size": size, "seconds": seconds, "cpu_seconds": cpu}
                    print(json.dumps(row), flush=True)


def _once(
    cluster: plasmon.LocalCluster, clients: list[plasmon.Client], way: str, count: int
) -> tuple[float, float]:
    """Brings the object to so many nodes that do not have it; how long that took, and how much CPU time."""
    targets = clients[1 : count + 1]
    while len(clients[0].locations(NAME)) > 1:
        # A node that passed it on may hold it a moment longer, for the one behind it.
        for client in clients[1:]:
            client.evict(1 << 62)
        time.sleep(0.01)
    nodes = [client.node for client in targets]
    threads = [threading.Thread(target=_get, args=(client,)) for client in targets]
    busy, begin = _cpu(cluster.pids), time.perf_counter()
    if way == "broadcast":
        spread = clients[0].broadcast(NAME, nodes)
        assert not spread.failed, spread
    else:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seconds, cpu = time.perf_counter() - begin, _cpu(cluster.pids) - busy
    for client in targets:
        assert client.wait([NAME], timeout=0)[0], "it is not there"
    return seconds, cpu


def _get(client: plasmon.Client) -> None:
    client.wait([NAME], timeout=60)


def _cpu(pids: list[int]) -> float:
    """Seconds of CPU time that processes have had."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


if __name__ == "__main__":
    main()
