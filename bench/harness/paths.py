"""Paths of programs. Environment variables replace those of a checkout in which everything was built."""

from __future__ import annotations

import os
from dataclasses import dataclass
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
    """Interpreter that has the `plasmon` package: `$PLASMON_PYTHON`, else that of `.venv`."""
    return Path(os.environ.get("PLASMON_PYTHON") or ROOT / ".venv" / "bin" / "python")


def plasmon() -> Path:
    """Program `plasmon`: `$PLASMON_BIN`, else the one beside the interpreter."""
    return Path(os.environ.get("PLASMON_BIN") or plasmon_python().with_name("plasmon"))


def rust_worker() -> Path:
    """Worker in Rust: `$PLASMON_BENCH`, else in cargo's folder."""
    return Path(os.environ.get("PLASMON_BENCH") or ROOT / "target" / "release" / "plasmon-bench")


def fabric_worker() -> Path:
    """Worker that reads through libfabric, beside the worker in Rust."""
    return rust_worker().with_name("plasmon-bench-fabric")


def tonic_worker() -> Path:
    """Program that calls functions by tonic: where `scripts/bench-setup.sh` installs it."""
    return CACHE / "bin" / "plasmon-bench-tonic"


def scale_worker() -> Path:
    """Program that simulates large clusters, beside the worker in Rust."""
    return rust_worker().with_name("plasmon-bench-scale")


def guest() -> Path:
    """Program that boots virtual machines: `$PLASMON_GUEST_BIN`, else in cargo's folder."""
    return Path(os.environ.get("PLASMON_GUEST_BIN") or ROOT / "target" / "checked" / "plasmon-e2e-guest")


def not_installed(peer: str) -> str | None:
    """Reason why `scripts/bench-setup.sh` could not install a peer."""
    reason = CACHE / f"{peer}.missing"
    return reason.read_text().strip() if reason.exists() else None


@dataclass(frozen=True)
class Build:
    """Programs and package of one version of Plasmon."""

    python: Path
    plasmon: Path
    rust_worker: Path
    worker: Path
    mark: str = ""
    """Text behind the names of what is measured with this build."""


def own(mark: str = "") -> Build:
    """Build of this checkout."""
    return Build(plasmon_python(), plasmon(), rust_worker(), WORKER, mark)


def built_in(checkout: Path, mark: str) -> Build:
    """Build of another checkout, made there by `make build` and the benchmarks.

    The Python worker is this checkout's: that of an earlier one may not have all operations.
    """
    programs = checkout / ".venv" / "bin"
    rust_worker = checkout / "target" / "release" / "plasmon-bench"
    return Build(programs / "python", programs / "plasmon", rust_worker, WORKER, mark)
