"""Tests of what `help` shows."""

from __future__ import annotations

import inspect
import pydoc
import re

import plasmon
import plasmon.aio
import pytest

SUBMODULES = ["aio", "dask", "demo", "fsspec", "joblib", "plasma", "proxystore", "zarr"]
PUBLIC = [name for name in dir(plasmon) if not name.startswith("_") and name not in SUBMODULES]
OBVIOUS = ["id", "ids", "id_or_ids", "private", "timeout", "node"]
"""Arguments that calls need not describe if they describe none."""
CALLS = [name for name in dir(plasmon.Client) if not name.startswith("_")]


def words_of(text: str | None) -> set[str]:
    return set(re.findall(r"\w+", text or ""))


def test_help_of_the_package_begins_with_a_list_of_everything() -> None:
    shown = pydoc.plain(pydoc.render_doc(plasmon)).splitlines()
    assert shown.index("PACKAGE CONTENTS") < 80
    # The native types follow, and nothing that exceptions inherit.
    assert len(shown) < 430
    assert not any("with_traceback" in line for line in shown)
    named = words_of(plasmon.__doc__)
    assert [name for name in PUBLIC + CALLS if name not in named] == []


def test_help_of_the_package_names_nothing_else() -> None:
    summary = (plasmon.__doc__ or "").split("FUNCTIONS AND CLASSES")[1]
    first_columns = [line[4:].split("  ")[0] for line in summary.splitlines() if line.startswith("    ")]
    names = [
        name.partition("(")[0].removeprefix("plasmon.")
        for column in first_columns
        for name in re.split(r", (?![^(]*\))", column)
        if re.fullmatch(r"[\w.]+(\(.*\))?", name)
    ]
    assert len(names) > 60
    known = {*PUBLIC, *CALLS, *SUBMODULES}
    assert [name for name in names if name not in known] == []


@pytest.mark.parametrize("owner", [plasmon.Client, plasmon.aio.Client, plasmon.LocalCluster])
def test_every_call_says_what_its_arguments_are(owner: type) -> None:
    for name, call in inspect.getmembers(owner, callable):
        if name.startswith("_"):
            continue
        described = inspect.getdoc(call) or ""
        assert described, f"{owner.__name__}.{name} has no description"
        parameters = [*inspect.signature(call).parameters][1:]
        if f"as `plasmon.Client.{name}`" in described:
            continue
        if "Args:" not in described:
            parameters = [one for one in parameters if one not in OBVIOUS]
        missing = [one for one in parameters if f"\n    {one}: " not in described]
        assert missing == [], f"{owner.__name__}.{name}"


def test_star_imports_give_the_public_names() -> None:
    given: dict[str, object] = {}
    exec("from plasmon import *", given)
    assert [name for name in PUBLIC if name not in given] == []
