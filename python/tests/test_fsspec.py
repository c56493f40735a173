"""Tests of the file system: fsspec's own abstract tests, and what they do not ask."""

from __future__ import annotations

from typing import Any

import plasmon
import pytest

fsspec = pytest.importorskip("fsspec")

from fsspec.tests import abstract  # noqa: E402
from plasmon.fsspec import PlasmonFileSystem  # noqa: E402


@pytest.fixture
def fs(near: plasmon.Client) -> Any:
    fs = fsspec.filesystem("plasmon", socket=near.socket)
    assert isinstance(fs, PlasmonFileSystem)
    return fs


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, near: plasmon.Client) -> Any:
        return fsspec.filesystem("plasmon", socket=near.socket)

    @pytest.fixture
    def fs_join(self) -> Any:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def fs_path(self) -> str:
        return "tests"

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass
