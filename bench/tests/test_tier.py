"""Tests of the figures of regions, with real nodes, and of the goals that are judged by them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from harness import machine, paths
from harness.figures import Case, Row, Samples
from harness.page import Goal
from harness.tier import (
    bodies,
    callers,
    calls,
    classes,
    command,
    extent,
    goals,
    locks,
    log,
    log_nodes,
    pace,
    pieces,
    report,
    ucx,
)
from harness.tier import run as running
from harness.tier.extent import CROWD, Crowd
from harness.tier.many import MANY, Many
from harness.tier.pace import PACE, Pace
from harness.tier.run import IN_FLIGHT, LITTLE, MANY_RUST, WORD
from harness.tier.workers import FABRIC, MACHINE, MAPPED, PYTHON, REDIS_RUST, REMOTE, RUST

MIB = 1 << 20


def row(mode: str, peer: str, operation: str, size: int, ns: int, batch: int = 1) -> Row:
    samples = Samples()
    samples.add(Case(mode, peer, operation, "", size, batch, 1), [ns * batch], moves=True)
    return samples.rows()[0]


def judged(rows: list[Row], many: list[Many] | None = None) -> dict[str, Goal]:
    return {goal.what: goal for goal in goals.check(rows, many or [])}


def stage(regions: int, us: float, own_bytes: float) -> Many:
    return Many(regions, us, us, us, us, us, us, us, own_bytes, 100, 64, 100)


@pytest.mark.whole
def test_everything_is_measured_by_everyone(tmp_path: Path) -> None:
    assert command.run(True, tmp_path) == 0
    described = json.loads((tmp_path / "tier.json").read_text())
    assert (described["failures"], described["whole"]) == ({}, True)
    missing = tuple(described["missing"])
    absent = {name for name in missing if not name.startswith((ucx.POLL, ucx.SLEEP))}
    optional = {"redis", "mpi", "ucx", locks.ETCD, *calls.OTHERS}
    assert absent <= optional, "only these may not be installed"
    cases = [
        (one.mode, one.peer, one.operation, one.size, one.batch, one.memory)
        for one in command.TIER.read(tmp_path)
        if one.peer not in ("mpi", ucx.POLL, ucx.SLEEP) and one.operation != "map"
    ]
    turns = {turn for _, turns in running.steps(running.QUICK) for turn in turns}
    wanted = {turn.case for turn in turns if not turn.peer.startswith(missing or ("nobody",))}
    wanted |= {pieces.case(pair, kind) for pair in pieces.PAIRS for kind in (pieces.WHOLE, pieces.PIECES)}
    wanted |= {extent.case(kind, size) for kind in extent.KINDS for size in extent.QUICK.sizes}
    wanted |= {case for case in calls.cases() if case.peer not in missing}
    wanted |= set(bodies.cases(bodies.QUICK))
    wanted |= {case for case in locks.cases() if not case.peer.startswith(missing or ("nobody",))}
    wanted |= {case for case in log.cases(log.QUICK) if not case.peer.startswith(missing or ("nobody",))}
    several = list(log_nodes.cases(log_nodes.QUICK))
    assert sorted(cases) == sorted(
        (case.mode, case.peer, case.operation, case.size, case.batch, case.memory)
        for case in (*wanted, *several)
    )
    paced = PACE.read(tmp_path)
    assert [(one.mode, one.peer, one.arrivals) for one in paced] == pace.expected(pace.QUICK, missing)
    assert all(one.cpu_us > 0 for one in paced)
    shares = [one.payload for one in paced if one.payload is not None]
    assert len(shares) == len(pace.QUICK.slower)
    assert all(0 < share < 1 for share in shares)
    assert [one.regions for one in MANY.read(tmp_path)] == [100, 1000]
    few, most = CROWD.read(tmp_path)
    assert (few.clients, most.clients) == (1, 8)
    assert few.connections == most.connections > 0
    assert [one.qos for one in classes.CLASSES.read(tmp_path)] == list(classes.QUICK.modes)
    spans = classes.SPANS.read(tmp_path)
    assert {one.qos for one in spans if one.high > 0 and one.end_s > 0} == set(classes.QUICK.modes)
    assert {one.qos for one in spans if one.low > 0 and one.end_s <= 0} == set(classes.QUICK.modes)
    if "ucx" not in missing:
        polled = {one.operation for one in command.TIER.read(tmp_path) if one.peer == ucx.POLL}
        assert polled, "the operations of UCX"


def test_a_region_in_pieces_is_held_against_one_in_one_piece() -> None:
    rows = [
        row(MAPPED, RUST, "read_whole", LITTLE, 100, MANY_RUST),
        row(MAPPED, RUST, "read_pieces", LITTLE, 102, MANY_RUST),
        row(REMOTE, RUST, "write_whole", MIB, 1_000_000),
        row(REMOTE, RUST, "write_pieces", MIB, 1_030_000),
    ]
    found = judged(rows)
    assert found["mapped `read` of 64 B: a region in 32 pieces, against one"].reached
    assert not found["remote `write` of 1 MiB: a region in 32 pieces, against one"].reached


def test_a_mapped_region_is_held_against_times_and_redis() -> None:
    rows = [
        row(MAPPED, RUST, "read", LITTLE, 150, MANY_RUST),
        row(MAPPED, RUST, "write", LITTLE, 151, MANY_RUST),
        row(MAPPED, RUST, "fetch_add", WORD, 100, MANY_RUST),
        row(MAPPED, REDIS_RUST, "fetch_add", WORD, 4_900),
    ]
    assert [goal.reached for goal in judged(rows).values()] == [True, False, True, False]


def test_a_remote_call_is_held_against_the_fabric_and_a_round_trip_on_a_host() -> None:
    bare = [
        row(MAPPED, MACHINE, "futex_round_trip", 0, 5_000),
        row(REMOTE, FABRIC, "read", 64, 15_000),
        row(REMOTE, FABRIC, "message", WORD, 20_000),
    ]
    near = [row(REMOTE, RUST, "read", 64, 27_000), row(REMOTE, RUST, "fetch_add", WORD, 33_800)]
    found = judged([*bare, *near])
    assert [(goal.measured, goal.reached) for goal in found.values()] == [
        ("1.35 (27 µs / (15 + 5) µs)", True),
        ("1.35 (33.8 µs / (20 + 5) µs)", False),
    ]
    assert judged([*near, bare[1]]) == {}, "without what it is held against nothing can be said"


def test_rates_are_held_against_the_fastest_reads_of_the_fabric() -> None:
    rows = [
        row(REMOTE, RUST, "read", MIB, 1_000),
        row(REMOTE, RUST, "move", 4 * MIB, 4_000),
        row(REMOTE, RUST, "read_begun", LITTLE, 1_000, IN_FLIGHT),
        row(REMOTE, FABRIC, "read", MIB, 1_500),
        row(REMOTE, FABRIC, "read_chunks", MIB, 850),
        row(REMOTE, FABRIC, "read_begun", LITTLE, 700, IN_FLIGHT),
    ]
    assert [goal.reached for goal in judged(rows).values()] == [False, True, True]


@pytest.mark.parametrize(("us", "own_bytes", "reached"), [(11.0, 256, True), (11.2, 257, False)])
def test_many_regions_cost_no_more_time_and_little_memory(us: float, own_bytes: float, reached: bool) -> None:
    found = judged([], [stage(1_000, 10.0, 1), stage(100_000, us, own_bytes)])
    assert [goal.reached for goal in found.values()] == [reached] * 4 + [True]


def test_large_regions_and_many_clients_cost_no_more() -> None:
    kind = extent.KINDS[2]
    rows = []
    for size, ns in ((64 * MIB, 10_000), (8 << 30, 11_000)):
        samples = Samples()
        samples.add(extent.case(kind, size), [ns], moves=True)
        rows += samples.rows()
    found = judged(rows)
    assert found["remote `read` of 64 B all over a region of 8192 MiB, against one of 64 MiB"].reached
    for last, connections, reached in ((11.0, 4, True), (11.1, 5, False)):
        crowds = [Crowd(1, 10.0, 20.0, 4), Crowd(1000, last, 20.0, connections)]
        assert [goal.reached for goal in goals.check([], [], crowds)] == [reached] * 2


def test_calls_are_held_against_those_of_other_libraries() -> None:
    rows = [
        row(REMOTE, RUST, calls.CALL, LITTLE, 100_000),
        row(REMOTE, callers.TONIC, calls.CALL, LITTLE, 199_000),
        row(REMOTE, RUST, calls.CALL_BEGUN, LITTLE, 6_000, IN_FLIGHT),
        row(REMOTE, callers.TONIC, calls.CALL_BEGUN, LITTLE, 30_000, IN_FLIGHT),
    ]
    found = judged(rows)
    assert not found[f"remote `call` of {LITTLE} B, Rust, against tonic"].reached
    assert found[f"remote, {IN_FLIGHT} calls in flight, against tonic"].reached


def test_calls_at_a_pace_are_held_against_who_polls_and_the_bytes_that_they_bring() -> None:
    def of(peer: str, us: float) -> Pace:
        return Pace(REMOTE, peer, pace.STEADY, 100, 1000.0, us, None)

    found = [of(RUST, 200.0), of(PYTHON, 301.0), of(callers.ZMQ, 300.0), of(FABRIC, 800.0)]
    found += [Pace(REMOTE, RUST, "gaps x 1", 100, 1.0, 2.0, share) for share in (0.6, 0.59)]
    assert [goal.reached for goal in goals.check([], [], [], [], found)] == [True, False, True, False]
    assert [goal.reached for goal in goals.check([], [], [], [], found[:3])] == [False]
    assert "| two processes that poll, two hosts | 1,000 a second |" in pace.table(found)


def test_classes_are_held_against_work_without_them() -> None:
    told = {
        "high_alone": 100e6,
        "low_alone": 100e6,
        "high": 50e6,
        "low": 50e6,
        "whole_after_ms": 40.0,
        "calls_idle_us": [50.0, 100.0],
        "calls_us": [500.0, 1000.0],
        "log_alone": 10_000.0,
        "log": 9_000.0,
        "writes": 50e6,
    }
    off = classes.apart(classes.OFF, told)
    good = classes.apart(classes.PRIORITY, {**told, "high": 95e6, "low": 0.0, "calls_us": [60.0, 300.0]})
    bad = classes.apart(classes.PRIORITY, {**told, "high": 94e6, "low": 0.0, "whole_after_ms": None})
    for one, reached in ((good, True), (bad, False)):
        judged = goals.check([], [], [], [off, one])
        assert [goal.reached for goal in judged] == [reached] * 4
    assert goals.check([], [], [], [off]) == []
    text = classes.table([off, good])
    assert "| priority | 100.0 | 95.0 (0.95) |" in text
    assert "| priority | 10,000 | 9,000 (0.90) | 50.0 |" in text


def test_calls_whose_bodies_are_written_stand_beside_those_whose_bodies_are_read() -> None:
    def of(memory: str, size: int, ns: int) -> Row:
        samples = Samples()
        samples.add(Case(REMOTE, RUST, calls.CALL, memory, size, 1, 1), [ns], moves=False)
        return samples.rows()[0]

    rows = [of("", 16 << 10, 150_000), of(bodies.READ, 16 << 10, 200_000), of("", LITTLE, 1)]
    assert "| 16 KiB | 150 (150) | 200 (200) | 0.75 |" in bodies.table(rows)
    assert bodies.table(rows[2:]) == ""


def test_locks_are_held_against_those_of_etcd_and_the_wakes_of_a_barrier() -> None:
    def together(operation: str, clients: int, ns: int) -> Row:
        samples = Samples()
        samples.add(Case(REMOTE, RUST, operation, "", WORD, 1, clients), [ns], moves=False)
        return samples.rows()[0]

    rows = [
        row(MAPPED, MACHINE, "futex_round_trip", 0, 5_000),
        row(REMOTE, FABRIC, "message", WORD, 20_000),
        row(REMOTE, RUST, locks.LOCK, WORD, 30_000),
        row(REMOTE, locks.ETCD, locks.LOCK, WORD, 600_000),
        together(locks.LONGEST, locks.WAITING, 210_000),
        together(locks.CONTENDED, locks.WAITING, 100_000),
        together(locks.MEET, locks.PARTIES, 1),
        together(locks.MEET, locks.ALL_PARTIES, 1_000_000),
    ]
    found = judged(rows)
    assert found["remote: a free lock is taken, against etcd"].reached
    assert not found["the longest wait of 16 for a lock, against the mean"].reached
    barriers = [goal for what, goal in found.items() if what.startswith("a barrier of 4 nodes x 4 parties")]
    assert [goal.reached for goal in barriers] == [False]


def test_the_page_says_what_was_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "RESULTS", tmp_path)
    rows = [
        row(MAPPED, PYTHON, "read", LITTLE, 900, running.MANY_PYTHON),
        *(row(REMOTE, RUST, operation, 64, 30_000) for operation in ("read", "write")),
    ]
    described = machine.describe() | {
        "quick": False,
        "whole": True,
        "seconds": 1,
        "network": "hosts",
        "facts": {"provider": "tcp"},
        "store_bytes": MIB,
        "failures": {"redis": ["it did not start\nand more"]},
    }
    command.TIER.keep(tmp_path, rows, described)
    MANY.keep(tmp_path, [stage(1_000, 10.0, 1), stage(100_000, 20.0, 300)], described)
    CROWD.keep(tmp_path, [Crowd(1, 10.0, 20.0, 4), Crowd(1000, 30.0, 40.0, 4)], described)
    text = "\n".join(report.text(rows, described))
    assert "| mapped, Python: `read` of 64 B | ≤ 0.7 µs | 0.9 µs | **no** |" in text
    assert "| 2.00 (10 → 20 µs) | **no** |" in text
    assert "| 3.00 (10 → 30 µs) | **no** |" in text
    assert "| the same | 4 → 4 | yes |" in text
    assert "**redis failed 1 times**, first: it did not start" in text


def test_a_worker_refuses_what_it_does_not_know() -> None:
    command = [str(paths.rust_worker()), "regions", "/nowhere", "/nowhere", "else"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "regions are mapped or called" in done.stderr
