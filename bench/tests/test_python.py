"""Tests of the times of Python's libraries, and of the figures made from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import figures, paths, python


def _lines(way: str, ms: float) -> list[dict[str, Any]]:
    common = {"case": "pickle", "bytes": 4_000_000, "way": way}
    return [
        *({**common, "operation": "get", "ms": ms * factor} for factor in (1, 3, 2)),
        {**common, "operation": "memory", "rss_mib": 5.0, "pss_mib": 2.0, "private_mib": ms},
    ]


def test_times_of_an_operation_are_one_row_and_memory_another(tmp_path: Path) -> None:
    rows = python.gather([*_lines("plasmon", 0.5), *_lines("without", 8)])
    assert [(row.way, row.operation, row.samples) for row in rows] == [
        ("plasmon", "get", 3),
        ("plasmon", "memory", 1),
        ("without", "get", 3),
        ("without", "memory", 1),
    ]
    assert (rows[0].least_ms, rows[0].median_ms, rows[0].most_ms, rows[0].rss_mib) == (0.5, 1, 1.5, None)
    assert (rows[3].median_ms, rows[3].rss_mib, rows[3].private_mib) == (None, 5, 8)
    figures.write(tmp_path / "some.csv", rows, python.Row)
    assert figures.read(tmp_path / "some.csv", python.Row) == rows


def test_a_case_without_its_library_is_left_out_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package's own environment has NumPy and none of the libraries.
    present = {"pickle": paths.plasmon_python(), "torch": paths.plasmon_python()}
    monkeypatch.setattr(python, "QUICK", [case for case in python.QUICK if case.name in present])
    monkeypatch.setattr(python, "interpreter", lambda environment: paths.plasmon_python())
    assert python.run(True, tmp_path) == 0
    described = json.loads((tmp_path / "python.json").read_text())
    assert "No module named 'torch'" in described["missing"].pop("torch")
    assert described["missing"] == {}
    rows = figures.read(tmp_path / "python.csv", python.Row)
    assert {(row.case, row.way, row.operation) for row in rows} == {
        ("pickle", way, operation) for way in ("plasmon", "without") for operation in ("put", "get", "memory")
    }
    private = {row.way: row.private_mib for row in rows if row.operation == "memory"}
    assert private["plasmon"] is not None
    assert private["without"] is not None
    assert private["plasmon"] < private["without"], "a pickle is copied into each reader"


def test_the_page_sets_both_ways_beside_each_other() -> None:
    rows = python.gather([*_lines("plasmon", 0.5), *_lines("without", 8)])
    times, memory = [row for row in rows if row.median_ms], [row for row in rows if not row.median_ms]
    labels = {"pickle": "values"}
    assert python._times(times, labels) == [
        ["values, 4 MB", "get", "1 (0.5 to 1.5)", "16 (8 to 24)", "16"],
    ]
    assert python._memory(memory, labels) == [["values", "4 MB", "0.5 / 2.0 / 5.0", "8.0 / 2.0 / 5.0"]]
