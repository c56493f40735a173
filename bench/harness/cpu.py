"""CPU time of processes, and what the whole machine spends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_CPU_CLOCK_OF_A_PROCESS = 2
"""Bits that `clock_getcpuclockid` adds to the process id: CPUCLOCK_SCHED, of all its threads."""


def seconds(pids: Iterable[int]) -> float:
    """CPU time of these processes, user and system together, including threads that have ended.

    The clock counts nanoseconds, while /proc/PID/stat has hundredths of a second.
    """
    total = 0.0
    for pid in pids:
        try:
            total += time.clock_gettime_ns((~pid << 3) | _CPU_CLOCK_OF_A_PROCESS) / 1e9
        except OSError:
            continue  # It has ended.
    return total


def family(pid: int) -> list[int]:
    """Lists a process and all its descendants, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            # The name, in parentheses, may hold any character.
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid] if os.path.exists(f"/proc/{pid}") else []
    for process in found:
        found += children.get(process, [])
    return found


@dataclass(frozen=True)
class Spent:
    """Time and switches that all cores of this machine spend, for any process."""

    core_seconds: float
    """Time in which cores do not idle, to a hundredth of a second a core."""
    switches: int
    """Number of times that a core goes on with another thread."""

    @classmethod
    def until_now(cls) -> Spent:
        """Counts from the start of the machine."""
        lines = dict(line.split(" ", 1) for line in Path("/proc/stat").read_text().splitlines())
        user, nice, system, _idle, _waiting, interrupt, late = map(int, lines["cpu"].split()[:7])
        ticks = user + nice + system + interrupt + late
        return cls(ticks / os.sysconf("SC_CLK_TCK"), int(lines["ctxt"]))

    def __sub__(self, before: Spent) -> Spent:
        return Spent(self.core_seconds - before.core_seconds, self.switches - before.switches)
