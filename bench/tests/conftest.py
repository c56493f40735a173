"""Choice of the tests that run: tests that are marked `whole` run all of a benchmark, in short.

They take minutes and run with `PLASMON_BENCH_LONG=1`, as in `make test-all`.
"""

from __future__ import annotations

import os

import pytest

LONG = os.environ.get("PLASMON_BENCH_LONG", "") not in ("", "0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("whole") and not LONG:
            item.add_marker(pytest.mark.skip(reason="all of a benchmark: PLASMON_BENCH_LONG=1"))
