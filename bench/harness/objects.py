"""`make bench-objects`: one store that fills with small objects.

At every stage some of all objects are got, in an order that no cache foresees, and the memory of the
server is looked at. The memory an object costs is that of the whole server process, shared or not, over that
of the empty store, divided by the objects. For Plasmon, the daemon then does not touch its memory beforehand.
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
"""Bytes of the store for each object: enough for what any of the peers takes."""
LEAST_MEMORY = 1 << 30
FILLERS = 2
BATCH = 64
CHUNK = 100_000
"""Objects that a filler puts in one request."""
LOOKED_AT = 10_000
SETTLE = 2.0
"""Seconds after the last put until memory is looked at: a daemon may still be cleaning up."""

_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)$")
_RESIDENT = re.compile(r"^(Rss|Private_Hugetlb|Shared_Hugetlb): +(\d+) kB$")


@dataclass(frozen=True)
class Stage:
    """A store with as many objects."""

    peer: str
    objects: int
    size: int
    """Bytes of an object."""
    put_per_s: float
    """While they came, in batches, from a few clients."""
    get_median_us: float
    get_p99_us: float
    contains_median_us: float
    bytes_per_object: float
    """Of the server's memory, beside the object's own."""
    segments_per_object: float
    """Of that: in the memory for objects, if the server tells it apart."""
    tables_per_object: float
    """Of that: in other shared memory, as the object table."""
    own_per_object: float
    """Of that: memory of the server alone, as the directory."""


OBJECTS = Series("objects", Stage)


def measure(peers: Sequence[Peer], quick: bool, folder: Path) -> tuple[list[Stage], dict[str, list[str]]]:
    """Fills the store of one peer after the other; the stages, and what failed."""
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
    """Puts the objects of these numbers, by all clients at a time."""
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
    """Bytes of memory that a process has in use, by what they are for."""
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
