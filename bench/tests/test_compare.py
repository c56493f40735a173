"""Tests of the comparison of two builds: ratios, spreads, and the run of both."""

from pathlib import Path

import pytest

from harness import compare, paths
from harness.compare import BASE, NEW
from harness.figures import Case, Row, Samples


def rows(new: tuple[int, int], base: tuple[int, int]) -> list[Row]:
    samples = Samples()
    for mark, ns in zip((*NEW, *BASE), (*new, *base), strict=True):
        samples.add(Case("single", f"plasmon-rust{mark}", "put", "", 1024, 1, 1), [ns], moves=True)
    return samples.rows()


@pytest.mark.parametrize(
    ("new", "base", "ratio", "spread", "worse"),
    [
        ((1100, 1100), (1000, 1000), 1.1, 0.0, True),
        ((1020, 1020), (1000, 1000), 1.02, 0.0, False),
        ((1100, 1100), (900, 1100), 1.1, 0.2222, False),
        ((900, 1100), (1000, 1000), 1.0, 0.2222, False),
    ],
)
def test_a_row_is_worse_when_it_costs_more_than_two_runs_of_one_build_differ(
    new: tuple[int, int], base: tuple[int, int], ratio: float, spread: float, worse: bool
) -> None:
    (cost,) = compare.compare(rows(new, base))
    assert (cost.peer, cost.ratio, cost.spread, cost.worse) == ("plasmon-rust", ratio, spread, worse)


def test_clients_together_are_compared_by_their_rate() -> None:
    samples = Samples()
    for mark, rate in zip((*NEW, *BASE), (50.0, 50.0, 100.0, 100.0), strict=True):
        case = Case("sustained", f"plasmon-python{mark}", "get", "", 1024, 1, 8)
        samples.add(case, [1000], moves=False, rate=rate)
    (cost,) = compare.compare(samples.rows())
    assert (cost.base_us, cost.new_us, cost.ratio) == (10_000, 20_000, 2)


def test_a_row_that_only_one_build_has_is_left_out() -> None:
    assert compare.compare(rows((1, 1), (1, 1))[:3]) == []


@pytest.mark.whole
def test_a_build_is_measured_beside_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paths, "built_in", lambda _checkout, mark: paths.own(mark))
    # On a busy machine a turn may fail, which the exit status says; the others are compared all the same.
    compare.run(tmp_path, quick=True, only="remote", results=tmp_path)
    assert "plasmon-auto" in (tmp_path / "compare.csv").read_text()
    assert "median of the ratios" in capsys.readouterr().out
