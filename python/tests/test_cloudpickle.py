"""Tests of functions and classes that cloudpickle stores by value."""

from __future__ import annotations

import subprocess
import sys

import plasmon
import pytest

pytest.importorskip("cloudpickle")


def test_functions_come_back_by_value(near: plasmon.Client, reader: plasmon.Client) -> None:
    factor = 3
    assert reader.get(near.put(lambda number: factor * number), timeout=30)(5) == 15


PROGRAM = """
import sys, plasmon
from dataclasses import dataclass

@dataclass
class Point:
    x: int

plasmon.connect(sys.argv[1]).put(Point(7), name="point")
"""


def test_classes_of_a_main_program_are_read_by_another(near: plasmon.Client) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, near.socket], check=True)
    assert near.get("point").x == 7
