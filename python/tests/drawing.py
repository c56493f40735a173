"""How many values a property test draws: few, the same ones each time; with `PLASMON_PYTHON_LONG=1` many."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_LONG = os.environ.get("PLASMON_PYTHON_LONG", "") not in ("", "0")


def drawn(examples: int) -> settings:
    """Settings of a property test that draws so many values."""
    return settings(
        max_examples=examples * (40 if _LONG else 1),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
