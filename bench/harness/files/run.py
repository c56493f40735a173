"""Rounds of a measurement: all stores take turns in each case, and each round begins with another one.

Before reads that are to be first touches, mounts are renewed, with which the kernel's pages and names of them
go, and replicas on other nodes are evicted. If a host receives fewer bytes than it reads, the figure is left
out and the run fails.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from harness.files.figures import OPERATIONS, OTHER, OWN, RATE, TIME, Collected, Task
from harness.files.stores import HOLDER, TWICE, USER, Store, received
from harness.files.workers import Span, Team
from harness.network import Host
from harness.processes import PeerError
from harness.progress import Progress

KIB, MIB = 1 << 10, 1 << 20
FAR, NEAR, SHAPES, RANDOM, NAMES, SMALL = "far", "own", "shapes", "random", "names", "small"
CROWD = "crowd"
"""Parts of the measurement."""
WRITE, READ, DIRECT, SHARED = "write", "read", "direct read", "shared"
FIRST, ANY = "first touch", "random read"
UNALIGNED = ", unaligned"
_FIRST = 100
"""Number of reads at random that count as first touches: hardly two of them are of the same object."""
_SMALL = 4_000
"""Bytes of a small file."""
_TURN = "turn-"
"""Beginning of the names of folders."""
_TRIES = 2
"""Number of failed turns of a part after which a store is left out of it."""
_SHARERS = 4
"""Number of processes that use one file."""


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    rounds: int
    further: int
    """Rounds of shapes, reads at random, names, small files and fio."""
    total: int
    """Bytes of all files of a turn together."""
    processes: Sequence[int]
    names: int
    """Files of all processes of a turn together."""
    small: int
    """Small files of a turn."""
    blocks: Sequence[int]
    """Bytes in a call, where they differ from 1 MiB."""
    random: Sequence[tuple[int, int]]
    """Bytes in a call at random, and number of calls."""
    seconds: float
    """Longest time of reads at random, and of bare reads."""
    memory: int
    """Bytes that each store may take."""
    head_start: float
    """Time in seconds from a request to the start."""


FULL = Plan(
    rounds=3,
    further=3,
    total=256 * MIB,
    processes=(1, 2, 4, 8),
    names=2_000,
    small=1_000,
    blocks=(4 * KIB, 64 * KIB, 4 * MIB),
    random=((4 * KIB, 10_000), (64 * KIB, 1_000), (MIB, 128)),
    seconds=8.0,
    memory=512 * MIB,
    head_start=0.2,
)
QUICK = Plan(
    rounds=1,
    further=1,
    total=8 * MIB,
    processes=(1, 2),
    names=20,
    small=10,
    blocks=(4 * KIB,),
    random=((4 * KIB, 200),),
    seconds=0.2,
    memory=128 * MIB,
    head_start=0.5,
)


class AcrossError(PeerError):
    """Error of a read that should have come from another host, and did not."""


class Wire:
    """Counter of the bytes that hosts receive from others, from the time when this is made."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._before = {host: received(host) for host in hosts}

    def check(self, size: int) -> None:
        """Checks that as many bytes came as were read.

        Raises:
            AcrossError: They did not.
        """
        came = sum(received(host) - before for host, before in self._before.items())
        if came < size:
            raise AcrossError(f"{size:,} bytes were read, and {came:,} came from another host")


