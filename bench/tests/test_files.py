"""Tests of the figures of files, with real mounts, and of the goals that are judged by them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import machine, paths
from harness.files import bare, command, fio, goals, project, report
from harness.files import run as running
from harness.files.figures import (
    FILES,
    OPERATIONS,
    OTHER,
    OWN,
    RATE,
    SECONDS,
    TIME,
    Collected,
    Figure,
    Found,
    Task,
    ordered,
)
from harness.files.run import AcrossError, Run, Wire
from harness.files.stores import Tmpfs
from harness.files.workers import Span, Team
from harness.network import HERE
from harness.page import Goal
from harness.processes import PeerError
from harness.progress import Progress

KIB, MIB = 1 << 10, 1 << 20


def figure(
    part: str,
    store: str,
    operation: str,
    where: str,
    median: float,
    processes: int = 1,
    size: int = MIB,
    unit: str = RATE,
) -> Figure:
    return Figure(part, store, operation, where, processes, size, unit, 3, median, median, median)


def judged(figures: list[Figure]) -> dict[str, tuple[str, bool | None]]:
    found: list[Goal] = goals.check(figures)
    return {goal.what: (goal.measured, goal.reached) for goal in found}


@pytest.mark.whole
def test_everything_is_measured_by_everyone(tmp_path: Path) -> None:
    if reason := command.missing():
        pytest.skip(reason)
    assert command.run(True, tmp_path) == 0
    described = json.loads((tmp_path / "files.json").read_text())
    assert (described["failures"], described["across"], described["whole"]) == ({}, [], True)
    optional = {"moosefs", "juicefs", project.PROJECT, fio.FIO, goals.TWICE}
    assert set(described["missing"]) <= optional, "only these may be missing"
    found, places = Found(FILES.read(tmp_path)), described["places"]
    far = {"plasmon", "plasmon-socket", "moosefs", "juicefs"} - set(described["missing"])
    for part, stores in (
        (running.FAR, far),
        (running.SHAPES, far),
        (running.CROWD, far - {"plasmon-socket"}),
    ):
        assert set(found.stores(part)) - {bare.NAME} == stores
        for store in stores:
            operations = {one.operation for one in found.figures if (one.part, one.store) == (part, store)}
            writes = places or not store.startswith("plasmon")
            assert ("write" in operations) == writes, f"{part} of {store}"
            assert "read" in operations
    assert set(found.stores(running.NEAR)) == {"plasmon", "tmpfs", "null"}
    for store in found.stores(running.NEAR):
        kinds = {one.operation for one in found.figures if (one.part, one.store) == (running.NEAR, store)}
        names = {running.WRITE, running.READ, running.DIRECT}
        assert kinds == names | {name + running.UNALIGNED for name in names}
    assert set(found.stores(running.RANDOM)) == far | {"tmpfs", "null", bare.NAME}
    twice = set() if goals.TWICE in described["missing"] else {goals.TWICE}
    assert set(found.stores(running.NAMES)) == far | {"tmpfs"} | twice
    assert set(found.stores(running.SMALL)) == far | {"tmpfs"} | twice
    if fio.FIO not in described["missing"]:
        assert set(found.stores(fio.FIO)) == far | {"tmpfs"}
    if project.PROJECT not in described["missing"]:
        assert set(found.stores(project.PROJECT)) == (far - {"plasmon-socket"}) | {"tmpfs"}
    assert not [mount for mount in Path("/proc/mounts").read_text().splitlines() if "/bench-" in mount]


@pytest.fixture(name="team")
def start_team(tmp_path: Path) -> Iterator[Callable[[], Team]]:
    teams: list[Team] = []

    def start() -> Team:
        teams.append(Team(tmp_path))
        return teams[-1]

    yield start
    for team in teams:
        team.close()


def test_bytes_that_were_not_written_are_found(tmp_path: Path, team: Callable[[], Team]) -> None:
    workers, path = team(), tmp_path / "file"
    span = Span(str(path), 3 * MIB + 100, MIB, seed=7)
    assert workers.spans("write", [span]) > 0
    assert path.stat().st_size == span.bytes
    assert workers.spans("read", [span]) > 0
    assert len(workers.random(Span(str(path), 3 * MIB, 4 * KIB, seed=7), 10_000, 60.0)) == 768
    with pytest.raises(PeerError, match="other bytes"):
        workers.spans("read", [Span(str(path), 3 * MIB, MIB, seed=8)])
    with path.open("r+b") as file:
        file.seek(2 * MIB)
        file.write(bytes(4 * KIB))
    with pytest.raises(PeerError, match="other bytes than were written at 2097152"):
        workers.spans("read", [span])
    with pytest.raises(PeerError, match="end of file"):
        workers.spans("read", [Span(str(path), 5 * MIB, MIB, seed=7, check=False)])


def test_a_failed_worker_leaves_the_others_in_order(tmp_path: Path, team: Callable[[], Team]) -> None:
    workers = team()
    spans = [Span(str(tmp_path / "there"), MIB, MIB), Span(str(tmp_path / "no" / "folder"), MIB, MIB)]
    with pytest.raises(PeerError, match="No such file"):
        workers.spans("write", spans)
    assert workers.spans("write", spans[:1]) > 0


def test_small_files_are_made_looked_at_and_removed(tmp_path: Path, team: Callable[[], Team]) -> None:
    workers = team()
    for operation, there in (("store", 5), ("load", 5), ("stat", 5), ("unlink", 0)):
        request = {"operation": operation, "folder": str(tmp_path), "count": 5, "bytes": 4_000}
        assert workers.together("names", [request]) > 0
        assert len(list(tmp_path.glob("file-*"))) == there
    with pytest.raises(PeerError, match=r"Stat of .*No such file"):
        workers.together("names", [{**request, "operation": "stat"}])


def test_a_read_that_did_not_cross_the_wire_fails_the_run(tmp_path: Path) -> None:
    with pytest.raises(AcrossError, match="came from another host"):
        Wire([HERE]).check(1 << 50)

    class Near(Tmpfs):
        """Store that says that other hosts use it, which is not so."""

        name, far = "near", True

        def folder(self, at: int) -> Path:
            return tmp_path / "memory"

    run = Run([Near()], [HERE, HERE], running.QUICK, Team(tmp_path), Collected(), Progress())

    def near() -> None:
        raise AcrossError("it was here")

    left, other = (tmp_path / "memory" / name for name in ("turn-1", "other"))
    left.mkdir(parents=True)
    other.mkdir()
    run.turn(Near(), running.FAR, "a read", near)
    assert not left.exists(), "what the turn has left"
    assert other.exists()
    assert run.across == ["near: far, a read: it was here"]
    assert run.failures == {"near": ["far, a read: it was here"]}
    described = machine.describe() | {
        "quick": True,
        "whole": True,
        "seconds": 1,
        "failures": {},
        "across": run.across,
    }
    one = figure(running.FAR, "plasmon", "read", OTHER, 1.0)
    assert command.keep(tmp_path, [one], described, command.PARTS) == 1
    assert command.keep(tmp_path, [one], described | {"across": []}, command.PARTS) == 0


def test_figures_are_medians_of_rounds(tmp_path: Path) -> None:
    collected = Collected()
    task = Task(running.FAR, "plasmon", "read", OTHER, 2, MIB, RATE)
    for value in (3.0, 1.0, 2.0):
        collected.add(task, value)
    [one] = collected.figures()
    assert (one.rounds, one.median, one.least, one.most) == (3, 2.0, 1.0, 3.0)
    FILES.keep(tmp_path, ordered([one]), {})
    assert FILES.read(tmp_path) == [one]


def test_rates_from_another_host_are_held_against_others() -> None:
    rows = [
        figure(running.FAR, "plasmon", "read", OTHER, 1_800.0),
        figure(running.FAR, "moosefs", "read", OTHER, 600.0),
        figure(running.FAR, "juicefs", "read", OTHER, 901.0),
        figure(running.FAR, bare.NAME, "read", OTHER, 3_000.0),
        figure(running.FAR, "plasmon", "write", OTHER, 1_700.0),
        figure(running.FAR, bare.NAME, "write", OTHER, 1.0),
    ]
    assert judged(rows) == {
        "other host, read, 1 process: against MooseFS": ("3.00 (1,800 against 600)", True),
        "other host, read, 1 process: against JuiceFS": ("2.00 (1,800 against 901)", False),
        "other host, read, 1 process: against libfabric": ("0.60 (1,800 against 3,000)", True),
        "other host, write, 1 process: against libfabric": ("0.57 (1,700 against 3,000)", False),
    }


def test_the_own_host_is_held_against_memory_or_the_mount_alone() -> None:
    def near(store: str, operation: str, median: float) -> Figure:
        return figure(running.NEAR, store, operation, OWN, median)

    rows = [
        *(near("tmpfs", operation, 10_000.0) for operation in (running.WRITE, running.READ)),
        near("null", running.WRITE, 2_000.0),
        near("plasmon", running.WRITE, 1_900.0),
        near("plasmon", running.READ, 4_000.0),
    ]
    assert judged(rows) == {
        "own host, write, 1 process": ("1,900 of 1,800 MB/s", True),
        "own host, read, 1 process": ("4,000 of 5,000 MB/s", False),
    }


def test_first_touches_names_and_projects_are_judged() -> None:
    rows = [
        figure(running.RANDOM, "null", running.FIRST, OWN, 10.0, 1, 4 * KIB, TIME),
        figure(running.RANDOM, bare.NAME, "read", OTHER, 20.0, 1, 4 * KIB, TIME),
        figure(running.RANDOM, "plasmon", running.FIRST, OTHER, 55.1, 1, 4 * KIB, TIME),
        figure(running.RANDOM, "plasmon", running.ANY, OTHER, 40.0, 1, 4 * KIB, TIME),
        figure(running.RANDOM, "moosefs", running.ANY, OTHER, 120.0, 1, 4 * KIB, TIME),
        figure(running.NAMES, "plasmon", "stat", OWN, 30_000.0, 8, 0, OPERATIONS),
        figure(running.NAMES, "moosefs", "stat", OWN, 10_001.0, 8, 0, OPERATIONS),
        figure(running.NAMES, "plasmon", "create", OTHER, 3_600.0, 1, 0, OPERATIONS),
        figure(running.NAMES, "moosefs", "create", OTHER, 3_600.0, 1, 0, OPERATIONS),
        figure(project.PROJECT, "plasmon", project.ALL, OWN, 15.0, 1, 0, SECONDS),
        figure(project.PROJECT, "tmpfs", project.ALL, OWN, 10.0, 1, 0, SECONDS),
    ]
    assert [(text, reached) for text, reached in judged(rows).values()] == [
        ("55.1 µs of 10 + 20 + 25", False),
        ("3.00 (40 against 120 µs)", True),
        ("3.00 (30,000 against 10,001)", False),
        ("1.00 (3,600 against 3,600)", True),
        ("1.50 (15 against 10 s)", True),
    ]


def test_the_page_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "RESULTS", tmp_path)
    described = machine.describe() | {
        "quick": False,
        "whole": True,
        "seconds": 1,
        "network": "hosts",
        "facts": {"provider": "tcp"},
        "labels": {"plasmon": "Plasmon", "moosefs": "MooseFS", bare.NAME: bare.LABEL},
        "versions": {"Plasmon": "1.0"},
        "places": False,
        "missing": {"moosefs": "there is no mfsmaster"},
        "across": ["juicefs: far, 1 processes: 8 bytes were read, and 0 came from another host"],
        "failures": {"plasmon": ["it broke\nand more"]},
    }
    rows = [
        figure(running.FAR, "plasmon", "read", OTHER, 1_500.0),
        figure(running.NAMES, "plasmon", "stat", OWN, 30_000.0, 8, 0, OPERATIONS),
        figure(running.SHAPES, "plasmon", "read", OTHER, 500.0, 1, 4 * KIB),
        figure(running.SMALL, "plasmon", "read", OWN, 5_000.0, 1, 4_000, OPERATIONS),
        figure(running.RANDOM, bare.NAME, "read", OTHER, 20.0, 1, 4 * KIB, TIME),
        figure(project.PROJECT, "plasmon", project.UNPACK, OWN, 0.5, 1, 0, SECONDS),
    ]
    text = "\n".join(report.text(rows, described))
    assert "MooseFS was not measured: there is no mfsmaster" in text
    assert "**Impossible, and left out:** juicefs: far" in text
    assert "**Plasmon failed 1 times**, first: it broke" in text
    assert "places no volume on another host" in text
    assert "| Plasmon | 1,500 (1,500 to 1,500) |" in text
    assert f"| {bare.LABEL} | 20 (20 to 20) |" in text


def test_a_worker_refuses_what_it_does_not_know() -> None:
    words = [str(paths.rust_worker()), "files", "else"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "usage" in done.stderr
