"""Time that processors have spent on processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

_CPU_CLOCK_OF_A_PROCESS = 2
"""What `clock_getcpuclockid` puts beside the process id: CPUCLOCK_SCHED, of all its threads."""


def seconds(pids: Iterable[int]) -> float:
    """What these processes have spent, in user and system together, threads that have ended included.

    The clock counts nanoseconds; /proc/PID/stat has the same in hundredths of a second.
    """
    total = 0.0
    for pid in pids:
        try:
            total += time.clock_gettime_ns((~pid << 3) | _CPU_CLOCK_OF_A_PROCESS) / 1e9
        except OSError:
            continue  # It has ended.
    return total


def family(pid: int) -> list[int]:
    """A process and all its descendants, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            # The name, in parentheses, may hold anything.
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid] if os.path.exists(f"/proc/{pid}") else []
    for process in found:
        found += children.get(process, [])
    return found
