"""Tests of the figures of local benchmarks, and of the goals that they reach."""

from pathlib import Path

import pytest

from harness import figures, goals
from harness.figures import Case, Samples, percentile
from harness.goals import Figures

PUT = Case("single", "plasmon-python", "put", "reused", 1024, 1, 1)


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([5], 0.99) == 5
    assert percentile(range(100), 0.5) == 50
    assert percentile(reversed(range(1000)), 0.99) == 990
    assert percentile([1, 2, 3], 0.99) == 3


def test_times_become_microseconds_an_object_and_rates() -> None:
    batch = Case("single", "redis", "put_many", "reused", 1000, 10, 1)
    samples = Samples()
    samples.add(batch, [10_000, 20_000, 60_000], moves=True)
    (row,) = samples.rows()
    assert (row.samples, row.median_us, row.p99_us) == (3, 2.0, 6.0)
    # 30 objects in 90 us.
    assert row.ops_per_s == pytest.approx(333_300)
    assert row.gb_per_s == pytest.approx(0.3333)


def test_the_rate_of_clients_together_is_that_of_the_rounds_and_not_of_the_times() -> None:
    samples = Samples()
    for rate in (100.0, 900.0, 300.0):
        samples.add(PUT, [1000], moves=False, rate=rate)
    (row,) = samples.rows()
    assert row.ops_per_s == 300
    assert row.gb_per_s is None


def test_a_csv_gives_back_what_was_written(tmp_path: Path) -> None:
    samples = Samples()
    samples.add(PUT, [1234, 5678], moves=True)
    samples.add(Case("sustained", "ray", "get", "", 1024, 1, 8), [99_999], moves=False, rate=7.0)
    rows = samples.rows()
    figures.write(tmp_path / "figures.csv", rows, figures.Row)
    assert sorted(figures.read(tmp_path / "figures.csv", figures.Row), key=str) == sorted(rows, key=str)


@pytest.mark.parametrize(
    ("ours", "reached"), [(14_000, [True, True]), (16_000, [False, True]), (30_000, [False] * 2)]
)
def test_a_goal_is_reached_or_it_is_not(ours: int, reached: list[bool]) -> None:
    samples = Samples()
    samples.add(PUT, [ours], moves=True)
    samples.add(Case("single", "plasma", "put", "reused", 1024, 1, 1), [82_000], moves=True)
    checked = goals.check(Figures(samples.rows()), [])
    assert [goal.reached for goal in checked] == reached
