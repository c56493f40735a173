"""Where things are. The environment says what differs from a checkout in which everything was built."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "bench"
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
RDMA_PAGE = ROOT / "docs" / "rdma.md"
SCALE_PAGE = ROOT / "docs" / "scale.md"
IMAGES = ROOT / "docs" / "img"
WORKER = ROOT / "bench" / "workers" / "worker.py"


def plasmon_python() -> Path:
    """The interpreter that has the `plasmon` package: `$PLASMON_PYTHON`, else that of `.venv`."""
    return Path(os.environ.get("PLASMON_PYTHON") or ROOT / ".venv" / "bin" / "python")


def plasmon() -> Path:
    """The `plasmon` program: `$PLASMON_BIN`, else the one beside the interpreter."""
    return Path(os.environ.get("PLASMON_BIN") or plasmon_python().with_name("plasmon"))


def rust_worker() -> Path:
    """The worker in Rust: `$PLASMON_BENCH`, else where cargo leaves it."""
    return Path(os.environ.get("PLASMON_BENCH") or ROOT / "target" / "release" / "plasmon-bench")


def fabric_worker() -> Path:
    """The worker that reads through libfabric; cargo leaves it beside the other."""
    return rust_worker().with_name("plasmon-bench-fabric")


def scale_worker() -> Path:
    """What simulates large clusters; cargo leaves it there as well."""
    return rust_worker().with_name("plasmon-bench-scale")


def guest() -> Path:
    """What boots virtual machines with an RDMA device: `$PLASMON_GUEST_BIN`, else where cargo leaves it."""
    return Path(os.environ.get("PLASMON_GUEST_BIN") or ROOT / "target" / "debug" / "plasmon-e2e-guest")


def not_installed(peer: str) -> str | None:
    """Why `scripts/bench-setup.sh` could not install a peer."""
    reason = CACHE / f"{peer}.missing"
    return reason.read_text().strip() if reason.exists() else None
