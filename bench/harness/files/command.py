"""`make bench-files`: measures files on volumes, and what they are held against."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness import machine, paths
from harness.files import bare, fio, project
from harness.files import run as running
from harness.files.bare import Bare
from harness.files.figures import FILES, Collected, Figure, ordered
from harness.files.others import JuiceFs, MooseFs
from harness.files.run import CROWD, FAR, NAMES, NEAR, RANDOM, SHAPES, SMALL, Plan, Run
from harness.files.stores import (
    HOLDER,
    TWICE,
    USER,
    Null,
    OneView,
    Plasmon,
    Store,
    Tmpfs,
    alone,
    places,
    plasmon,
    twice,
)
from harness.files.workers import Team
from harness.network import Host, Network
from harness.peers import absent
from harness.processes import PeerError
from harness.progress import Progress

PARTS = (FAR, NEAR, SHAPES, RANDOM, NAMES, SMALL, fio.FIO, project.PROJECT, CROWD)
_CROWD_ROUNDS = 3
_PROJECT_ROUNDS = 2
_CROWD = (1, 2, 3, 4)
"""Hosts that use what one stores."""
_TWO_HOSTS = set(PARTS) - {CROWD}


def run(quick: bool, results: Path, only: Collection[str] = PARTS) -> int:
    """Measures, and writes the figures and the description of the run, even if it is interrupted.

    If only some parts are measured, the figures of the others stay those of the last run.
    """
    if reason := missing():
        raise SystemExit(f"nothing can be measured: {reason}")
    plan = running.QUICK if quick else running.FULL
    measured = Measured(plan, quick, only)
    begin, whole = time.monotonic(), False
    alone()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            if _TWO_HOSTS.intersection(only):
                measured.on_two_hosts(Path(name) / "two")
            if CROWD in only:
                measured.on_five_hosts(Path(name) / "five")
        whole = True
    except (PeerError, OSError) as failure:
        measured.failures.setdefault("plasmon", []).append(str(failure))
    except KeyboardInterrupt:
        print("\nEnded before its time; what was measured until now is kept.", file=sys.stderr)
    finally:
        measured.say.end()
    described = measured.described | {
        "whole": whole,
        "seconds": round(time.monotonic() - begin),
        "failures": measured.failures,
        "across": measured.across,
    }
    return keep(results, measured.collected.figures(), described, only)


def keep(results: Path, figures: Sequence[Figure], described: dict[str, Any], only: Collection[str]) -> int:
    """Writes what was measured, and says what failed. Returns the exit code."""
    for store, reasons in described["failures"].items():
        print(f"{store} failed {len(reasons)} times, first: {reasons[0]}", file=sys.stderr)
    if not figures:
        print("Nothing was measured.", file=sys.stderr)
        return 1
    if set(only) == set(PARTS) or FILES.last() is None:
        FILES.keep(results, ordered(figures), described)
    else:
        parts = {one.part for one in figures}
        FILES.renew(
            *(results, ", ".join(only), figures, described),
            is_part=lambda one: one.part in parts,
            ordered=ordered,
            is_of_part=lambda failure: failure.partition(",")[0] in parts,
        )
    print(f"Measured in {described['seconds']} s: {results}/files.csv", file=sys.stderr)
    for one in described["across"]:
        print(f"IMPOSSIBLE, and left out: {one}", file=sys.stderr)
    own = [store for store in described["failures"] if store.startswith(("plasmon", "tmpfs", "null"))]
    return 0 if described["whole"] and not own and not described["across"] else 1


def missing() -> str | None:
    """Reason why nothing can be measured here, or `None`."""
    needed = (paths.plasmon(), paths.rust_worker())
    if reason := next(filter(None, (absent(path, "make bench-files") for path in needed)), None):
        return reason
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "mounts take root and /dev/fuse"
    with Network(1) as network:
        return network.why_not and f"hosts of their own take network namespaces: {network.why_not}"


class Measured:
    """Results of the run so far, and reasons for those that are missing."""

    def __init__(self, plan: Plan, quick: bool, only: Collection[str]) -> None:
        self.say = Progress()
        self.collected = Collected()
        self.failures: dict[str, list[str]] = {}
        self.across: list[str] = []
        self.described: dict[str, Any] = machine.describe() | {
            "quick": quick,
            "missing": {},
            "labels": {bare.NAME: bare.LABEL},
            "versions": {},
            "places": places(),
            "store_bytes": plan.memory,
        }
        self._plan, self._only = plan, only

    def on_two_hosts(self, folder: Path) -> None:
        """Measures all parts but the crowd."""
        own = plasmon()
        socket = plasmon("plasmon-socket", "Plasmon, socket", ["--protocol", "socket"])
        near: list[Store] = [Tmpfs(), Null()]
        with ExitStack() as ends:
            hosts = self._hosts(2, folder, ends)
            stores = self._started(
                [own, twice(own), socket, MooseFs(), JuiceFs(), *near], hosts, folder, ends
            )
            team = Team(folder, self._plan.head_start)
            ends.callback(team.close)
            run = Run(stores, hosts, self._plan, team, self.collected, self.say)
            try:
                self._parts(run, stores, hosts, folder, ends)
            finally:
                self._take(run, stores)

    def on_five_hosts(self, folder: Path) -> None:
        """Measures four hosts that use what a fifth stores."""
        with ExitStack() as ends:
            hosts = self._hosts(1 + len(_CROWD), folder, ends)
            stores = self._started([plasmon(), MooseFs(), JuiceFs()], hosts, folder, ends)
            team = Team(folder, self._plan.head_start)
            ends.callback(team.close)
            run = Run(stores, hosts, self._plan, team, self.collected, self.say)
            try:
                for number in range(min(_CROWD_ROUNDS, self._plan.rounds)):
                    run.far(CROWD, _CROWD, [len(_CROWD)], number)
            finally:
                self._take(run, stores)

    def _hosts(self, count: int, folder: Path, ends: ExitStack) -> Sequence[Host]:
        folder.mkdir(parents=True)
        network = ends.enter_context(Network(count))
        self.described["network"] = network.description
        return [OneView(host.address, host.namespace) for host in network.hosts]

    def _started(
        self, stores: Sequence[Store], hosts: Sequence[Host], folder: Path, ends: ExitStack
    ) -> list[Store]:
        """Starts the stores. Returns those that could be started, and keeps the reason of the others."""
        started = []
        for store in stores:
            self.described["labels"][store.name] = store.label
            if reason := store.missing():
                self.described["missing"][store.name] = reason
                self.say(f"{store.label} is not measured: {reason}\n")
                continue
            self.say(f"starting {store.label}")
            ends.callback(store.close)
            try:
                store.start(hosts, folder / store.name, self._plan.memory)
            except (PeerError, OSError) as failure:
                # Volumes have their names on one node until a node can mirror them.
                where = self.described["missing"] if store.name.endswith(TWICE) else None
                if where is None:
                    self.failures.setdefault(store.name, []).append(str(failure))
                else:
                    where[store.name] = str(failure)
                continue
            started.append(store)
        return started

    def _take(self, run: Run, stores: Sequence[Store]) -> None:
        for name, reasons in run.failures.items():
            self.failures.setdefault(name, []).extend(reasons)
        self.across += run.across
        self.described["versions"] |= {one.label: one.version for one in stores if one.version}

    def _parts(
        self, run: Run, stores: Sequence[Store], hosts: Sequence[Host], folder: Path, ends: ExitStack
    ) -> None:
        plan, only = self._plan, self._only
        own = next((store for store in stores if isinstance(store, Plasmon)), None)
        if own is None:
            raise PeerError("no node of Plasmon could be started")
        self.described["facts"] = own.facts
        fabric = self._bare(own, hosts, folder / "fabric", ends) if {FAR, RANDOM} & set(only) else None
        for number in range(plan.rounds):
            if FAR in only:
                run.far(FAR, [USER], plan.processes, number)
                if fabric is not None:
                    for count in plan.processes:
                        fabric.rate(FAR, count, min(0.5, plan.seconds), self.collected)
            if NEAR in only:
                run.own(number, (own.name, "tmpfs", "null"))
        for number in range(plan.further):
            if SHAPES in only:
                run.shapes(number)
            if RANDOM in only:
                run.random(number, ("tmpfs", "null"))
                if fabric is not None:
                    for block, _ in plan.random:
                        fabric.latency(RANDOM, block, min(0.5, plan.seconds), self.collected)
            if NAMES in only:
                run.names(number)
            if SMALL in only:
                run.small(number)
            if fio.FIO in only:
                self._fio(run, stores, hosts, number)
        if project.PROJECT in only:
            self._project(run, stores)

    def _bare(self, own: Plasmon, hosts: Sequence[Host], folder: Path, ends: ExitStack) -> Bare | None:
        try:
            fabric = Bare((hosts[HOLDER], hosts[USER]), folder, own.facts["provider"])
        except (PeerError, OSError) as failure:
            self.failures.setdefault(bare.NAME, []).append(str(failure))
            return None
        ends.callback(fabric.close)
        return fabric

    def _fio(self, run: Run, stores: Sequence[Store], hosts: Sequence[Host], number: int) -> None:
        if reason := fio.missing():
            self.described["missing"][fio.FIO] = reason
            return
        measured = [store for store in stores if running.is_whole(store) and store.name != "null"]
        fio.measure(run, measured, hosts, number, self.collected)

    def _project(self, run: Run, stores: Sequence[Store]) -> None:
        if reason := project.missing():
            self.described["missing"][project.PROJECT] = reason
            return
        builders = [store for store in stores if store.name in ("plasmon", "moosefs", "juicefs", "tmpfs")]
        project.measure(run, builders, min(_PROJECT_ROUNDS, self._plan.rounds), self.collected)
