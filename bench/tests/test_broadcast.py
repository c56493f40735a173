"""Tests of the times of a broadcast, and of the figures made from them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness import broadcast, figures, machine, paths

MIB = 1 << 20


def _line(way: str, nodes: int, seconds: float, link_gbit: float = 0) -> dict[str, Any]:
    line = {"way": way, "nodes": nodes, "size": MIB, "seconds": seconds, "cpu_seconds": 2 * seconds}
    return line | {"link_gbit": link_gbit}


def _both(seconds: float, link_gbit: float) -> list[dict[str, Any]]:
    """Lines of a broadcast to seven nodes with a given time, and of gets that take a second."""
    return [_line("broadcast", 7, seconds, link_gbit), _line("gets", 7, 1.0, link_gbit)]


def test_rounds_of_one_way_to_as_many_nodes_over_the_same_links_are_one_row(tmp_path: Path) -> None:
    lines = [_line("gets", 2, 0.5), _line("broadcast", 2, 0.1), _line("gets", 2, 0.3), _line("gets", 2, 0.4)]
    rows = broadcast.gather([_line("gets", 2, 2.0, 2.5), *lines, _line("gets", 3, 1.0)])
    assert [(row.link_gbit, row.way, row.nodes, row.samples) for row in rows] == [
        (0, "broadcast", 2, 1),
        (0, "gets", 2, 3),
        (0, "gets", 3, 1),
        (2.5, "gets", 2, 1),
    ]
    assert (rows[1].least_ms, rows[1].median_ms, rows[1].most_ms, rows[1].cpu_s) == (300, 400, 500, 0.8)
    figures.write(tmp_path / "some.csv", rows, broadcast.Row)
    assert figures.read(tmp_path / "some.csv", broadcast.Row) == rows


def test_before_each_round_the_object_is_on_one_node_alone() -> None:
    # A small object is evicted before the directory has learned of it. The worker complains of an object that
    # a node had before the round.
    plan = broadcast.Plan(4 * MIB, (2,), 100)
    words = ["--size", plan.size, "--nodes", *plan.nodes, "--rounds", plan.rounds, "--memory", plan.memory]
    worker = paths.ROOT / "bench" / "workers" / "broadcast.py"
    command = [str(word) for word in (paths.plasmon_python(), worker, *words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    ways = [json.loads(line)["way"] for line in done.stdout.splitlines()]
    assert (ways.count("broadcast"), ways.count("gets")) == (100, 100)


@pytest.mark.whole
def test_it_is_measured_without_links_and_with_them_where_they_can_be_had(tmp_path: Path) -> None:
    assert broadcast.run(True, tmp_path) == 0
    described = json.loads((tmp_path / "broadcast.json").read_text())
    rows = figures.read(tmp_path / "broadcast.csv", broadcast.Row)
    plans = [plan for plan in broadcast.QUICK if described["no_links"] is None or not plan.link_gbit]
    assert {(row.link_gbit, row.nodes, row.way) for row in rows} == {
        (plan.link_gbit, nodes, way)
        for plan in plans
        for nodes in plan.nodes
        for way in ("broadcast", "gets")
    }


def test_without_namespaces_it_is_measured_without_links_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLASMON_BENCH_NETNS", "0")
    assert broadcast.run(True, tmp_path) == 0
    assert {row.link_gbit for row in figures.read(tmp_path / "broadcast.csv", broadcast.Row)} == {0}
    assert json.loads((tmp_path / "broadcast.json").read_text())["no_links"] == "PLASMON_BENCH_NETNS is 0"


@pytest.mark.parametrize(
    ("lines", "why", "says"),
    [
        ([*_both(0.9, 0), *_both(0.4, 1)], None, "measured: 2.50 times, reached: yes."),
        ([*_both(0.4, 0), *_both(0.9, 1)], None, "measured: 1.11 times, reached: **no**."),
        (_both(0.4, 0), "there is no tc", "Not measured, so the goal cannot be judged: there is no tc"),
    ],
)
def test_the_goal_is_judged_by_what_was_measured_with_links(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[dict[str, Any]],
    why: str | None,
    says: str,
) -> None:
    text = page_of(tmp_path, monkeypatch, lines, why)
    assert says in text
    assert ("Goal" in text) == (why is None)
    assert "a broadcast costs" in text


def page_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, Any]], why: str | None
) -> str:
    monkeypatch.setattr(paths, "RESULTS", folder)
    monkeypatch.setattr(paths, "PAGE", folder / "page.md")
    paths.PAGE.write_text(
        "<!-- broadcast: begin (written by `make bench-report`) -->\n<!-- broadcast: end -->\n"
    )
    described = machine.describe() | {"quick": False, "seconds": 1, "network": "hosts", "no_links": why}
    broadcast.BROADCAST.keep(folder, broadcast.gather(lines), described)
    broadcast.BROADCAST.report(broadcast.text)
    return paths.PAGE.read_text()
