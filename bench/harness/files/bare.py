"""Reads of libfabric without a store, by as many processes as read files."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.cpu import Spent
from harness.files.figures import OTHER, RATE, TIME, Collected, Task
from harness.network import Host
from harness.processes import ask_all
from harness.remote.contenders import Way
from harness.remote.others import Fabric

NAME, LABEL = "fabric", "libfabric, no store"
READ = "read"
_MIB = 1 << 20
_OPERATIONS = ("read_asleep_places", "read_chunks_asleep_places")
"""Ways to read, of which the fastest counts. Both sides sleep while they wait, as nodes do."""
_PLACES = 64
_HEAD_START = 150_000_000
_ANY = Way("")


class Bare:
    """Server on the holder, and readers on another host."""

    def __init__(self, hosts: Sequence[Host], folder: Path, provider: str) -> None:
        self._fabric = Fabric()
        self._fabric.provider = provider
        self._fabric.start(hosts, folder, 0)

    def rate(self, part: str, processes: int, seconds: float, collected: Collected) -> None:
        """Measures how fast so many processes read, together."""
        measured = [self._rate(operation, processes, seconds) for operation in _OPERATIONS]
        best, spent, moved = max(measured, key=lambda one: one[0])
        task = Task(part, NAME, READ, OTHER, processes, _MIB, RATE)
        collected.add(task, best)
        collected.spend(task, spent, moved)

    def latency(self, part: str, size: int, seconds: float, collected: Collected) -> None:
        """Measures how long one read takes."""
        worker = self._fabric.getter(_ANY, 0)
        work = {"operation": _OPERATIONS[0], "size": size, "owner": 0, "numbers": (0, _PLACES)}
        before = Spent.until_now()
        ns = worker.ask("measure", **work, calls=100_000, seconds=seconds)["ns"]
        task = Task(part, NAME, READ, OTHER, 1, size, TIME)
        collected.spend(task, Spent.until_now() - before, len(ns))
        collected.add(task, statistics.median(ns) / 1e3)

    def close(self) -> None:
        """Ends all processes."""
        self._fabric.close()

    def _rate(self, operation: str, processes: int, seconds: float) -> tuple[float, Spent, float]:
        """Rate in MB/s, what the machine spent, and the MB that were read."""
        workers = {number: self._fabric.getter(_ANY, number) for number in range(processes)}
        work: dict[str, Any] = {
            "operation": operation,
            "size": _MIB,
            "owner": 0,
            "numbers": (0, _PLACES),
            "seconds": seconds,
        }
        # The first reads make the memory, which takes longer than a head start.
        ask_all(workers, "measure", {number: {**work, "calls": 2} for number in workers})
        start = time.monotonic_ns() + _HEAD_START
        before = Spent.until_now()
        answers = ask_all(workers, "sustain", {number: {**work, "start": start} for number in workers})
        spent = Spent.until_now() - before
        calls: int = sum(answer["calls"] for answer in answers.values())
        last: int = max(answer["ns"] for answer in answers.values())
        moved = calls * _MIB / 1e6
        return moved / (last / 1e9), spent, moved
