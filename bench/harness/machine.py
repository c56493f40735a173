"""Machine on which the figures were measured."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """Describes the machine, and its load before the run."""
    cpus = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in cpus if line.startswith("model name")]
    huge = Path("/sys/kernel/mm/transparent_hugepage")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "huge_pages": _field("HugePages_Total"),
        "transparent_huge_pages": _chosen(huge / "enabled"),
        "transparent_huge_pages_shared": _chosen(huge / "shmem_enabled"),
        "python": platform.python_version(),
        "idle": _idle(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def available() -> int:
    """Available memory in bytes."""
    return _field("MemAvailable") * 1024


def _idle() -> str:
    """Tells how long idle cores of a virtual machine look for work: to halt at once makes a wake-up dear."""
    polled = Path("/sys/module/haltpoll/parameters/guest_halt_poll_ns")
    governor = Path("/sys/devices/system/cpu/cpuidle/current_governor")
    if not polled.exists() or not governor.exists() or governor.read_text().strip() != "haltpoll":
        return ""
    return f"Idle cores look for work for {polled.read_text().strip()} ns before they halt."


def _field(name: str) -> int:
    """Number in /proc/meminfo."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, value = line.split(":")
        if key == name:
            return int(value.split()[0])
    return 0


def _chosen(path: Path) -> str:
    """Word in brackets."""
    return path.read_text().partition("[")[2].partition("]")[0] if path.exists() else "none"
