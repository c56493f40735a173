"""`make bench-objects`: fills a store with small objects.

At every stage some of all objects are got, in an order that no cache foresees, and the memory of the server
is measured. The memory of an object is that of the whole server process, shared or not, minus that of the
empty store, divided by the number of objects. Plasmon's daemon does not pre-fault its memory here.
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.figures import percentile
from harness.peers import Peer
from harness.processes import PeerError, Worker, ask_all
from harness.progress import Progress
from harness.series import Series

SIZE = 64
STAGES = [10_000, 100_000, 1_000_000, 10_000_000]
QUICK_STAGES = [1_000, 10_000, 100_000]
MEMORY_AN_OBJECT = 320
"""Size of the store in bytes for each object: enough for all peers."""
LEAST_MEMORY = 1 << 30
FILLERS = 2
BATCH = 64
CHUNK = 100_000
"""Number of objects that a filler puts in one request."""
LOOKED_AT = 10_000
SETTLE = 2.0
"""Time in seconds from the last put until memory is measured, because a daemon may still be cleaning up."""

_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)$")
_RESIDENT = re.compile(r"^(Rss|Private_Hugetlb|Shared_Hugetlb): +(\d+) kB$")


@dataclass(frozen=True)
class Stage:
    """Store with a number of objects."""

    peer: str
    objects: int
    size: int
    """Size of an object in bytes."""
    put_per_s: float
    """Objects per second while they were put, in batches, by a few clients."""
    get_median_us: float
    get_p99_us: float
    contains_median_us: float
    bytes_per_object: float
    """Memory of the server for an object in bytes, in addition to the object's own size."""
    segments_per_object: float
    """Part of the memory of an object that is in the memory for objects, if the server tells."""
    tables_per_object: float
    """Part of the memory of an object that is in other shared memory, such as the object table."""
    own_per_object: float
    """Part of the memory of an object that is in memory of the server alone, such as the directory."""


OBJECTS = Series("objects", Stage)


def measure(peers: Sequence[Peer], quick: bool, folder: Path) -> tuple[list[Stage], dict[str, list[str]]]:
    """Fills the stores of the peers one after the other. Returns the stages and the failures."""
    say = Progress()
    stages: list[Stage] = []
    failures: dict[str, list[str]] = {}
    for peer in peers:
        try:
            for stage in _fill(peer, QUICK_STAGES if quick else STAGES, folder, say):
                stages.append(stage)
        except PeerError as failure:
            failures[peer.name] = [str(failure)]
            print(f"{peer.label} failed: {failure}", file=sys.stderr)
        finally:
            peer.stop()
    say.end()
    return stages, failures


def _fill(peer: Peer, stages: Sequence[int], folder: Path, say: Progress) -> list[Stage]:
    memory = max(LEAST_MEMORY, stages[-1] * MEMORY_AN_OBJECT)
    peer.start(folder / peer.name, memory, peer.touched_as_needed)
    clients = {number: peer.client(number) for number in range(FILLERS)}
    before = resident(peer.pid)
    done, results = 0, []
    for stage in stages:
        say(f"{peer.label}: {stage:,} objects")
        begin = time.monotonic()
        _put(clients, done, stage)
        rate = (stage - done) / (time.monotonic() - begin)
        done = stage
        time.sleep(SETTLE)
        grown = {kind: (size - before[kind]) / stage for kind, size in resident(peer.pid).items()}
        some = min(LOOKED_AT, stage)
        looked_at: dict[str, Any] = {"size": SIZE, "owner": 0, "calls": some}
        looked_at["numbers"] = (0, some, max(1, stage // some))
        get = clients[0].ask("measure", operation="get", **looked_at)["ns"]
        contains = clients[0].ask("measure", operation="contains", **looked_at)["ns"]
        segments = grown["segments"] - SIZE if grown["segments"] else 0
        own = grown["own"] - (0 if grown["segments"] else SIZE)
        results.append(
            Stage(
                peer=peer.name,
                objects=stage,
                size=SIZE,
                put_per_s=round(rate),
                get_median_us=statistics.median(get) / 1e3,
                get_p99_us=percentile(get, 0.99) / 1e3,
                contains_median_us=statistics.median(contains) / 1e3,
                bytes_per_object=round(sum(grown.values()) - SIZE, 1),
                segments_per_object=round(segments, 1),
                tables_per_object=round(grown["tables"], 1),
                own_per_object=round(own, 1),
            )
        )
    for client in clients.values():
        client.close()
    return results


def _put(clients: dict[int, Worker], first: int, end: int) -> None:
    """Puts the objects of these numbers, by all clients at the same time."""
    while first < end:
        share = min(CHUNK, -(-(end - first) // len(clients)))
        requests = {}
        for number in clients:
            count = min(share, end - first)
            requests[number] = {
                "operation": "put_many",
                "size": SIZE,
                "owner": 0,
                "numbers": (first, count),
                "batch": BATCH,
            }
            first += count
        ask_all(clients, "measure", requests)


def resident(pid: int) -> dict[str, int]:
    """Memory of a process in bytes, by purpose."""
    sizes = defaultdict(int, segments=0, tables=0, own=0)
    kind = "own"
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if mapping := _MAPPING.match(line):
            name = mapping[1]
            kind = "own"
            if name.startswith("/memfd:plasmon"):
                kind = "segments" if name.startswith("/memfd:plasmon-segment") else "tables"
        elif field := _RESIDENT.match(line):
            sizes[kind] += int(field[2]) * 1024
    return sizes
