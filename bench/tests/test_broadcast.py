"""What becomes of the times of a broadcast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import broadcast


def _line(way: str, nodes: int, seconds: float) -> dict[str, Any]:
    return {"way": way, "nodes": nodes, "size": 1 << 20, "seconds": seconds, "cpu_seconds": 2 * seconds}


def test_rounds_of_one_way_to_as_many_nodes_are_one_row(tmp_path: Path) -> None:
    lines = [_line("gets", 2, 0.5), _line("broadcast", 2, 0.1), _line("gets", 2, 0.3), _line("gets", 2, 0.4)]
    rows = broadcast.gather([*lines, _line("gets", 3, 1.0)])
    assert [(row.way, row.nodes, row.samples) for row in rows] == [
        ("broadcast", 2, 1),
        ("gets", 2, 3),
        ("gets", 3, 1),
    ]
    assert (rows[1].least_ms, rows[1].median_ms, rows[1].most_ms, rows[1].cpu_s) == (300, 400, 500, 0.8)
    broadcast.write(tmp_path / "some.csv", rows)
    assert broadcast.read(tmp_path / "some.csv") == rows
