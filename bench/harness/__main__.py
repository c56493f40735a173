"""Command line, `python -m harness COMMAND`, which the targets of the Makefile call."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from harness import (
    broadcast,
    compare,
    figures,
    heal,
    local,
    machine,
    mpi,
    objects,
    paths,
    peers,
    python,
    scale,
)
from harness.choosing import choose
from harness.files import command as files
from harness.remote import command as remote
from harness.remote import growth
from harness.tier import command as tier

FILLED = ("plasmon-python", "plasmon-rust", "redis")
"""Peers that take millions of objects in an acceptable time."""


def main() -> int:
    """Runs the command."""
    # SIGTERM ends the harness as Ctrl-C does: it ends its processes and keeps the figures.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    arguments = parser().parse_args()
    if arguments.command == "report":
        from harness import report  # Only here is matplotlib needed, which takes its time.

        report.make()
        return 0
    if arguments.command == "rdma":
        from harness import rdma as registration  # As above.

        return registration.run(arguments.results)
    if arguments.command == "compare":
        return compare.run(arguments.base, arguments.quick, arguments.only, arguments.results)
    if arguments.results is None:
        quick = arguments.quick
        arguments.results = Path(tempfile.mkdtemp(prefix="bench-")) if quick else paths.RESULTS
    if arguments.command == "scale":
        return scale.run(arguments.quick, arguments.results)
    return measure(arguments)


def parser() -> argparse.ArgumentParser:
    """Makes the parser of the command line."""
    whole = argparse.ArgumentParser(prog="harness", description="Plasmon's benchmarks.")
    commands = whole.add_subparsers(dest="command", required=True)
    for name, text in (
        ("local", "stores of one host, side by side"),
        ("objects", "millions of small objects in one store"),
        ("remote", "gets of what is on another host, side by side"),
        ("growth", "how the cost of such gets grows with objects, nodes and getters"),
        ("mpi", "gets of what other ranks have put, under mpirun"),
        ("heal", "what the death of a node costs the others"),
        ("broadcast", "one object to many nodes, by a broadcast and by gets"),
        ("python", "values of Python's libraries, with Plasmon and without"),
        ("tier", "regions, beside the machine, the network and Redis"),
        ("files", "files on volumes, beside MooseFS, JuiceFS and memory"),
    ):
        add_options(commands.add_parser(name, help=text), name)
    rdma = commands.add_parser(
        "rdma", help="what registering memory costs, in a virtual machine with Soft-RoCE"
    )
    rdma.add_argument("--results", type=Path, default=paths.RESULTS, help="where the CSV goes")
    change = commands.add_parser("compare", help="this build beside another, in turn")
    change.add_argument("base", type=Path, help="checkout of the other build")
    change.add_argument("--quick", action="store_true", help="see that it works; the figures are no good")
    change.add_argument("--only", choices=("local", "remote"), help="the rows of one benchmark")
    change.add_argument("--results", type=Path, default=paths.CACHE, help="where the CSV goes")
    simulation = commands.add_parser("scale", help="what large clusters cost, by simulation")
    simulation.add_argument("--quick", action="store_true", help="see that it works; the figures are no good")
    simulation.add_argument("--results", type=Path, help="where the CSV goes")
    commands.add_parser("report", help="tables and plots, from what was measured last")
    return whole


def add_options(command: argparse.ArgumentParser, name: str) -> None:
    """Adds the options of the benchmark `name`."""
    command.add_argument("--quick", action="store_true", help="see that it works; the figures are no good")
    if name == "remote":
        command.add_argument("--minutes", type=float, help="for the rounds, instead of ten")
        command.add_argument(
            "--only", choices=remote.PARTS, help="a part; the other figures stay those of the last run"
        )
    if parts := {"tier": tier.PARTS, "files": files.PARTS}.get(name):
        command.add_argument(
            "--only",
            nargs="+",
            choices=parts,
            default=list(parts),
            help="parts; the other figures stay those of the last run",
        )
    if name == "growth":
        command.add_argument("--million", action="store_true", help="up to a million objects")
    elif name == "mpi":
        command.add_argument("--ranks", type=int, default=4, help="2 or more (default: 4)")
        command.add_argument("--sizes", nargs="+", type=int, default=[], metavar="BYTES")
        command.add_argument("--batch", type=int, default=mpi.BATCH, help="objects of a rank and round")
    elif name not in ("heal", "broadcast", "python", "tier", "files"):
        command.add_argument("--peers", nargs="+", metavar="PEER", help="only these")
    command.add_argument(
        "--results",
        type=Path,
        help="where the CSV goes (default: bench/results, or a temporary folder with --quick)",
    )


def measure(arguments: argparse.Namespace) -> int:
    """Runs the benchmark that was named."""
    if arguments.command == "remote" and arguments.only:
        return remote.run_part(arguments.only, arguments.quick, arguments.results)
    if arguments.command == "remote":
        return remote.run(arguments.peers, arguments.quick, arguments.minutes, arguments.results)
    if arguments.command == "growth":
        return growth.run(arguments.quick, arguments.million, arguments.results)
    if arguments.command == "broadcast":
        return broadcast.run(arguments.quick, arguments.results)
    if arguments.command == "tier":
        return tier.run(arguments.quick, arguments.results, arguments.only)
    if arguments.command == "files":
        return files.run(arguments.quick, arguments.results, arguments.only)
    if arguments.command == "python":
        return python.run(arguments.quick, arguments.results)
    if arguments.command == "mpi":
        sizes, batch = arguments.sizes, arguments.batch
        return mpi.run(arguments.ranks, arguments.quick, sizes, batch, arguments.results)
    if arguments.command == "heal":
        return heal.run(arguments.quick, arguments.results)
    return run(arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measures, and writes the figures and the description of the run."""
    name: str = arguments.command
    results: Path = arguments.results
    chosen, missing = choose(
        arguments.peers, (kind() for kind in peers.ALL if name == "local" or kind.name in FILLED)
    )
    description: dict[str, Any] = machine.describe()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if name == "local":
            plan = local.QUICK if arguments.quick else local.FULL
            rows, failures, versions = local.measure(chosen, plan, Path(folder))
            description |= {"store_bytes": plan.memory, "versions": versions}
            keep = partial(local.LOCAL.keep, results, figures.ordered(rows))
        else:
            stages, failures = objects.measure(chosen, arguments.quick, Path(folder))
            keep = partial(objects.OBJECTS.keep, results, stages)
    description |= {
        "quick": arguments.quick,
        "seconds": round(time.monotonic() - begin),
        "missing": missing,
        "failures": failures,
        "plasmon": {peer.name: peer.facts for peer in chosen if peer.facts},
    }
    keep(description)
    print(f"Measured in {description['seconds']} s: {results / name}.csv", file=sys.stderr)
    return 1 if any(failed.startswith("plasmon") for failed in failures) else 0


if __name__ == "__main__":
    sys.exit(main())