class Run:
    """Turns of stores on some hosts."""

    def __init__(
        self,
        stores: Sequence[Store],
        hosts: Sequence[Host],
        plan: Plan,
        team: Team,
        collected: Collected,
        say: Progress,
    ) -> None:
        self.plan = plan
        self.failures: dict[str, list[str]] = {}
        self.across: list[str] = []
        """Reads that did not come from another host."""
        self._stores = list(stores)
        self._hosts, self._team, self._collected, self._say = hosts, team, collected, say
        self._failed: Counter[tuple[str, str]] = Counter()
        self._next = 0

    def far(self, part: str, users: Sequence[int], processes: Sequence[int], number: int) -> None:
        """Writes from other hosts, and reads there, files of each process in order."""
        for count in processes:
            at = [users[process % len(users)] for process in range(count)]
            for store in self._far(number):
                self.turn(store, part, f"{count} processes", partial(self._in_order, store, part, at))

    def own(self, number: int, stores: Sequence[str]) -> None:
        """Writes and reads files of each process in order, on the host that stores."""
        for count in self.plan.processes:
            for store in self._rotated(number):
                if store.name in stores:
                    self.turn(store, NEAR, f"{count} processes", partial(self._near, store, count))

    def shapes(self, number: int) -> None:
        """Writes and reads in calls of other sizes, and one file by several processes, from another host."""
        for store in self._far(number):
            for block in self.plan.blocks:
                what = f"calls of {block:,} bytes"
                self.turn(store, SHAPES, what, partial(self._in_calls, store, block))
            self.turn(store, SHAPES, "one file", partial(self._shared, store))

    def random(self, number: int, near: Sequence[str]) -> None:
        """Reads one file at random, from another host; stores of these names on their own."""
        for store in self._rotated(number):
            if is_whole(store) and (store.far or store.name in near):
                self.turn(store, RANDOM, "reads at random", partial(self._at_random, store))

    def names(self, number: int) -> None:
        """Makes empty files, asks for their attributes and removes them."""
        for store in self._rotated(number):
            for where in (OWN, OTHER) if store.far else (OWN,):
                if store.name == "null":
                    continue
                for count in (self.plan.processes[0], self.plan.processes[-1]):
                    what = f"names, {where} host, {count} processes"
                    self.turn(store, NAMES, what, partial(self._names, store, where, count))

    def small(self, number: int) -> None:
        """Writes and reads small files whole."""
        for store in self._rotated(number):
            for where in (OWN, OTHER) if store.far else (OWN,):
                if store.name != "null":
                    self.turn(store, SMALL, f"{where} host", partial(self._small, store, where))

    def _rotated(self, number: int) -> Sequence[Store]:
        return rotated(self._stores, number)

    def _far(self, number: int) -> Iterator[Store]:
        return (store for store in self._rotated(number) if store.far and is_whole(store))

    def turn(self, store: Store, part: str, what: str, take: Callable[[], None]) -> None:
        """Takes a turn. A store that fails too often is left out of the part; the others go on."""
        if self._failed[store.name, part] >= _TRIES:
            return
        self._say(f"{part}: {store.label}, {what}")
        try:
            take()
            self._failed[store.name, part] = 0
        except (PeerError, OSError, subprocess.SubprocessError) as failure:
            self._failed[store.name, part] += 1
            if isinstance(failure, PeerError):
                # A worker among them may have been given up.
                self._team.renew()
            said = f"{part}, {what}: {failure}"
            if isinstance(failure, AcrossError):
                self.across.append(f"{store.name}: {said}")
            self.failures.setdefault(store.name, []).append(said)
            self._say(f"{store.label} failed: {said}\n")
            self._clear(store)

    def _clear(self, store: Store) -> None:
        """Removes what a failed turn has left, as far as that is possible."""
        try:
            left = [one for one in store.folder(HOLDER).iterdir() if one.name.startswith(_TURN)]
        except (PeerError, OSError):
            return
        for folder in left:
            shutil.rmtree(folder, ignore_errors=True)

    def _new(self, store: Store, at: int) -> str:
        """Name of a new folder, or nothing if the store has none."""
        self._next += 1
        if not store.folders:
            return ""
        name = f"{_TURN}{self._next}"
        (store.folder(at) / name).mkdir()
        return name

    def _remove(self, store: Store, at: int, name: str) -> None:
        folder = store.folder(at)
        if name:
            shutil.rmtree(folder / name)
        else:
            for file in list(folder.iterdir()):
                file.unlink()

    def _wire(self, users: Sequence[int]) -> Wire:
        return Wire([self._hosts[user] for user in sorted(set(users))])

    def _files(
        self, store: Store, name: str, at: Sequence[int], block: int = MIB, total: int | None = None
    ) -> list[Span]:
        """A file of each process, which uses it on the host that `at` has for it."""
        each = max(1, (total or self.plan.total) // len(at) // MIB) * MIB
        return [
            Span(
                str(store.folder(host) / name / f"file-{process}"),
                each,
                block,
                seed=self._next << 8 | process,
                check=store.checks,
            )
            for process, host in enumerate(at)
        ]

    def _in_order(self, store: Store, part: str, at: Sequence[int]) -> None:
        writers = at if store.writes_far else [HOLDER] * len(at)
        name = self._new(store, writers[0])
        task = Task(part, store.name, WRITE, OTHER, len(at), MIB, RATE)
        self._write_far(store, self._files(store, name, writers), task)
        store.forget()
        self._read_far(store, at, lambda: self._files(store, name, at), READ, task)
        self._remove(store, HOLDER, name)

    def _write_far(self, store: Store, files: Sequence[Span], task: Task) -> None:
        """Writes files. That counts where the bytes are stored on another host than that of the programs."""
        seconds = self._team.spans("write", files)
        if store.writes_far:
            self._add_rate(task, files, seconds)

    def _add_rate(self, task: Task, files: Sequence[Span], seconds: float) -> None:
        moved = sum(span.bytes for span in files) / 1e6
        self._collected.add(task, moved / seconds)
        self._collected.spend(task, self._team.spent, moved)

    def _read_far(
        self, store: Store, at: Sequence[int], files: Callable[[], list[Span]], operation: str, like: Task
    ) -> None:
        spans, wire = files(), self._wire(at)
        seconds = self._team.spans("read", spans)
        wire.check(sum(span.bytes for span in spans))
        task = Task(like.part, store.name, operation, OTHER, like.processes, like.size, RATE)
        self._add_rate(task, spans, seconds)

    def _near(self, store: Store, count: int) -> None:
        at = [HOLDER] * count
        for aligned in (False, True):
            name = self._new(store, HOLDER)
            files = [replace(span, aligned=aligned) for span in self._files(store, name, at)]
            suffix = "" if aligned else UNALIGNED
            self._add_near(store, WRITE + suffix, files, self._team.spans("write", files))
            for operation, direct in ((READ, False), (DIRECT, True)):
                store.forget()
                store.folder(HOLDER)
                again = [replace(span, direct=direct) for span in files]
                self._add_near(store, operation + suffix, files, self._team.spans("read", again))
            self._remove(store, HOLDER, name)

    def _add_near(self, store: Store, operation: str, files: Sequence[Span], seconds: float) -> None:
        task = Task(NEAR, store.name, operation, OWN, len(files), MIB, RATE)
        self._add_rate(task, files, seconds)

    def _in_calls(self, store: Store, block: int) -> None:
        at, total = [USER], self.plan.total // 4
        writers = at if store.writes_far else [HOLDER]
        name = self._new(store, writers[0])
        task = Task(SHAPES, store.name, WRITE, OTHER, 1, block, RATE)
        self._write_far(store, self._files(store, name, writers, block, total), task)
        store.forget()
        self._read_far(store, at, lambda: self._files(store, name, at, block, total), READ, task)
        self._remove(store, HOLDER, name)

    def _shared(self, store: Store) -> None:
        writer = USER if store.writes_far else HOLDER
        name = self._new(store, writer)
        (store.folder(writer) / name / "shared").touch()
        task = Task(SHAPES, store.name, f"{SHARED} {WRITE}", OTHER, _SHARERS, MIB, RATE)
        self._write_far(store, self._ranges(store, name, writer), task)
        store.forget()
        read = f"{SHARED} {READ}"
        self._read_far(store, [USER], lambda: self._ranges(store, name, USER), read, task)
        self._remove(store, HOLDER, name)

    def _ranges(self, store: Store, name: str, at: int) -> list[Span]:
        """A range of one file for each of some processes. The first is behind others' writes, too."""
        path = str(store.folder(at) / name / "shared")
        each = max(1, self.plan.total // _SHARERS // MIB) * MIB
        # No range begins with the file: whoever opens its begin for writing cuts it.
        return [
            Span(path, each, MIB, offset=MIB + process * each, seed=self._next, check=store.checks)
            for process in range(_SHARERS)
        ]

    def _at_random(self, store: Store) -> None:
        user = USER if store.far else HOLDER
        writer = USER if store.far and store.writes_far else HOLDER
        name = self._new(store, writer)
        self._team.spans("write", self._files(store, name, [writer]))
        for block, reads in self.plan.random:
            store.forget()
            [span] = self._files(store, name, [user], block)
            wire = self._wire([user])
            ns = self._team.random(span, reads, self.plan.seconds)
            if store.far:
                wire.check(len(ns) * block)
            for operation, some in ((FIRST, ns[:_FIRST]), (ANY, ns)):
                where = OTHER if store.far else OWN
                task = Task(RANDOM, store.name, operation, where, 1, block, TIME)
                self._collected.add(task, statistics.median(some) / 1e3)
            self._collected.spend(task, self._team.spent, len(ns))
        self._remove(store, HOLDER, name)

    def _names(self, store: Store, where: str, count: int) -> None:
        at = HOLDER if where == OWN else USER
        name, each = self._new(store, at), self.plan.names // count
        for process in range(count):
            (store.folder(at) / name / str(process)).mkdir()
        for operation in ("create", "stat", "unlink"):
            if operation == "stat":
                store.forget()
            seconds = self._on_names(store, at, name, operation, count, each, 0)
            task = Task(NAMES, store.name, operation, where, count, 0, OPERATIONS)
            self._collected.add(task, count * each / seconds)
            self._collected.spend(task, self._team.spent, count * each)
        self._remove(store, at, name)

    def _small(self, store: Store, where: str) -> None:
        at = HOLDER if where == OWN else USER
        name, each = self._new(store, at), self.plan.small
        (store.folder(at) / name / "0").mkdir()

        def work(operation: str, called: str) -> None:
            seconds = self._on_names(store, at, name, operation, 1, each, _SMALL)
            task = Task(SMALL, store.name, called, where, 1, _SMALL, OPERATIONS)
            self._collected.add(task, each / seconds)
            self._collected.spend(task, self._team.spent, each)

        work("store", WRITE)
        store.forget()
        store.folder(at)
        wire = self._wire([at])
        work("load", READ)
        if where == OTHER:
            wire.check(each * _SMALL)
        self._remove(store, at, name)

    def _on_names(
        self, store: Store, at: int, name: str, operation: str, count: int, each: int, size: int
    ) -> float:
        base: Path = store.folder(at) / name
        requests = [
            {"operation": operation, "folder": str(base / str(process)), "count": each, "bytes": size}
            for process in range(count)
        ]
        return self._team.together("names", requests)


def rotated(stores: Sequence[Store], number: int) -> Sequence[Store]:
    """Stores in the order of a round: each begins with another one."""
    first = number % max(1, len(stores))
    return [*stores[first:], *stores[:first]]


def is_whole(store: Store) -> bool:
    """Whether bytes of a store are measured: a volume with names on two nodes stores them as another one."""
    return not store.name.endswith(TWICE)
