"""Tests of the simulation of large clusters: its results are always the same, except measured ones."""

from pathlib import Path

import pytest

from harness import scale


def simulated(folder: Path) -> list[scale.Figure]:
    """Figures of a quick run."""
    assert scale.run(quick=True, results=folder) == 0
    return scale.SCALE.read(folder)


@pytest.fixture(name="figures", scope="module")
def _figures(tmp_path_factory: pytest.TempPathFactory) -> list[scale.Figure]:
    """Figures of one quick run for all tests."""
    return simulated(tmp_path_factory.mktemp("scale"))


def test_it_says_the_same_again(figures: list[scale.Figure], tmp_path: Path) -> None:
    """Counted figures depend only on ids, which are the same in every run."""
    one, other = (
        [figure for figure in run if figure.how in ("counted", "sampled")]
        for run in (figures, simulated(tmp_path))
    )
    assert len(one) > 100
    assert one == other


def test_what_it_counts_can_be_true(figures: list[scale.Figure]) -> None:
    """A death costs about as many publications as the dead node kept entries, a join as many as it will
    keep."""
    found = {(one.nodes, one.objects, one.measure): one.value for one in figures}
    for nodes in (5, 30, 300):
        entries = 2e6 / nodes
        for event in ("join", "death"):
            published = found[nodes, 1_000_000, f"{event}: objects published again"]
            assert entries / 2 < published < entries * 2
            assert published <= found[nodes, 1_000_000, f"{event}: bytes to keepers"] / 34
        assert found[nodes, 0, "shards of the busiest keeper"] >= 2 * 16_384 / nodes
