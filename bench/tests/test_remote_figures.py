"""Tests of the figures of remote benchmarks: medians, goals, and what is impossible."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness import page
from harness.processes import PeerError
from harness.remote import conditions, conditions_report, goals, growth, making
from harness.remote.command import beside_tcp, fit
from harness.remote.conditions import until
from harness.remote.contenders import Plasmon, Way, protocols
from harness.remote.figures import REMOTE, Collected, Fetches, Turn
from harness.remote.others import Redis
from harness.remote.plausible import impossible
from harness.remote.run import FULL, moved, objects

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
COLD = Way("plasmon-auto", memory="cold")
HELP = """
Options:
      --spill-dir <DIR>  Files; read by the next node
      --protocol <NAME>  How to fetch: auto, send, read or
                         read-register. All but auto are for measuring [default: auto]
      --lease <SECONDS>  Until a socket of a node is taken for dead
"""


def row(
    peer: str, size: int, us: float, memory: str = "", getters: int = 1, operation: str = "fetch"
) -> Fetches:
    return Fetches(
        mode="remote",
        peer=peer,
        operation=operation,
        memory=memory,
        size=size,
        batch=1,
        clients=getters,
        samples=9,
        median_us=us,
        p99_us=us,
        ops_per_s=getters * 1e6 / us,
        gb_per_s=1.0,
        turns=3,
        holder_cpu_s_per_gib=0.1,
        getter_cpu_s_per_gib=None,
        moved_by="",
    )


def reached(rows: list[Fetches], words: str) -> bool | None:
    (goal,) = [goal for goal in goals.check(rows) if words in goal.what]
    return goal.reached


def test_the_protocols_of_a_build_are_those_its_help_names() -> None:
    assert protocols(HELP) == ["auto", "send", "read", "read-register"]
    assert protocols(HELP.replace("--protocol", "--provider")) == []
    assert protocols(HELP.replace("auto, send", "auto, socket, send"))[1] == "socket"


def test_turns_become_medians_rates_and_costs() -> None:
    collected = Collected()
    for ns, rate in (([1000, 3000], 10.0), ([9000], 90.0), ([2000], 20.0)):
        collected.add(COLD, MIB, 1, Turn(ns, rate, 512, 0.25, 0.5, {"read": 512}))
    (out,) = collected.rows()
    assert (out.median_us, out.p99_us, out.samples, out.turns) == (2.5, 9.0, 4, 3)
    assert out.ops_per_s == 20.0
    # 1.5 GiB in all three turns.
    assert (out.holder_cpu_s_per_gib, out.getter_cpu_s_per_gib) == (0.5, 1.0)
    assert out.moved_by == "read"


def test_a_csv_gives_back_what_was_written(tmp_path: Path) -> None:
    rows = [row("tcp", 64, 5.0), row("plasmon-auto", MIB, 400.0, "cold", 8)]
    REMOTE.keep(tmp_path, rows, {})
    assert REMOTE.read(tmp_path) == rows
    points = [growth.Grown("nodes", 3, KIB, 64, 3, 1, 4096, 5, 30000.5, 29000.0, 31000.0)]
    growth.GROWTH.keep(tmp_path, points, {})
    assert growth.GROWTH.read(tmp_path) == points


def test_a_get_of_what_was_here_already_is_noticed() -> None:
    assert moved({"read": 3}, {"read": 5, "eager": 1, "send": 0}, 3) == {"read": 2, "eager": 1}
    assert moved(None, {"read": 5}, 3) is None
    with pytest.raises(PeerError, match="3 gets, but 2 objects"):
        moved({"read": 3}, {"read": 5}, 3)


def test_a_turn_is_small_enough_for_its_stores() -> None:
    assert objects(64, 1, FULL.memory) == objects(64, 8, FULL.memory) == 200
    for size in FULL.sizes:
        for getters in FULL.getters:
            for memory in (FULL.memory, 64 * MIB):
                count = objects(size, getters, memory)
                assert count * getters * size <= memory // 2
                assert count > 0 or getters * size > memory // 2
    # The only thing that is left out when there is memory enough.
    assert objects(256 * MIB, 8, FULL.memory) == 0
    assert all(objects(size, 1, FULL.memory) for size in FULL.sizes)
    assert {KIB, MIB, 4 * MIB, 64 * MIB} < set(FULL.sizes)


def test_stores_shrink_to_the_memory_there_is() -> None:
    contenders = [Plasmon("auto", []), Plasmon("read", []), Redis()]
    assert fit(FULL, contenders, 100 * GIB) is FULL
    assert fit(FULL, contenders, 5 * GIB).memory == 5 * GIB * 6 // 10 // 5 // MIB * MIB


@pytest.mark.parametrize(("auto", "expected"), [(100.0, True), (109.0, True), (120.0, False)])
def test_auto_is_held_against_the_best_protocol_of_each_size(auto: float, expected: bool) -> None:
    rows = [
        row("plasmon-auto", KIB, 10.0, "cold"),
        row("plasmon-send", KIB, 50.0, "cold"),
        row("plasmon-auto", MIB, auto, "cold"),
        row("plasmon-send", MIB, 900.0, "cold"),
        row("plasmon-read", MIB, 100.0, "cold"),
    ]
    assert reached(rows, "best single protocol") is expected


@pytest.mark.parametrize(("warm", "expected"), [(31.0, True), (33.0, False)])
def test_a_warm_get_is_held_against_the_fastest_bare_read(warm: float, expected: bool) -> None:
    rows = [
        row("plasmon-auto", KIB, warm, "warm"),
        row("plasmon-auto", KIB, 1.0, "cold"),
        row("fabric", KIB, 20.0, "places", operation="read_places"),
        row("fabric", KIB, 500.0, "places", operation="read_asleep_places"),
    ]
    assert reached(rows, "over libfabric's own read") is expected


@pytest.mark.parametrize(("ours", "expected"), [(114.0, True), (116.0, False)])
def test_large_objects_are_held_against_raw_tcp(ours: float, expected: bool) -> None:
    rows = [row("plasmon-auto", 4 * MIB, ours, "cold"), row("tcp", 4 * MIB, 100.0, "places")]
    assert reached(rows, "against raw TCP") is expected


@pytest.mark.parametrize(
    ("ours", "ray", "mooncake"), [(30.0, True, True), (40.0, False, True), (101.0, False, False)]
)
def test_others_are_left_behind_everywhere(ours: float, ray: bool, mooncake: bool) -> None:
    rows = [row("plasmon-python", KIB, 1.0, "cold"), row("ray", KIB, 100.0), row("mooncake", KIB, 100.0)]
    rows += [replace(one, clients=8) for one in rows]
    rows += [
        row("plasmon-python", MIB, ours, "cold", 8),
        row("ray", MIB, 100.0, "", 8),
        row("mooncake", MIB, 100.0, "", 8),
    ]
    assert reached(rows, "Ray") is ray
    assert reached(rows, "Mooncake") is mooncake


@pytest.mark.parametrize(
    ("ours", "near", "ahead"), [(99.0, True, True), (109.0, True, False), (111.0, False, False)]
)
def test_redis_is_near_below_64_kib_and_behind_from_there(ours: float, near: bool, ahead: bool) -> None:
    rows = [row("redis", size, 100.0) for size in (KIB, 64 * KIB, MIB)]
    rows += [row("plasmon-python", KIB, ours, "cold"), row("plasmon-python", MIB, ours, "cold")]
    rows.append(row("plasmon-python", 64 * KIB, 1.0, "cold"))
    assert reached(rows, "1 KiB, cold, against GET") is near
    assert reached(rows, "64 KiB and more") is ahead


@pytest.mark.parametrize(("rate", "expected"), [(51.0, True), (49.0, False)])
def test_batches_are_held_against_mget(rate: float, expected: bool) -> None:
    def batch(peer: str, rate: float, memory: str = "") -> Fetches:
        return replace(row(peer, KIB, 1.0, memory, operation="fetch_many"), batch=64, ops_per_s=rate)

    rows = [batch("plasmon-python", rate, "cold"), batch("redis", 100.0)]
    assert reached(rows, "MGET") is expected
    assert goals.Found(rows).rows == []


@pytest.mark.parametrize(("delete", "expected"), [(9.0, True), (11.0, False)])
def test_creations_and_deletions_are_held_against_puts(delete: float, expected: bool) -> None:
    rows = [
        replace(row("plasmon-python", size, us, "alone", operation=operation), mode=making.MAKING)
        for size, operation, us in (
            (KIB, making.PUT, 5.0),
            (KIB, making.CREATE, 9.0),
            (KIB, making.DELETE, 1.0),
            (KIB, making.REPLACE, 8.9),
            (4 * MIB, making.PUT, 100.0),
            (4 * MIB, making.CREATE, 120.0),
            (4 * MIB, making.DELETE, delete),
        )
    ]
    assert reached(rows, "`seal` of 1 KiB, alone") is True
    assert reached(rows, "`seal` of 4 MiB, alone") is False
    assert reached(rows, "`delete` of 4 MiB, alone") is expected
    assert reached(rows, "`put(replace=True)` of 1 KiB, alone") is True
    assert "| 4 MiB, node alone | 100 (100) |  | 120 (120) |" in conditions_report.made(rows)


@pytest.mark.parametrize(("busy", "expected"), [(390.0, True), (410.0, False)])
def test_small_gets_are_held_against_themselves_without_the_large_one(busy: float, expected: bool) -> None:
    rows = [
        replace(row("plasmon-auto", KIB, us, "warm", operation=operation), mode="beside")
        for operation, us in (("idle", 40.0), ("busy", busy))
    ]
    assert goals.check(rows) == []
    rows.append(replace(row("plasmon-auto", GIB, 3e5, "warm", operation="large"), mode="beside"))
    (goal,) = goals.check(rows)
    assert goal.reached is expected
    assert "1 KiB, warm, beside 1024 MiB" in goal.what


def test_only_gets_that_ended_before_the_large_one_count() -> None:
    assert until([5, 5, 5, 5], 16) == [5, 5, 5]
    assert until([5, 5], 10) == [5, 5]
    assert until([20, 1], 16) == []


def test_large_objects_are_of_the_memory_there_is() -> None:
    assert conditions.fit(conditions.FULL, 100 * GIB) == GIB
    assert conditions.fit(conditions.FULL, 3 * GIB) == 409 * MIB


def test_conditions_have_tables_of_their_own_and_are_in_no_other() -> None:
    rows = [row("tcp", KIB, 5.0)]
    rows += [
        replace(row("plasmon-auto", size, us, "cold", operation=operation), mode="connection")
        for size in (KIB, 4 * MIB)
        for operation, us in (("first", 6000.0), ("reused", 50.0))
    ]
    assert "| 4 MiB | 6,000 (6,000) | 50 (50) | 120.00 | 3 |" in conditions_report.connections(rows)
    assert conditions_report.beside(rows) == ""
    rows += [
        replace(row("plasmon-auto", size, us, memory, operation=operation), mode="beside")
        for memory in ("cold", "warm")
        for size, operation, us in ((KIB, "idle", 40.0), (KIB, "busy", 100.0), (GIB, "large", 3e5))
    ]
    rows.append(replace(row("plasmon-auto", GIB, 2e5, operation="large_alone"), mode="beside"))
    assert "| 1 KiB, warm | 40 (40) | 100 (100) | 2.50 |" in conditions_report.beside(rows)
    assert [one.peer for one in goals.Found(rows).rows] == ["tcp"]


def test_what_is_faster_than_the_network_is_impossible() -> None:
    tcp = [row("tcp", MIB, 300.0), row("tcp", 64 * MIB, 17_000.0), row("tcp", MIB, 300.0, "", 8)]
    here = row("ray", 64 * MIB, 402.7)
    several = row("ray", MIB, 100.0, "", 8)
    fine = [row("ray", MIB, 2000.0), row("fabric", 64 * MIB, 9000.0, operation="read_chunks")]
    wrong = impossible([*tcp, here, several, *fine])
    assert [found for found, _ in wrong] == [here, several]
    assert "64 MiB by 1 takes 402.7 µs" in wrong[0][1]
    assert "the bare network 9,000 µs" in wrong[0][1]
    # Several connections may be faster than one.
    assert impossible([*tcp, *fine, row("ray", 64 * MIB, 5000.0)]) == []
    # TCP says nothing of another network, nor where it was not measured.
    assert impossible([*tcp, here], {"ray"}) == []
    assert impossible([*tcp, row("ray", KIB, 0.1), row("ray", MIB, 1.0, "", 2)]) == []
    # A turn of TCP that was disturbed is no measure.
    assert impossible([row("tcp", 64, 30.0), row("tcp", KIB, 5.0), row("fabric", 64, 8.0)]) == []


def test_devices_that_do_without_tcp_are_not_held_against_it() -> None:
    auto, read, tcp = Plasmon("auto", []), Plasmon("read", []), Redis()
    auto.facts = {"provider": "verbs;ofi_rxm"}
    read.facts = {"provider": "tcp;ofi_rxm"}
    assert beside_tcp([auto, read, tcp]) == {"plasmon-auto", "plasmon-python"}


def test_goals_are_only_checked_of_what_was_measured() -> None:
    assert goals.check([row("tcp", KIB, 5.0)]) == []


def test_a_section_of_the_page_is_replaced_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.md"
    monkeypatch.setattr("harness.paths.PAGE", path)
    marks = "<!-- {0}: begin (written by `make bench-report`) -->\nold {0}\n<!-- {0}: end -->"
    path.write_text("\n".join(["before", marks.format("one"), "between", marks.format("two"), "after"]))
    page.replace("two", "new")
    text = path.read_text()
    assert "old one" in text
    assert "old two" not in text
    assert text.startswith("before\n")
    assert text.endswith("-->\nafter")
    with pytest.raises(SystemExit, match="three"):
        page.replace("three", "new")
