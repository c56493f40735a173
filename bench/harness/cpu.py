"""CPU time of processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
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
