"""Worker with a cluster whose last node dies: times of the other nodes, and of gets meanwhile.

`harness/heal.py` runs it with the interpreter that has the `plasmon` package. It prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from typing import Any

import plasmon

POLL = 0.02
"""Time in seconds between two looks at the nodes. A look counts their objects, which takes their time."""
PATIENCE = 120.0
"""Longest time in seconds for any step, far more than it takes."""
USUAL = 5.0
"""Time in seconds of gets before the death."""
SIZE = 1024
"""Size of an object in bytes."""
PUT_AT_ONCE = 10_000


class Gets(threading.Thread):
    """Gets of living objects on node 0, which fetches them from another node, one after the other."""

    def __init__(self, client: plasmon.Client, ids: list[plasmon.ObjectId]) -> None:
        super().__init__(name="gets")
        self._client, self._ids = client, ids
        self.over = threading.Event()
        self.taken: list[tuple[float, int]] = []
        """Start of each get, and its time in nanoseconds."""
        self.failed: list[str] = []

    def run(self) -> None:
        """Makes gets until it is stopped."""
        while not self.over.is_set():
            # The object is evicted, so that it is fetched again.
            self._client.evict(1 << 62)
            for oid in random.sample(self._ids, min(len(self._ids), 2000)):
                begun, began_ns = time.monotonic(), time.perf_counter_ns()
                try:
                    self._client.get(oid, timeout=PATIENCE)
                except plasmon.Error as error:
                    self.failed.append(str(error))
                self.taken.append((begun, time.perf_counter_ns() - began_ns))
                if self.over.is_set():
                    return

    def between(self, begin: float, end: float) -> list[int]:
        """Times in nanoseconds of the gets that began in a span, or began before it and ended in it."""
        return [taken for begun, taken in self.taken if begun + taken / 1e9 >= begin and begun <= end]


def main() -> int:
    """Measures one death."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--objects", type=int, required=True)
    parser.add_argument("--coordinator", choices=["embedded", "etcd"], required=True)
    parser.add_argument("--lease", type=int, required=True)
    parser.add_argument("--death", choices=["SIGKILL", "SIGSTOP"], required=True)
    arguments = parser.parse_args()
    memory = max(256 << 20, 4 * arguments.objects * SIZE)
    with plasmon.LocalCluster(
        arguments.nodes,
        memory,
        coordinator=arguments.coordinator,
        arguments=["--lease", str(arguments.lease), "--no-prefault"],
    ) as cluster:
        print(json.dumps(measure(cluster, arguments)))
    return 0


def measure(cluster: plasmon.LocalCluster, arguments: argparse.Namespace) -> dict[str, Any]:
    """Fills all nodes but the last, and kills or stops that one."""
    last, objects = arguments.nodes - 1, arguments.objects
    ids: list[list[plasmon.ObjectId]] = [[] for _ in range(last)]
    for node in range(last):
        share = objects // last + (node < objects % last)
        for done in range(0, share, PUT_AT_ONCE):
            values = [os.urandom(SIZE) for _ in range(min(PUT_AT_ONCE, share - done))]
            ids[node] += cluster.client(node).put_many(values)
    survivors = list(range(last))
    watch = [cluster.connect(node) for node in survivors]
    await_health([*watch, cluster.connect(last)], arguments.nodes, objects)

    gets = Gets(cluster.connect(0), ids[last - 1])
    gets.start()
    begin = time.monotonic()
    while time.monotonic() < begin + USUAL:
        looks(watch)
        time.sleep(POLL)
    pid, death = cluster.pids[last], time.monotonic()
    if arguments.death == "SIGKILL":
        cluster.kill(last)
    else:
        os.kill(pid, signal.SIGSTOP)
    followed, healed = await_health(watch, last, objects)
    time.sleep(1.0)
    gets.over.set()
    gets.join()
    if arguments.death == "SIGSTOP":
        cluster.kill(last)
    return {
        "followed_s": followed - death,
        "healed_s": healed - death,
        "usual_ns": gets.between(begin, death),
        "healing_ns": gets.between(death, healed),
        "failed": gets.failed,
    }


def looks(watch: list[plasmon.Client]) -> list[dict[str, Any]]:
    """Cluster as each node sees it."""
    clusters: list[dict[str, Any]] = [client.status()["cluster"] for client in watch]
    return clusters


def await_health(watch: list[plasmon.Client], members: int, objects: int) -> tuple[float, float]:
    """Times at which these nodes knew the members, and the directory had all entries twice."""
    deadline, followed = time.monotonic() + PATIENCE, 0.0
    entries = objects * min(2, members)
    while True:
        seen = looks(watch)
        now = time.monotonic()
        if all(len(cluster["members"]) == members for cluster in seen):
            followed = followed or now
            # Cached replicas do not matter: an object is one entry, whatever the number of its holders.
            if sum(cluster["directory_entries"] for cluster in seen) == entries:
                return followed, now
        if now > deadline:
            raise SystemExit(
                f"the directory was not healed within {PATIENCE:.0f} s: {seen}, not {entries} entries"
            )
        time.sleep(POLL)


if __name__ == "__main__":
    sys.exit(main())
